"use strict";

const START = {
  mode: "blend", side: "warped", blend: 0.5, second: false, zoom: 1, map: "none", strength: 0.5, window: 0,
  brightness: 0, contrast: 0, cross: true, grid: false, smooth: true,
};
const FLICKER_MS = 500;
const ZOOMS = [1, 1.5, 2, 3, 4, 6, 8];
const find = (id) => document.getElementById(id);

class Viewer {
  constructor(data, loaded) {
    this.data = data;
    this.shape = data.shape;
    Object.assign(this, loaded);
    this.shown = new Set(data.structures.map((s) => s.code));
    this.planes = PLANES.map((plane) => {
      const canvas = find(plane.name), slider = find(`slice-${plane.name}`);
      return { ...plane, canvas, slider, output: slider.nextElementSibling, buffer: document.createElement("canvas"),
        caption: canvas.closest("figure").querySelector(".what") };
    });
    this.maps = this.makeMaps();
    this.reset();
  }

  reset() {
    const labels = Object.keys(this.labels);
    this.state = { ...START, contours: new Set(labels.filter((name) => name !== "before")) };
    this.position = [...this.data.start];
  }

  makeMaps() {
    const { data } = this, maps = {};
    const jacobian = ramp(SMALL_TO_LARGE);
    jacobian[0] = rgb(FOLD);
    maps.jacobian = { title: "Jacobian", codes: this.jacobian, colours: jacobian };
    if (data.metric) {
      const colours = [null, ...data.metric.members.map((_, n) => rgb(MEMBERS[n % MEMBERS.length]))];
      maps.metric = { title: "deciding metric", codes: this.metric, colours };
      maps.confidence = { title: "confidence", codes: this.confidence, colours: ramp(LOW_TO_HIGH) };
    }
    return maps;
  }

  window(kind) {
    const [low, high] = this.data.windows[this.state.window][kind];
    const middle = (low + high) / 2 - (this.state.brightness / 100) * (high - low);
    const half = ((high - low) / 2) * Math.pow(4, -this.state.contrast / 100);
    return [middle - half, middle + half];
  }

  /** Name of the second image: the one that a view of one image asks for, else the chosen side. */
  get second() {
    return this.state.mode === "moving" || this.state.mode === "warped" ? this.state.mode : this.state.side;
  }

  draw() {
    const { state, data } = this;
    this.ratio = this.fit();
    const grey = { fixed: greys(data.tables.fixed, this.window("fixed")), other: greys(data.tables.moving, this.window("moving")) };
    const a = { codes: this.images.fixed, grey: grey.fixed };
    const b = { codes: this.images[this.second], grey: grey.other };
    const map = this.maps[state.map];
    const overlay = map && { ...map, strength: state.strength };
    const settings = { ...state, tile: data.tile };
    for (const plane of this.planes) this.drawPlane(plane, a, b, settings, overlay);
    this.showText();
  }

  /** Size the canvases; planes of one width show a millimetre equally large. */
  fit() {
    const size = this.shape.map((n, axis) => n * this.data.spacing[axis]);
    const ratio = window.devicePixelRatio || 1, tallest = Math.max(300, window.innerHeight * 0.72);
    for (const plane of this.planes) {
      const alike = this.planes.filter((other) => other.canvas.clientWidth === plane.canvas.clientWidth);
      const wide = Math.max(...alike.map((p) => size[p.across])), tall = Math.max(...alike.map((p) => size[p.down]));
      const width = Math.max(1, plane.canvas.clientWidth);
      plane.scale = Math.min(width / wide, tallest / tall) * ratio;
      plane.height = Math.max(1, Math.round(plane.scale * tall));
      plane.width = Math.round(width * ratio);
    }
    for (const plane of this.planes) {
      if (plane.canvas.width !== plane.width) plane.canvas.width = plane.width;
      if (plane.canvas.height !== plane.height) plane.canvas.height = plane.height;
      plane.canvas.style.height = `${plane.height / ratio}px`;
    }
    return ratio;
  }

  /** The map from voxels of a plane to pixels of its canvas, and back. */
  frame(plane) {
    const { spacing } = this.data, { width, height } = plane.canvas, zoom = this.state.zoom;
    const su = spacing[plane.across] * plane.scale * zoom, sv = spacing[plane.down] * plane.scale * zoom;
    const sign = plane.up ? -1 : 1;
    const middle = zoom === 1
      ? [(this.shape[plane.across] - 1) / 2, (this.shape[plane.down] - 1) / 2]
      : [this.position[plane.across], this.position[plane.down]];
    return {
      su, sv,
      place: (u, v) => [width / 2 + (u - middle[0]) * su, height / 2 + sign * (v - middle[1]) * sv],
      voxel: (x, y) => [(x - width / 2) / su + middle[0], (sign * (y - height / 2)) / sv + middle[1]],
    };
  }

  drawPlane(plane, a, b, settings, overlay) {
    const { state, data } = this;
    const slice = sliceOf(plane, this.shape, this.position);
    const { buffer, canvas } = plane;
    buffer.width = slice.width;
    buffer.height = slice.height;
    const brush = buffer.getContext("2d");
    const image = brush.createImageData(slice.width, slice.height);
    const spacing = [data.spacing[plane.across], data.spacing[plane.down]];
    paintSlice(image.data, slice, a, b, MIXES[state.mode], settings, spacing, overlay);
    brush.putImageData(image, 0, 0);

    const context = canvas.getContext("2d"), frame = this.frame(plane), line = this.ratio;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = "#000";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.imageSmoothingEnabled = state.smooth;
    context.imageSmoothingQuality = "high";
    const [x, y] = frame.place(-0.5, plane.up ? slice.height - 0.5 : -0.5);
    context.save();
    context.translate(x, y + (plane.up ? slice.height * frame.sv : 0));
    context.scale(frame.su, plane.up ? -frame.sv : frame.sv);
    context.drawImage(buffer, 0, 0);
    context.restore();
    if (state.grid) {
      strokePieces(context, gridPieces(this.grid, plane, this.position), frame.place, { colour: "#ffffffa0", dash: [] }, 0.5 * line);
    }
    for (const name of Object.keys(this.labels)) {
      if (state.contours.has(name)) {
        strokePieces(context, outlines(this.labels[name], slice, this.shown), frame.place, CONTOURS[name], line);
      }
    }
    if (state.cross) this.drawCross(context, plane, frame, line);
    this.drawLetters(context, plane, line);
    this.drawScale(context, plane, line);
  }

