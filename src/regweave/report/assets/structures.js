"use strict";

/** Structures in the panel and in the table: shown or hidden, one alone, looked up, made bright under the pointer. */
class Structures {
  constructor(controls) {
    this.controls = controls;
    this.viewer = controls.viewer;
    this.rows = new Map(this.viewer.data.structures.map((s) => [String(s.label), s]));
    const each = (selector, act) => {
      for (const element of document.querySelectorAll(selector)) act(element);
    };
    each("[data-show]", (box) => box.addEventListener("change", () => this.show(box.dataset.show, box.checked)));
    each("[data-only]", (button) => button.addEventListener("click", () => this.only(button.dataset.only)));
    each("[data-go]", (button) => {
      const { centre } = this.rows.get(button.dataset.go);
      button.disabled = !centre;
      button.addEventListener("click", () => {
        this.viewer.go(centre);
        find("viewer").scrollIntoView({ block: "nearest" });
      });
    });
    each("[data-structure]", (row) => {
      row.addEventListener("pointerenter", () => this.brighten(this.rows.get(row.dataset.structure)?.code ?? null));
      row.addEventListener("pointerleave", () => this.brighten(null));
    });
    each("[data-all]", (button) => button.addEventListener("click", () => this.all(button.dataset.all === "all")));
  }

  brighten(code) {
    this.viewer.bright = code;
    this.viewer.draw();
  }

  show(label, on) {
    const { code } = this.rows.get(label);
    if (on) this.viewer.shown.add(code);
    else this.viewer.shown.delete(code);
    this.controls.update();
  }

  /** Show one structure alone and go there; again, all of them. */
  only(label) {
    const { shown } = this.viewer, { code, centre } = this.rows.get(label);
    if (shown.size === 1 && shown.has(code)) {
      this.all();
      return;
    }
    this.viewer.shown = new Set([code]);
    if (centre) this.viewer.position = [...centre];
    this.controls.update();
  }

  all(on = true) {
    this.viewer.shown = new Set(on ? this.viewer.data.structures.map((s) => s.code) : []);
    this.controls.update();
  }

  update() {
    const { shown } = this.viewer;
    for (const box of document.querySelectorAll("[data-show]")) box.checked = shown.has(this.rows.get(box.dataset.show).code);
    for (const button of document.querySelectorAll("[data-only]")) {
      const { code } = this.rows.get(button.dataset.only);
      button.setAttribute("aria-pressed", String(shown.size === 1 && shown.has(code)));
    }
  }
}
