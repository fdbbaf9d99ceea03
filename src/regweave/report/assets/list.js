"use strict";
(() => {
  const table = document.getElementById("rows");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const heads = Array.from(table.tHead.rows[0].cells);
  const find = document.getElementById("find");
  const method = document.getElementById("method");
  const mark = document.getElementById("mark");
  const count = document.getElementById("count");

  const marked = (row) => {
    const marks = row.dataset.marks.split(" ");
    if (mark.value === "") return true;
    return marks.includes(mark.value);
  };
  const show = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let n = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const seen = marked(row) && (!method || method.value === "" || row.dataset.method === method.value)
        && words.every((word) => text.includes(word));
      row.hidden = !seen;
      n += seen;
    }
    count.textContent = `${n} of ${rows.length} shown`;
  };

  const key = (row, column, kind) => {
    const cell = row.cells[column];
    return kind === "number" ? cell.dataset.value : cell.textContent;
  };
  const compare = (a, b, kind) => kind === "number" ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true });
  const sort = (column) => {
    const head = heads[column];
    const falling = head.getAttribute("aria-sort") === "ascending";
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const kind = head.dataset.kind;
    const order = rows.map((row, i) => [key(row, column, kind), i]);
    order.sort(([a, i], [b, j]) => {
      if (a === "" || b === "") return (a === "") - (b === "") || i - j;
      return (falling ? -1 : 1) * compare(a, b, kind) || i - j;
    });
    body.append(...order.map(([, i]) => rows[i]));
  };

  heads.forEach((head, i) => head.querySelector("button")?.addEventListener("click", () => sort(i)));
  find.addEventListener("input", show);
  method?.addEventListener("change", show);
  mark.addEventListener("change", show);
  document.getElementById("reset").addEventListener("click", () => {
    find.value = mark.value = "";
    if (method) method.value = "";
    show();
    find.focus();
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea");
    if (event.key === "/" && !typing) {
      event.preventDefault();
      find.focus();
    } else if (event.key === "Escape" && event.target === find) {
      find.value = "";
      show();
    }
  });
  show();
})();