  drawCross(context, plane, frame, line) {
    const [x, y] = frame.place(this.position[plane.across], this.position[plane.down]);
    const gap = 9 * line, { width, height } = plane.canvas;
    context.strokeStyle = "#7dff6a";
    context.lineWidth = line;
    context.beginPath();
    for (const [x0, y0, x1, y1] of [[0, y, x - gap, y], [x + gap, y, width, y], [x, 0, x, y - gap], [x, y + gap, x, height]]) {
      context.moveTo(x0, y0);
      context.lineTo(x1, y1);
    }
    context.stroke();
  }

  drawLetters(context, plane, line) {
    const { width, height } = plane.canvas, edge = 11 * line;
    const places = [[edge, height / 2], [width - edge, height / 2], [width / 2, edge], [width / 2, height - edge]];
    context.font = `600 ${14 * line}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineWidth = 3 * line;
    context.strokeStyle = "#000";
    context.fillStyle = "#fff";
    plane.letters.forEach((letter, n) => {
      context.strokeText(letter, ...places[n]);
      context.fillText(letter, ...places[n]);
    });
  }

  /** A bar of 1, 2, 5, 10, … mm, about a fifth of the width. */
  drawScale(context, plane, line) {
    const { width, height } = plane.canvas, pixels = plane.scale * this.state.zoom;
    const wanted = width / pixels / 5, power = Math.pow(10, Math.floor(Math.log10(wanted)));
    const mm = power * [5, 2, 1].find((n) => n * power <= wanted);
    const x = width - 12 * line, y = height - 12 * line;
    for (const [colour, thick] of [["#000", 4], ["#fff", 2]]) {
      context.strokeStyle = colour;
      context.lineWidth = thick * line;
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(x - mm * pixels, y);
      context.stroke();
    }
    context.font = `${12 * line}px system-ui, sans-serif`;
    context.textAlign = "right";
    context.lineWidth = 3 * line;
    context.strokeStyle = "#000";
    context.strokeText(`${mm} mm`, x, y - 10 * line);
    context.fillText(`${mm} mm`, x, y - 10 * line);
  }

  /** What the planes show, in words. */
  caption() {
    const names = { fixed: "fixed", moving: "moving, before", warped: "warped, after" };
    const { mode, second } = this.state, pair = [names.fixed, names[this.second]];
    if (mode in names) return names[mode];
    if (mode === "flicker") return `flicker: ${pair[second ? 1 : 0]}`;
    return `${mode === "checker" ? "checkerboard" : mode}: ${pair.join(" | ")}`;
  }

  showText() {
    const caption = this.caption();
    for (const plane of this.planes) {
      const at = this.position[plane.through], n = this.shape[plane.through];
      plane.caption.textContent = caption;
      plane.slider.value = at;
      plane.output.textContent = `${at + 1} of ${n}`;
    }
    const list = find("readout");
    list.replaceChildren(...this.facts().map(([name, value]) => {
      const item = document.createElement("div");
      for (const [tag, text] of [["dt", name], ["dd", value]]) {
        item.append(Object.assign(document.createElement(tag), { textContent: text }));
      }
      return item;
    }));
  }

  /** Name and value of everything at the cross-hair. */
  facts() {
    const { data, position, shape } = this;
    const at = position[0] + shape[0] * (position[1] + shape[1] * position[2]);
    const mm = [0, 1, 2].map((r) => position.reduce((sum, p, c) => sum + data.affine[r][c] * p, data.affine[r][3]));
    const value = (name, table) => String(+data.tables[table][this.images[name][at]].toPrecision(3));
    const facts = [
      ["L, P, S in mm", mm.map((v) => v.toFixed(1)).join(", ")],
      ["fixed", value("fixed", "fixed")], ["moving", value("moving", "moving")], ["warped", value("warped", "moving")],
    ];
    const name = (code) => (code ? data.structures[code - 1].name : "–");
    for (const [set, labels] of Object.entries(this.labels)) facts.push([`structure, ${set}`, name(labels[at])]);
    const code = this.jacobian[at];
    facts.push(["Jacobian", code ? Math.pow(2, data.jacobian.first + data.jacobian.step * code).toFixed(2) : "≤ 0, folded"]);
    if (data.metric) {
      const member = this.metric[at];
      facts.push(["deciding metric", member ? `${data.metric.members[member - 1]} (${this.share[at]} %)` : "none"]);
      facts.push(["confidence", (data.confidence.first + data.confidence.step * this.confidence[at]).toPrecision(2)]);
    }
    return facts;
  }

  /** Put the cross-hair on a voxel, inside the volume. */
  go(position) {
    this.position = position.map((p, axis) => Math.max(0, Math.min(this.shape[axis] - 1, Math.round(p))));
    this.draw();
  }

  move(axis, steps) {
    this.go(this.position.map((p, n) => (n === axis ? p + steps : p)));
  }
}
