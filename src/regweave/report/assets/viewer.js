"use strict";

const START = {
  mode: "blend", side: "warped", blend: 0.5, colour: true, second: false, curtain: 0.5, zoom: 1, map: "none",
  strength: 0.5, window: 0, shift: 0, gain: 1, cross: true, grid: false, smooth: true, by: "structure", large: null,
  points: true,
};
const FLICKER_MS = 500;
const ZOOMS = [0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8];
const find = (id) => document.getElementById(id);
const short = (value) => String(+value.toPrecision(3));

class Viewer {
  constructor(data, loaded) {
    this.data = data;
    const { fixed, moving, warped } = data.words;
    this.shownAs = { fixed, moving: `${moving}, before`, warped: `${warped}, after` };
    this.shape = data.shape;
    Object.assign(this, loaded);
    // Where each axis stops: at today's slices, which need not be those of the page, else at voxels.
    this.stops = data.shape.map((n, axis) => (data.contours?.axis === axis ? data.contours.slices : Array.from({ length: n }, (_, k) => k)));
    this.planes = PLANES.map((plane) => {
      const canvas = find(plane.name), slider = find(`slice-${plane.name}`);
      return { ...plane, canvas, slider, output: slider.nextElementSibling, buffer: document.createElement("canvas"),
        figure: canvas.closest("figure"), caption: canvas.closest("figure").querySelector(".what") };
    });
    this.maps = this.makeMaps();
    this.marks = [];
    this.reset();
  }

  reset() {
    const drawn = Object.keys(this.drawn);
    this.shown = new Set(this.data.structures.map((s) => s.code));
    this.bright = null;
    this.state = { ...START, contours: new Set(drawn.filter((name) => name !== "before")) };
    this.position = [...this.data.start];
  }

  makeMaps() {
    const { data } = this, maps = {};
    const jacobian = ramp(SMALL_TO_LARGE);
    jacobian[0] = rgb(FOLD);
    const beyond = (code) => code === 1 || code === 255;
    maps.jacobian = { title: "Jacobian", codes: this.jacobian, colours: jacobian, beyond };
    if (data.limit) maps.limit = { title: "limit of the error", codes: this.limit, colours: [null, ...ramp(LOW_TO_HIGH).slice(1)] };
    if (data.metric) {
      const colours = [null, ...data.metric.members.map((_, n) => rgb(MEMBERS[n % MEMBERS.length]))];
      maps.metric = { title: "deciding metric", codes: this.metric, colours };
      maps.confidence = { title: "confidence", codes: this.confidence, colours: ramp(LOW_TO_HIGH) };
    }
    return maps;
  }

  /** Lower and upper end of the window of an image; both images are shifted and widened alike. */
  window(kind) {
    const [low, high] = this.data.windows[this.state.window][kind], width = high - low;
    const middle = (low + high) / 2 + this.state.shift * width, half = (width / 2) * this.state.gain;
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
    for (const plane of this.planes) {
      if (!plane.figure.hidden) this.drawPlane(plane, a, b, settings, overlay);
    }
    this.showText();
  }

  /** Size the canvases; planes of one width show a millimetre equally large. */
  fit() {
    const [low, high] = this.data.view, { large } = this.state;
    const size = low.map((v, axis) => (high[axis] - v) * this.data.spacing[axis]);
    const ratio = window.devicePixelRatio || 1, tallest = Math.max(300, window.innerHeight * (large ? 0.86 : 0.66));
    for (const plane of this.planes) {
      plane.figure.hidden = large !== null && large !== plane.name;
      plane.figure.classList.toggle("large", large === plane.name);
    }
    const seen = this.planes.filter((plane) => !plane.figure.hidden);
    for (const plane of seen) {
      const alike = seen.filter((other) => other.canvas.clientWidth === plane.canvas.clientWidth);
      const wide = Math.max(...alike.map((p) => size[p.across])), tall = Math.max(...alike.map((p) => size[p.down]));
      const width = Math.max(1, plane.canvas.clientWidth);
      plane.scale = Math.min(width / wide, tallest / tall) * ratio;
      plane.height = Math.max(1, Math.round(plane.scale * tall));
      plane.width = Math.round(width * ratio);
    }
    for (const plane of seen) {
      if (plane.canvas.width !== plane.width) plane.canvas.width = plane.width;
      if (plane.canvas.height !== plane.height) plane.canvas.height = plane.height;
      plane.canvas.style.height = `${plane.height / ratio}px`;
    }
    return ratio;
  }

