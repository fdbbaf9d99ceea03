"use strict";

const NEAR_CURTAIN = 16;

/** What pointers and keys do on a plane: cross-hair, slices, window, curtain, names, enlarging. */
class Pointer {
  constructor(controls, plane) {
    this.controls = controls;
    this.viewer = controls.viewer;
    this.plane = plane;
    this.drag = null;
    const { canvas } = plane, on = (name, f, options) => canvas.addEventListener(name, f.bind(this), options);
    on("pointerdown", this.down);
    on("pointermove", this.moved);
    on("pointerup", this.up);
    on("pointerleave", this.leave);
    on("contextmenu", (event) => event.preventDefault());
    on("dblclick", () => controls.enlarge(plane.name));
    on("wheel", this.wheel, { passive: false });
    on("keydown", this.key);
  }

  /** Voxel of the volume under the pointer, not rounded. */
  voxel(event) {
    const { viewer, plane } = this, box = plane.canvas.getBoundingClientRect(), ratio = plane.canvas.width / box.width;
    const [u, v] = viewer.frame(plane).voxel((event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio);
    const position = [...viewer.position];
    position[plane.across] = u;
    position[plane.down] = v;
    return position;
  }

  onCurtain(event) {
    const { state } = this.viewer, box = this.plane.canvas.getBoundingClientRect();
    return state.mode === "curtain" && Math.abs(event.clientX - box.left - state.curtain * box.width) < NEAR_CURTAIN;
  }

  down(event) {
    const { viewer, plane } = this;
    plane.canvas.setPointerCapture(event.pointerId);
    plane.canvas.focus({ preventScroll: true });
    if (event.button === 2) this.drag = { kind: "window", x: event.clientX, y: event.clientY, ...viewer.state };
    else if (this.onCurtain(event)) this.drag = { kind: "curtain" };
    else if (event.button === 0) {
      this.drag = { kind: "cross" };
      viewer.go(this.voxel(event));
      this.controls.clicked(this.voxel(event));
    }
  }

  moved(event) {
    const { viewer, plane, drag } = this;
    if (!event.buttons || drag === null) {
      plane.canvas.style.cursor = this.onCurtain(event) ? "ew-resize" : "";
      this.name(event);
    } else if (drag.kind === "window") {
      const gain = drag.gain * Math.exp((event.clientX - drag.x) / 200);
      this.controls.set({ gain: Math.max(0.005, Math.min(50, gain)), shift: drag.shift + (event.clientY - drag.y) / 300 });
    } else if (drag.kind === "curtain") {
      const box = plane.canvas.getBoundingClientRect();
      this.controls.set({ curtain: Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)) });
    } else if (viewer.state.zoom <= 1) viewer.go(this.voxel(event)); // with zoom the picture would run away
  }

  up() {
    this.drag = null;
  }

  leave() {
    find("hint").hidden = true;
  }

  /** Name the structures under the pointer. */
  name(event) {
    const { viewer } = this, hint = find("hint"), voxel = this.voxel(event);
    const found = new Map();
    for (const name of viewer.state.contours) {
      for (const code of viewer.drawn[name].at(voxel)) {
        if (viewer.shown.has(code)) found.set(code, [...(found.get(code) ?? []), name]);
      }
    }
    hint.hidden = found.size === 0;
    hint.replaceChildren(...[...found].map(([code, names]) => {
      const { name, colour } = viewer.data.structures[code - 1];
      return swatch(viewer.state.by === "structure" ? colour : "#888888", viewer.data.contours ? name : `${name} (${names.join(", ")})`);
    }));
    const room = document.documentElement.clientWidth - hint.offsetWidth - 8;
    hint.style.left = `${Math.max(0, Math.min(event.clientX + 14, room)) + window.scrollX}px`;
    hint.style.top = `${event.clientY + 16 + window.scrollY}px`;
  }

  wheel(event) {
    event.preventDefault();
    if (event.ctrlKey) this.controls.zoom(event.deltaY < 0 ? 1 : -1);
    else this.viewer.move(this.plane.through, event.deltaY < 0 ? 1 : -1);
  }

  key(event) {
    const { viewer, plane } = this, up = plane.up ? 1 : -1;
    const moves = { ArrowLeft: [plane.across, -1], ArrowRight: [plane.across, 1], ArrowUp: [plane.down, up],
      ArrowDown: [plane.down, -up], PageUp: [plane.through, 1], PageDown: [plane.through, -1] };
    if (event.key in moves) viewer.move(...moves[event.key]);
    else if (event.key === "Home") viewer.go(viewer.data.start);
    else return;
    event.preventDefault();
  }
}
