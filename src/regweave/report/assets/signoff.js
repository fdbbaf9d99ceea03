"use strict";

(() => {
  const form = document.getElementById("signoff");
  const facts = JSON.parse(document.getElementById("signoff-data").textContent);
  /** One cell: no tabs or line ends, and nothing that a spreadsheet would run as a formula. */
  const cell = (value) => {
    const text = String(value ?? "").replace(/[\t\r\n]+/g, " ").trim();
    return /^[=+@-]/.test(text) ? `'${text}` : text;
  };
  const tsv = () => {
    const field = (name) => form.elements.namedItem(name).value;
    const header = ["structure", "label", "grade", "dice_after", "reviewer", "date", "comment", ...Object.keys(facts.record)];
    const rows = facts.structures.map((s, n) => [
      s.name, s.label, field(`grade-${n}`), s.dice_after, field("reviewer"), field("date"), field("comment"),
      ...Object.values(facts.record),
    ]);
    return [header, ...rows].map((row) => row.map(cell).join("\t")).join("\n") + "\n";
  };
  const output = document.getElementById("tsv");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = tsv();
    output.value = text;
    output.hidden = false;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/tab-separated-values" }));
    link.download = facts.file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
})();