  /** The map from voxels of a plane to pixels of its canvas, and back. */
  frame(plane) {
    const { spacing, view } = this.data, { width, height } = plane.canvas, zoom = this.state.zoom;
    const su = spacing[plane.across] * plane.scale * zoom, sv = spacing[plane.down] * plane.scale * zoom;
    const sign = plane.up ? -1 : 1;
    const middle = [plane.across, plane.down].map((axis) =>
      (zoom <= 1 ? (view[0][axis] + view[1][axis]) / 2 : this.position[axis]));
    return {
      su, sv,
      place: (u, v) => [width / 2 + (u - middle[0]) * su, height / 2 + sign * (v - middle[1]) * sv],
      voxel: (x, y) => [(x - width / 2) / su + middle[0], (sign * (y - height / 2)) / sv + middle[1]],
    };
  }

  drawPlane(plane, a, b, settings, overlay) {
    const { state } = this, { canvas } = plane;
    const slice = sliceOf(plane, this.shape, this.position);
    const context = canvas.getContext("2d"), frame = this.frame(plane), line = this.ratio;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = "#000";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.imageSmoothingEnabled = state.smooth;
    context.imageSmoothingQuality = "high";
    const paint = (second) => this.paint(context, plane, slice, frame, a, b, { ...settings, second }, overlay);
    paint(state.mode === "curtain" ? false : state.second);
    if (state.mode === "curtain") {
      const edge = state.curtain * canvas.width;
      context.save();
      context.beginPath();
      context.rect(edge, 0, canvas.width - edge, canvas.height);
      context.clip();
      paint(true);
      context.restore();
    }
    if (state.grid) {
      strokePieces(context, gridPieces(this.grid, plane, this.position), frame.place, { colour: "#ffffffa0", width: 0.8 }, line);
    }
    this.drawContours(context, plane, frame, line);
    if (state.points) drawMarks(context, this.marks, plane, this.position, frame, line);
    if (state.cross) drawCross(context, frame.place(this.position[plane.across], this.position[plane.down]), line);
    if (state.mode === "curtain") drawCurtain(context, state.curtain * canvas.width, [this.shownAs.fixed, this.shownAs[this.second]], line);
    drawLetters(context, plane.letters, line);
    drawScale(context, plane.scale * state.zoom, line);
  }

  paint(context, plane, slice, frame, a, b, settings, overlay) {
    const at = this.position[plane.through];
    if (Math.round(at) !== nearest(at, this.shape[plane.through])) return; // a slice beyond the images
    const { buffer } = plane, { spacing } = this.data;
    buffer.width = slice.width;
    buffer.height = slice.height;
    const brush = buffer.getContext("2d");
    const image = brush.createImageData(slice.width, slice.height);
    paintSlice(image.data, slice, a, b, MIXES[settings.mode], settings, [spacing[plane.across], spacing[plane.down]], overlay);
    brush.putImageData(image, 0, 0);
    const [x, y] = frame.place(-0.5, plane.up ? slice.height - 0.5 : -0.5);
    context.save();
    context.translate(x, y + (plane.up ? slice.height * frame.sv : 0));
    context.scale(frame.su, plane.up ? -frame.sv : frame.sv);
    context.drawImage(buffer, 0, 0);
    context.restore();
  }

  drawContours(context, plane, frame, line) {
    const { state, data } = this;
    for (const name of Object.keys(CONTOURS)) {
      if (!(name in this.drawn) || !state.contours.has(name)) continue;
      const lines = [...this.drawn[name].section(plane, this.position, this.shown)].map(([code, pieces]) => {
        const style = { ...CONTOURS[name] };
        if (state.by === "structure") style.colour = data.structures[code - 1].colour;
        if (this.bright === code) style.width *= 1.8;
        else if (this.bright !== null) style.opacity *= 0.45;
        return [pieces, style];
      });
      // All rims come first, so that none hides the line of another structure.
      for (const [pieces, style] of name === "after" ? lines : []) {
        strokePieces(context, pieces, frame.place, { colour: rim(style.colour), width: style.width + 2.2, opacity: 0.8 * style.opacity }, line);
      }
      for (const [pieces, style] of lines) strokePieces(context, pieces, frame.place, style, line);
    }
    for (const { code, points, colour } of data.contours && state.contours.has("after") ? data.structures : []) {
      if (this.shown.has(code)) drawPoints(context, points, plane, this.position, frame, colour, line);
    }
  }

