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
  const sheet = document.getElementById("sheet");
  const tiles = new Map(Array.from(sheet?.children ?? [], (tile) => [rows[tile.dataset.row], tile]));
  const FLICKER_MS = 450;

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
      if (tiles.has(row)) tiles.get(row).hidden = !seen;
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
    sheet?.append(...order.map(([, i]) => tiles.get(rows[i])).filter(Boolean));
  };
  /** Show fixed and warped in turn, from the two colours of the picture, while the pointer or the focus is there. */
  const flicker = (tile) => {
    const picture = tile.querySelector("img");
    if (!picture) return;
    let timer = null, second = false;
    const stop = () => {
      clearInterval(timer);
      timer = null;
      picture.className = "";
    };
    const start = () => {
      const step = () => {
        second = !second;
        picture.className = second ? "one" : "two";
      };
      stop();
      timer = setInterval(step, FLICKER_MS);
      step();
    };
    for (const name of ["pointerenter", "focus"]) tile.addEventListener(name, start);
    for (const name of ["pointerleave", "blur"]) tile.addEventListener(name, stop);
  };
  for (const tile of tiles.values()) flicker(tile);

  /** Grades by key, of the tile under the pointer or with the focus; exported as one table. */
  const grades = new Map();
  let graded = null;
  for (const tile of tiles.values()) {
    for (const name of ["pointerenter", "focus"]) tile.addEventListener(name, () => { graded = tile; });
  }
  document.addEventListener("keydown", (event) => {
    if (graded === null || !"01234".includes(event.key) || event.ctrlKey || event.metaKey || event.target.closest("input, select")) return;
    grades.set(graded.dataset.id, event.key);
    graded.querySelector(".grade").textContent = event.key;
    document.getElementById("export").disabled = false;
    document.getElementById("graded").textContent = `${grades.size} of ${tiles.size} graded`;
  });
  document.getElementById("export")?.addEventListener("click", () => {
    const lines = ["id\tgrade", ...Array.from(tiles.values()).filter((tile) => grades.has(tile.dataset.id)).map((tile) => `${tile.dataset.id}\t${grades.get(tile.dataset.id)}`)];
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/tab-separated-values" }));
    link.download = "grades.tsv";
    link.click();
    URL.revokeObjectURL(link.href);
  });

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
