"use strict";

const SWITCHES = ["grid", "cross", "smooth", "colour", "points"];

/** Connects the buttons, sliders and keys with a viewer. */
class Controls {
  constructor(viewer) {
    this.viewer = viewer;
    this.timer = null;
    this.clicked = () => {};
    this.fill();
    this.buttons();
    this.inputs();
    for (const plane of viewer.planes) {
      new Pointer(this, plane);
      plane.slider.addEventListener("input", (event) => viewer.move(plane.through, event.target.value - viewer.stop(plane.through)));
      plane.figure.querySelector(".enlarge").addEventListener("click", () => this.enlarge(plane.name));
    }
    this.structures = new Structures(this);
    document.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => requestAnimationFrame(() => viewer.draw())).observe(document.querySelector(".planes"));
    this.update();
  }

  fill() {
    const { data, maps, drawn, planes, stops } = this.viewer;
    data.windows.forEach((w, n) => find("window").add(new Option(w.name, n)));
    for (const [name, map] of Object.entries(maps)) find("map").add(new Option(map.title, name));
    for (const name of Object.keys(CONTOURS)) {
      if (!(name in drawn)) find(`contour-${name}`).closest("label").hidden = true;
    }
    find("contour-tools").hidden = Object.keys(drawn).length === 0;
    for (const plane of planes) {
      plane.slider.min = 0;
      plane.slider.max = stops[plane.through].length - 1;
    }
  }

  set(changes) {
    Object.assign(this.viewer.state, changes);
    this.update();
  }

  /** Show the state on the controls, and draw. */
  update() {
    const { viewer } = this, { state } = viewer;
    for (const key of ["mode", "side"]) {
      for (const button of document.querySelectorAll(`[data-${key}]`)) button.setAttribute("aria-pressed", button.dataset[key] === state[key]);
    }
    for (const name of Object.keys(CONTOURS)) find(`contour-${name}`).checked = state.contours.has(name);
    for (const name of SWITCHES) find(name).checked = state[name];
    for (const name of ["map", "window", "by"]) find(name).value = state[name];
    find("blend").value = 100 * state.blend;
    find("blend-tools").classList.toggle("off", state.mode !== "blend");
    find("strength").value = 100 * state.strength;
    find("strength").closest("label").classList.toggle("off", state.map === "none");
    find("zoom").textContent = `${state.zoom}×`;
    find("viewer").classList.toggle("by-structure", state.by === "structure");
    const [low, high] = viewer.window("fixed");
    if (document.activeElement !== find("width")) find("width").value = short(high - low);
    if (document.activeElement !== find("level")) find("level").value = short((high + low) / 2);
    for (const plane of viewer.planes) {
      plane.figure.querySelector(".enlarge").setAttribute("aria-pressed", state.large === plane.name);
    }
    this.structures?.update();
    this.flicker(state.mode === "flicker");
    this.legend();
    viewer.draw();
  }

  flicker(on) {
    if (on === (this.timer !== null)) return;
    clearInterval(this.timer);
    this.timer = on ? setInterval(() => {
      this.viewer.state.second = !this.viewer.state.second;
      this.viewer.draw();
    }, FLICKER_MS) : null;
  }

  buttons() {
    for (const key of ["mode", "side"]) {
      for (const button of document.querySelectorAll(`[data-${key}]`)) {
        button.addEventListener("click", () => this.set({ [key]: button.dataset[key] }));
      }
    }
    find("zoom-in").addEventListener("click", () => this.zoom(1));
    find("zoom-out").addEventListener("click", () => this.zoom(-1));
    find("keys").addEventListener("click", () => this.help());
    find("reset").addEventListener("click", () => {
      this.viewer.reset();
      this.update();
    });
  }

  inputs() {
    find("blend").addEventListener("input", (e) => this.set({ blend: e.target.value / 100, mode: "blend" }));
    find("strength").addEventListener("input", (e) => this.set({ strength: e.target.value / 100 }));
    for (const name of SWITCHES) find(name).addEventListener("change", (e) => this.set({ [name]: e.target.checked }));
    find("window").addEventListener("change", (e) => this.set({ window: +e.target.value, shift: 0, gain: 1 }));
    for (const name of ["map", "by"]) find(name).addEventListener("change", (e) => this.set({ [name]: e.target.value }));
    for (const name of Object.keys(CONTOURS)) find(`contour-${name}`).addEventListener("change", () => this.contour(name));
    find("width").addEventListener("input", (e) => this.typed({ width: +e.target.value }));
    find("level").addEventListener("input", (e) => this.typed({ level: e.target.value === "" ? NaN : +e.target.value }));
  }

  /** Take a width or level of the window of the fixed image that was typed; the moving one changes in proportion. */
  typed({ width, level }) {
    const [low, high] = this.viewer.data.windows[this.viewer.state.window].fixed;
    if (width > 0) this.set({ gain: width / (high - low) });
    if (Number.isFinite(level)) this.set({ shift: (level - (low + high) / 2) / (high - low) });
  }

  contour(name) {
    const { contours } = this.viewer.state;
    if (!(name in this.viewer.drawn)) return;
    if (!contours.delete(name)) contours.add(name);
    this.update();
  }

  zoom(step) {
    const place = ZOOMS.indexOf(this.viewer.state.zoom) + step;
    this.set({ zoom: ZOOMS[Math.max(0, Math.min(ZOOMS.length - 1, place))] });
  }

  /** Give all the room to one plane, or back to three. */
  enlarge(name) {
    this.set({ large: this.viewer.state.large === null ? name : null });
    if (this.viewer.state.large !== null) find(name).focus({ preventScroll: true });
    find("viewer").scrollIntoView({ block: "nearest" });
  }

  help() {
    const help = find("key-help");
    help.hidden = !help.hidden;
    find("keys").setAttribute("aria-expanded", String(!help.hidden));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([type=range]):not([type=checkbox]), textarea, select")) return;
    const { state, maps } = this.viewer;
    const mode = (name) => () => this.set({ mode: name });
    const map = (name) => () => name in maps || name === "none" ? this.set({ map: state.map === name ? "none" : name }) : null;
    const toggle = (name) => () => this.set({ [name]: !state[name] });
    const focused = this.viewer.planes.find((plane) => plane.canvas === document.activeElement)?.name ?? "axial";
    const actions = {
      f: mode("fixed"), m: mode("moving"), w: mode("warped"), b: mode("blend"), s: mode("curtain"), k: mode("flicker"),
      c: mode("checker"), d: mode("difference"), p: () => this.set({ side: state.side === "warped" ? "moving" : "warped" }),
      1: () => this.contour("fixed"), 2: () => this.contour("before"), 3: () => this.contour("after"),
      g: toggle("grid"), l: toggle("points"), x: toggle("cross"), o: toggle("colour"), j: map("jacobian"), e: map("metric"), u: map("confidence"), i: map("limit"),
      n: map("none"), z: () => this.enlarge(focused), a: () => this.structures.all(),
      "+": () => this.zoom(1), "=": () => this.zoom(1), "-": () => this.zoom(-1), "?": () => this.help(),
      Escape: () => state.large !== null && this.enlarge(state.large),
    };
    if (event.key in actions) {
      actions[event.key]();
      event.preventDefault();
    }
  }

  /** What the colours of the map mean. */
  legend() {
    const { state, data } = this.viewer, legend = find("legend");
    const bars = {
      jacobian: () => [bar(SMALL_TO_LARGE), "¼", "½", "equal volume", "2", "4"],
      limit: () => [bar(LOW_TO_HIGH), "0 mm", `${(data.limit.first + 255 * data.limit.step).toPrecision(2)} mm or more`],
      confidence: () => [bar(LOW_TO_HIGH), "0, a tie", `${(data.confidence.first + 255 * data.confidence.step).toPrecision(2)} or more: clear`],
    };
    legend.replaceChildren();
    if (state.map in bars) {
      const [picture, ...words] = bars[state.map]();
      const scale = document.createElement("div");
      scale.className = "scale";
      scale.append(...words.map((word) => Object.assign(document.createElement("span"), { textContent: word })));
      const box = document.createElement("div");
      box.className = "bar";
      box.append(picture, scale);
      legend.append(box);
      if (state.map === "jacobian") legend.append(swatch(FOLD, "fold (J ≤ 0)"), "hatched: beyond the scale · volume in the moving image, relative to the fixed one");
      if (state.map === "limit") legend.append("nine in ten errors should be smaller · an error that all repetitions share is not seen: compare the images");
    } else if (state.map === "metric") {
      legend.append(...data.metric.members.map((name, n) =>
        swatch(MEMBERS[n % MEMBERS.length], `${name} ${(100 * data.metric.parts[n]).toFixed(0)} %`)));
    }
  }
}

function bar(stops) {
  const canvas = document.createElement("canvas"), colours = ramp(stops);
  canvas.width = 256;
  canvas.height = 1;
  const context = canvas.getContext("2d");
  colours.forEach((c, n) => {
    context.fillStyle = `rgb(${c.join(" ")})`;
    context.fillRect(n, 0, 1, 1);
  });
  return canvas;
}

function swatch(colour, text) {
  const item = document.createElement("span"), square = document.createElement("i");
  item.className = "swatch";
  square.style.background = colour;
  item.append(square, text);
  return item;
}