  /** What the planes show, in words. */
  caption() {
    const { mode, second } = this.state, pair = [this.shownAs.fixed, this.shownAs[this.second]];
    if (mode in this.shownAs) return this.shownAs[mode];
    if (mode === "flicker") return `flicker: ${pair[second ? 1 : 0]}`;
    if (mode === "blend" && this.state.colour) return `blend: ${pair[0]} blue | ${pair[1]} orange`;
    return `${mode === "checker" ? "checkerboard" : mode}: ${pair.join(" | ")}`;
  }

  showText() {
    const caption = this.caption();
    for (const plane of this.planes) {
      const at = this.stop(plane.through), n = this.stops[plane.through].length;
      plane.caption.textContent = caption;
      plane.slider.value = at;
      plane.output.textContent = `${at + 1} of ${n}`;
    }
    const list = find("readout");
    list.replaceChildren(...this.facts().map(([name, value]) => {
      const item = document.createElement("div");
      for (const [tag, text] of [["dt", name], ["dd", value]]) {
        item.append(Object.assign(document.createElement(tag), { textContent: text, title: text }));
      }
      return item;
    }));
  }

  /** Place of a position in LPS millimetres. */
  millimetres(position) {
    const { affine } = this.data;
    return [0, 1, 2].map((r) => position.reduce((sum, p, c) => sum + affine[r][c] * p, affine[r][3]));
  }

  /** Name and value of everything at the cross-hair. */
  facts() {
    const { data, position, shape } = this;
    const voxel = position.map((p, axis) => nearest(p, shape[axis]));
    const at = voxel[0] + shape[0] * (voxel[1] + shape[1] * voxel[2]);
    const value = (name, table) => short(data.tables[table][this.images[name][at]]);
    const facts = [
      ["L, P, S in mm", this.millimetres(position).map((v) => v.toFixed(1)).join(", ")],
      [data.words.fixed, value("fixed", "fixed")], [data.words.moving, value("moving", "moving")], [data.words.warped, value("warped", "moving")],
    ];
    const names = (codes) => codes.map((code) => data.structures[code - 1].name).join(", ") || "–";
    for (const [set, drawn] of Object.entries(this.drawn)) facts.push([data.contours ? "structures here" : `structure, ${set}`, names(drawn.at(position))]);
    const code = this.jacobian[at], j = Math.pow(2, data.jacobian.first + data.jacobian.step * code).toFixed(2);
    facts.push(["Jacobian", { 0: "≤ 0, folded", 1: "below ¼", 255: "above 4" }[code] ?? j]);
    if (data.limit) facts.push(["limit of the error", this.limit[at] ? `${(data.limit.first + data.limit.step * this.limit[at]).toFixed(1)} mm` : "unknown"]);
    if (data.metric) {
      const member = this.metric[at];
      facts.push(["deciding metric", member ? `${data.metric.members[member - 1]} (${this.share[at]} %)` : "none"]);
      facts.push(["confidence", (data.confidence.first + data.confidence.step * this.confidence[at]).toPrecision(2)]);
    }
    return facts;
  }

  /** Put the cross-hair on a voxel, inside the volume and on one of today's slices. */
  go(position) {
    this.position = position.map((p, axis) => this.stops[axis][this.stop(axis, p)]);
    this.draw();
  }

  /** Which stop of an axis is nearest to a place. */
  stop(axis, place = this.position[axis]) {
    const stops = this.stops[axis], above = stops.findIndex((stop) => stop > place);
    if (above < 0) return stops.length - 1;
    return above > 0 && place - stops[above - 1] < stops[above] - place ? above - 1 : above;
  }

  move(axis, steps) {
    const to = Math.max(0, Math.min(this.stops[axis].length - 1, this.stop(axis) + steps));
    this.go(this.position.map((p, n) => (n === axis ? this.stops[axis][to] : p)));
  }
}
