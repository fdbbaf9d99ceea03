"use strict";

/** Connects the buttons, sliders, keys and pointers with a viewer. */
class Controls {
  constructor(viewer) {
    this.viewer = viewer;
    this.timer = null;
    this.fill();
    this.buttons();
    this.inputs();
    viewer.planes.forEach((plane) => this.plane(plane));
    this.structures();
    document.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => requestAnimationFrame(() => viewer.draw())).observe(document.querySelector(".planes"));
    this.update();
  }

  fill() {
    const { data, maps, labels, planes, shape } = this.viewer;
    data.windows.forEach((w, n) => find("window").add(new Option(w.name, n)));
    for (const [name, map] of Object.entries(maps)) find("map").add(new Option(map.title, name));
    for (const name of Object.keys(CONTOURS)) {
      if (!(name in labels)) find(`contour-${name}`).closest("label").hidden = true;
    }
    find("contour-tools").hidden = Object.keys(labels).length === 0;
    for (const plane of planes) {
      plane.slider.min = 0;
      plane.slider.max = shape[plane.through] - 1;
    }
  }

  set(changes) {
    Object.assign(this.viewer.state, changes);
    this.update();
  }

  /** Show the state on the controls, and draw. */
  update() {
    const { state } = this.viewer;
    for (const button of document.querySelectorAll("[data-mode]")) button.setAttribute("aria-pressed", button.dataset.mode === state.mode);
    for (const button of document.querySelectorAll("[data-side]")) button.setAttribute("aria-pressed", button.dataset.side === state.side);
    for (const name of Object.keys(CONTOURS)) find(`contour-${name}`).checked = state.contours.has(name);
    for (const name of ["grid", "cross", "smooth"]) find(name).checked = state[name];
    for (const name of ["map", "window", "brightness", "contrast"]) find(name).value = state[name];
    find("blend").value = 100 * state.blend;
    find("strength").value = 100 * state.strength;
    find("zoom").textContent = `${state.zoom}×`;
    this.flicker(state.mode === "flicker");
    this.legend();
    this.viewer.draw();
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
    for (const button of document.querySelectorAll("[data-mode]")) {
      button.addEventListener("click", () => this.set({ mode: button.dataset.mode }));
    }
    for (const button of document.querySelectorAll("[data-side]")) {
      button.addEventListener("click", () => this.set({ side: button.dataset.side }));
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
    for (const name of ["brightness", "contrast"]) find(name).addEventListener("input", (e) => this.set({ [name]: +e.target.value }));
    for (const name of ["grid", "cross", "smooth"]) find(name).addEventListener("change", (e) => this.set({ [name]: e.target.checked }));
    find("window").addEventListener("change", (e) => this.set({ window: +e.target.value, brightness: 0, contrast: 0 }));
    find("map").addEventListener("change", (e) => this.set({ map: e.target.value }));
    for (const name of Object.keys(CONTOURS)) find(`contour-${name}`).addEventListener("change", () => this.contour(name));
  }

  contour(name) {
    const { contours } = this.viewer.state;
    if (!(name in this.viewer.labels)) return;
    if (!contours.delete(name)) contours.add(name);
    this.update();
  }

  zoom(step) {
    const place = ZOOMS.indexOf(this.viewer.state.zoom) + step;
    this.set({ zoom: ZOOMS[Math.max(0, Math.min(ZOOMS.length - 1, place))] });
  }

  help() {
    const help = find("key-help");
    help.hidden = !help.hidden;
    find("keys").setAttribute("aria-expanded", String(!help.hidden));
  }

  plane(plane) {
    const { viewer } = this, { canvas } = plane;
    const point = (event) => {
      const box = canvas.getBoundingClientRect(), ratio = canvas.width / box.width;
      const [u, v] = viewer.frame(plane).voxel((event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio);
      const position = [...viewer.position];
      position[plane.across] = u;
      position[plane.down] = v;
      viewer.go(position);
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      canvas.focus();
      point(event);
    });
    canvas.addEventListener("pointermove", (event) => {
      // With zoom the picture moves under the pointer, and a drag would run away.
      if (event.buttons && viewer.state.zoom === 1) point(event);
    });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      viewer.move(plane.through, event.deltaY < 0 ? 1 : -1);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const up = plane.up ? 1 : -1;
      const moves = { ArrowLeft: [plane.across, -1], ArrowRight: [plane.across, 1], ArrowUp: [plane.down, up],
        ArrowDown: [plane.down, -up], PageUp: [plane.through, 1], PageDown: [plane.through, -1] };
      if (event.key in moves) viewer.move(...moves[event.key]);
      else if (event.key === "Home") viewer.go(viewer.data.start);
      else return;
      event.preventDefault();
    });
    plane.slider.addEventListener("input", (event) => viewer.move(plane.through, event.target.value - viewer.position[plane.through]));
  }

  structures() {
    const { viewer } = this;
    const codes = new Map(viewer.data.structures.map((s) => [String(s.label), s]));
    for (const box of document.querySelectorAll("[data-show]")) {
      box.addEventListener("change", () => {
        const { code } = codes.get(box.dataset.show);
        if (box.checked) viewer.shown.add(code);
        else viewer.shown.delete(code);
        viewer.draw();
      });
    }
    for (const button of document.querySelectorAll("[data-go]")) {
      const { centre } = codes.get(button.dataset.go);
      button.disabled = !centre;
      button.addEventListener("click", () => {
        viewer.go(centre);
        find("viewer").scrollIntoView({ block: "nearest" });
      });
    }
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([type=range]):not([type=checkbox]), textarea, select")) return;
    const { state, maps } = this.viewer;
    const mode = (name) => () => this.set({ mode: name });
    const map = (name) => () => name in maps || name === "none" ? this.set({ map: state.map === name ? "none" : name }) : null;
    const toggle = (name) => () => this.set({ [name]: !state[name] });
    const actions = {
      f: mode("fixed"), m: mode("moving"), w: mode("warped"), b: mode("blend"), k: mode("flicker"), c: mode("checker"),
      d: mode("difference"), p: () => this.set({ side: state.side === "warped" ? "moving" : "warped" }),
      1: () => this.contour("fixed"), 2: () => this.contour("before"), 3: () => this.contour("after"),
      g: toggle("grid"), x: toggle("cross"), j: map("jacobian"), e: map("metric"), u: map("confidence"), n: map("none"),
      "+": () => this.zoom(1), "=": () => this.zoom(1), "-": () => this.zoom(-1), "?": () => this.help(),
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
      if (state.map === "jacobian") legend.append(swatch(FOLD, "fold (J ≤ 0)"), "volume in the moving image, relative to the fixed one");
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

/** Unpack the volumes and start; where the browser cannot, the pictures stay and the page says why. */
async function start() {
  const data = JSON.parse(find("view-data").textContent);
  const all = async (items) => Object.fromEntries(await Promise.all(Object.entries(items).map(async ([k, v]) => [k, await unpack(v)])));
  const loaded = { images: await all(data.images), labels: await all(data.labels), jacobian: await unpack(data.jacobian) };
  loaded.grid = { ...data.grid, values: await unpack(data.grid) };
  if (data.metric) {
    loaded.metric = await unpack(data.metric);
    loaded.share = await unpack(data.metric.share);
    loaded.confidence = await unpack(data.confidence);
  }
  find("viewer").hidden = false;
  new Controls(new Viewer(data, loaded));
  find("pictures").classList.add("spare");
  document.documentElement.dataset.viewer = "ready";
}

start().catch((error) => {
  find("viewer").hidden = true;
  find("pictures").classList.remove("spare");
  const note = find("viewer-note");
  note.hidden = false;
  note.textContent = `This browser cannot run the viewer (${error.message}); the pictures show the middle planes.`;
  document.documentElement.dataset.viewer = "failed";
});
