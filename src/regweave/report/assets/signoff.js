"use strict";

(() => {
  const form = document.getElementById("signoff");
  const facts = JSON.parse(document.getElementById("signoff-data").textContent);
  const output = document.getElementById("tsv"), missing = document.getElementById("missing");
  const field = (name) => form.elements.namedItem(name);
  let kept = true;

  /** One cell: no control characters or line ends, and nothing that a spreadsheet would run as a formula. */
  const cell = (value) => {
    const text = String(value ?? "").replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029]+/g, " ").trim();
    return /^[=+@-]/.test(text) ? `'${text}` : text;
  };
  const tsv = () => {
    const head = { ...facts.record, date: field("date").value, reviewer: field("reviewer").value, comment: field("comment").value };
    const lines = Object.entries(head).filter(([, value]) => value).map(([key, value]) => `# ${key}: ${cell(value)}`);
    const rows = facts.structures.map((name, n) => [name, field(`grade-${n}`).value, cell(field(`comment-${n}`).value)]);
    return [...lines, ...[["structure", "grade", "comment"], ...rows].map((row) => row.join("\t"))].join("\n") + "\n";
  };
  const count = () => {
    const open = facts.structures.filter((_, n) => field(`grade-${n}`).value === "").length;
    const parts = [open && `${open} of ${facts.structures.length} without a grade`, !field("reviewer").value.trim() && "no name", !field("date").value && "no date"];
    missing.textContent = parts.filter(Boolean).join(", ");
  };

  const now = new Date(), two = (n) => String(n).padStart(2, "0");
  field("date").value = `${now.getFullYear()}-${two(now.getMonth() + 1)}-${two(now.getDate())}`;
  count();
  form.addEventListener("input", () => {
    kept = false;
    count();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault(); // comes only when every required field is filled in
    const text = tsv();
    output.value = text;
    output.hidden = false;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/tab-separated-values" }));
    link.download = `${facts.file}-${field("date").value}.tsv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    kept = true;
  });
  window.addEventListener("beforeunload", (event) => kept || event.preventDefault());
})();
