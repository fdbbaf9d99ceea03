"use strict";

const MARKS = { fixed: "#7dff6a", before: "#ffffff", after: "#ff8c00" };
const NEAR_SLICES = 1.5;

/** Crosses of the landmarks near a plane: upright where the fixed point is, slanted where its partner comes to lie. */
function drawMarks(context, marks, plane, position, frame, line) {
  for (const mark of marks) {
    for (const [kind, colour] of Object.entries(MARKS)) {
      const at = mark[kind];
      if (!at || Math.abs(at[plane.through] - position[plane.through]) > NEAR_SLICES) continue;
      const [x, y] = frame.place(at[plane.across], at[plane.down]), r = 7 * line;
      const arms = kind === "fixed" ? [[1, 0], [0, 1]] : [[0.7, 0.7], [0.7, -0.7]];
      for (const [style, width] of [["#000", 4], [colour, 1.8]]) {
        context.strokeStyle = style;
        context.lineWidth = width * line;
        context.setLineDash(kind === "before" ? [3 * line, 2 * line] : []);
        context.beginPath();
        for (const [dx, dy] of arms) {
          context.moveTo(x - r * dx, y - r * dy);
          context.lineTo(x + r * dx, y + r * dy);
        }
        context.stroke();
      }
      context.setLineDash([]);
      if (kind === "fixed") drawText(context, mark.name, x + 10 * line, y - 9 * line, line, { size: 11, align: "left", colour });
    }
  }
}

/** A file to save. */
function save(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const times = (matrix, point) => [0, 1, 2].map((r) => matrix[r][0] * point[0] + matrix[r][1] * point[1] + matrix[r][2] * point[2] + matrix[r][3]);
const distance = (a, b) => Math.hypot(...a.map((v, n) => v - b[n]));

/** Landmarks of the result, and new ones: click a place in the fixed image, then the same place in the moving one. */
class Landmarks {
  constructor(controls) {
    this.controls = controls;
    this.viewer = controls.viewer;
    this.placed = [];
    this.open = null;
    this.exported = true;
    const { initial, landmarks } = this.viewer.data;
    this.viewer.marks = landmarks;
    for (const button of document.querySelectorAll("[data-landmark]")) {
      button.addEventListener("click", () => this.look(landmarks[+button.dataset.landmark].fixed));
    }
    find("landmarks").hidden = find("landmark-tools").hidden = false;
    find("place").hidden = find("new-point").hidden = initial === null;
    find("no-place").hidden = initial !== null;
    find("new-point").addEventListener("click", () => this.begin());
    find("keep-point").addEventListener("click", () => this.next());
    find("drop-point").addEventListener("click", () => this.end());
    for (const kind of ["fixed", "moving"]) find(`export-${kind}`).addEventListener("click", () => this.save(kind));
    controls.clicked = (voxel) => this.clicked(voxel);
    window.addEventListener("beforeunload", (event) => this.exported || event.preventDefault());
    this.show();
  }

  look(voxel) {
    this.viewer.go(voxel);
    find("viewer").scrollIntoView({ block: "nearest" });
  }

  begin() {
    this.open = { name: `P${this.placed.length + 1}`, kind: "fixed" };
    this.before = { mode: this.viewer.state.mode, side: this.viewer.state.side };
    this.controls.set({ mode: "fixed" });
    find("viewer").scrollIntoView({ block: "nearest" });
    this.show();
  }

  clicked(voxel) {
    if (this.open === null) return;
    this.open[this.open.kind] = voxel;
    this.show();
  }

  /** Go on to the moving image; after it the landmark is complete. */
  next() {
    if (this.open.kind === "fixed") {
      this.open.kind = "moving";
      this.controls.set({ mode: "moving" });
      this.show();
      return;
    }
    const { name, fixed, moving } = this.open;
    this.placed.push({ name, fixed, before: moving });
    this.exported = false;
    this.end();
  }

  end() {
    this.open = null;
    this.controls.set(this.before);
    this.show();
  }

  /** Where a landmark is in either image, and its errors before and, from the grid of the page, after. */
  measure({ fixed, before }) {
    const { viewer } = this, { initial } = viewer.data;
    const at = viewer.millimetres(fixed), partner = times(initial, viewer.millimetres(before));
    const moved = fixed.map((v, axis) => v + displacement(viewer.grid, fixed, axis));
    return { fixed: at, moving: partner, before: distance(times(initial, at), partner),
      after: distance(times(initial, viewer.millimetres(moved)), partner) };
  }

  show() {
    const { viewer, open } = this;
    viewer.marks = [...viewer.data.landmarks, ...this.placed];
    if (open?.fixed) viewer.marks.push({ name: open.name, fixed: open.fixed, before: open.moving });
    const body = find("placed").tBodies[0];
    body.replaceChildren(...this.placed.map((mark, n) => {
      const row = document.createElement("tr"), { fixed, moving, before, after } = this.measure(mark);
      const cell = (text, tag = "td") => row.append(Object.assign(document.createElement(tag), { textContent: text }));
      const button = (text, act) => {
        const made = Object.assign(document.createElement("button"), { type: "button", textContent: text });
        made.addEventListener("click", act);
        row.append(document.createElement("td"));
        row.lastChild.append(made);
      };
      cell(mark.name, "th");
      for (const place of [fixed, moving]) cell(place.map((v) => v.toFixed(1)).join(", "));
      cell(`${before.toFixed(2)} → ${after.toFixed(2)}`);
      button("Go", () => this.look(mark.fixed));
      button("Remove", () => {
        this.placed.splice(n, 1);
        this.show();
      });
      return row;
    }));
    find("placed").hidden = this.placed.length === 0;
    for (const kind of ["fixed", "moving"]) find(`export-${kind}`).disabled = this.placed.length === 0;
    find("new-point").disabled = open !== null;
    find("placing").hidden = open === null;
    if (open !== null) {
      find("place-text").textContent = open.kind === "fixed"
        ? `${open.name}, 1 of 2: click a place that you know again in the fixed image, in any plane.`
        : `${open.name}, 2 of 2: click the same place in the moving image.`;
      find("keep-point").textContent = open.kind === "fixed" ? "Next: moving image" : "Keep landmark";
      find("keep-point").disabled = !open[open.kind];
    }
    viewer.draw();
  }

  /** A list of 3D Slicer, which `--fixed-points` and `--moving-points` read. */
  save(kind) {
    const points = this.placed.map((mark, n) => ({
      id: String(n + 1), label: mark.name, position: this.measure(mark)[kind].map((v) => +v.toFixed(4)), positionStatus: "defined",
    }));
    const list = { type: "Fiducial", coordinateSystem: "LPS", coordinateUnits: "mm", controlPoints: points };
    const schema = this.viewer.data.markups;
    save(`${kind}.mrk.json`, `${JSON.stringify({ "@schema": schema, markups: [list] }, null, 1)}\n`, "application/json");
    this.exported = true;
  }
}
