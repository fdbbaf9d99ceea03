"use strict";

/** Tables of the class sortable: a click on a heading sorts, a field filters. */
(() => {
  const compare = (a, b, kind) => (kind === "number" ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true }));

  function sort(table, head) {
    const column = head.cellIndex, { kind } = head.dataset, body = table.tBodies[0];
    const falling = head.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const value = (row) => (kind === "number" ? row.cells[column]?.dataset.value ?? "" : row.cells[column]?.textContent.trim() ?? "");
    const rows = [...body.rows].map((row, n) => [value(row), n, row]);
    rows.sort(([a, i], [b, j]) => (a === "" || b === ""
      ? (a === "") - (b === "") || i - j : (falling ? -1 : 1) * compare(a, b, kind) || i - j));
    body.append(...rows.map(([, , row]) => row));
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    for (const head of table.tHead.rows[0].cells) {
      if (!head.dataset.kind) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...[...head.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE));
      head.prepend(button);
      button.addEventListener("click", () => sort(table, head));
    }
  }
  for (const field of document.querySelectorAll("[data-filter]")) {
    field.closest(".filter").hidden = false;
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of document.getElementById(field.dataset.filter).tBodies[0].rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
    });
  }
  // An explanation opens beside its mark, also in a box that scrolls, follows it, and closes when something else is clicked.
  const place = (help) => {
    const mark = help.getBoundingClientRect(), { style, offsetWidth } = help.querySelector("p");
    style.position = "fixed";
    style.right = "auto";
    style.width = "min(340px, 90vw)";
    style.top = `${mark.bottom + 2}px`;
    style.left = `${Math.max(8, Math.min(mark.left, document.documentElement.clientWidth - Math.max(offsetWidth, 340) - 8))}px`;
  };
  const opened = () => document.querySelectorAll(".help[open]");
  for (const help of document.querySelectorAll(".help")) help.addEventListener("toggle", () => place(help));
  document.addEventListener("click", (event) => {
    for (const help of opened()) if (!help.contains(event.target)) help.open = false;
  });
  document.addEventListener("scroll", () => opened().forEach(place), true);
})();
