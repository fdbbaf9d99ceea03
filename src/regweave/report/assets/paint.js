"use strict";

// The fixed outline is wide and lets the image through, the warped one thin above it: where both agree both are seen.
const CONTOURS = {
  fixed: { colour: "#27d3f5", dash: [], width: 4, opacity: 0.55 },
  before: { colour: "#ffffff", dash: [5, 4], width: 1.4, opacity: 1 },
  after: { colour: "#ff8c00", dash: [], width: 1.6, opacity: 1 },
};
const MEMBERS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#8c6bb1", "#b2df8a",
  "#a6761d", "#fb9a99", "#66c2a5"];
const SMALL_TO_LARGE = ["#1f4fd8", "#7fb2ff", "#d9d9d9", "#ff9b73", "#c81e1e"];
const LOW_TO_HIGH = ["#30123b", "#365c8d", "#1f9e89", "#7ad151", "#fde725"];
const FOLD = "#fff200";

const rgb = (hex) => [1, 3, 5].map((n) => parseInt(hex.slice(n, n + 2), 16));

/** Colour of the rim of a line, so that it is seen on air and on bone. */
const rim = (hex) => (rgb(hex).reduce((sum, v, c) => sum + v * [0.2126, 0.7152, 0.0722][c], 0) < 51 ? "#fff" : "#000");

/** 256 colours between the stops. */
function ramp(stops) {
  const colours = stops.map(rgb);
  return Array.from({ length: 256 }, (_, code) => {
    const place = (code / 255) * (colours.length - 1);
    const n = Math.min(Math.floor(place), colours.length - 2);
    return colours[n].map((v, c) => v + (place - n) * (colours[n + 1][c] - v));
  });
}

/** Grey of each code of a volume in a window. */
function greys(table, [low, high]) {
  return Uint8ClampedArray.from(table, (value) => (255 * (value - low)) / Math.max(high - low, 1e-9));
}

/** How two greys become one; x and y are millimetres in the plane, `s` the settings. */
const MIXES = {
  fixed: (a) => a,
  moving: (a, b) => b,
  warped: (a, b) => b,
  blend: (a, b, s) => a + (b - a) * s.blend,
  curtain: (a, b, s) => (s.second ? b : a),
  flicker: (a, b, s) => (s.second ? b : a),
  checker: (a, b, s, x, y) => ((Math.floor(x / s.tile) + Math.floor(y / s.tile)) % 2 ? b : a),
  difference: (a, b) => 128 + (a - b),
};

/** Fill the pixels of a slice: the mixed images, and the map over them. */
function paintSlice(pixels, slice, a, b, mix, settings, spacing, overlay) {
  const { width, height, first, across, down } = slice;
  // In colour the fixed image is blue-green, the other orange: halfway of a blend agreement is grey, at its ends all is.
  const apart = settings.mode === "blend" && settings.colour ? 1 - Math.abs(2 * settings.blend - 1) : 0;
  let out = 0;
  for (let j = 0; j < height; j++) {
    for (let i = 0; i < width; i++, out += 4) {
      const at = first + i * across + j * down;
      const one = a.grey[a.codes[at]], two = b.grey[b.codes[at]];
      const grey = Math.max(0, Math.min(255, mix(one, two, settings, i * spacing[0], j * spacing[1])));
      pixels[out] = grey + apart * (two - grey);
      pixels[out + 1] = grey;
      pixels[out + 2] = grey + apart * (one - grey);
      pixels[out + 3] = 255;
      if (!overlay) continue;
      const code = overlay.codes[at], colour = overlay.colours[code];
      if (!colour) continue;
      const hatched = overlay.beyond && overlay.beyond(code) && (i + j) % 4 < 2;
      for (let c = 0; c < 3; c++) pixels[out + c] += overlay.strength * ((hatched ? 0 : colour[c]) - pixels[out + c]);
    }
  }
}

/** Draw pieces x0, y0, x1, y1 as one path. */
function strokePieces(context, pieces, place, style, line) {
  context.beginPath();
  for (let n = 0; n < pieces.length; n += 4) {
    context.moveTo(...place(pieces[n], pieces[n + 1]));
    context.lineTo(...place(pieces[n + 2], pieces[n + 3]));
  }
  context.save();
  context.setLineDash((style.dash ?? []).map((d) => d * line));
  context.lineCap = "round";
  context.globalAlpha = style.opacity ?? 1;
  context.strokeStyle = style.colour;
  context.lineWidth = style.width * line;
  context.stroke();
  context.restore();
}

/** Lines of the deformed grid in a plane: each regular point stands where the field takes it. */
function gridPieces(grid, plane, position) {
  const { shape, step, unit, values } = grid;
  const count = shape[0] * shape[1] * shape[2];
  const strides = [1, shape[0], shape[0] * shape[1]];
  const depth = Math.min(position[plane.through] / step, shape[plane.through] - 1);
  const below = Math.floor(depth), part = depth - below;
  const above = Math.min(below + 1, shape[plane.through] - 1);
  const moved = (axis, i, j) => {
    const at = axis * count + i * strides[plane.across] + j * strides[plane.down];
    return unit * ((1 - part) * values[at + below * strides[plane.through]] + part * values[at + above * strides[plane.through]]);
  };
  const point = (i, j) => [i * step + moved(plane.across, i, j), j * step + moved(plane.down, i, j)];
  const pieces = [];
  for (let j = 0; j < shape[plane.down]; j++) {
    for (let i = 0; i < shape[plane.across]; i++) {
      if (i + 1 < shape[plane.across]) pieces.push(...point(i, j), ...point(i + 1, j));
      if (j + 1 < shape[plane.down]) pieces.push(...point(i, j), ...point(i, j + 1));
    }
  }
  return pieces;
}

/** Displacement along an axis at a voxel of the page, in voxels, interpolated in the samples of the grid. */
function displacement(grid, voxel, axis) {
  const { shape, step, unit, values } = grid;
  const strides = [1, shape[0], shape[0] * shape[1]], count = strides[2] * shape[2];
  const place = voxel.map((v, n) => Math.max(0, Math.min(v / step, shape[n] - 1)));
  const below = place.map(Math.floor);
  let sum = 0;
  for (let corner = 0; corner < 8; corner++) {
    let weight = 1, at = axis * count;
    for (let n = 0; n < 3; n++) {
      const up = (corner >> n) & 1, part = place[n] - below[n];
      weight *= up ? part : 1 - part;
      at += Math.min(below[n] + up, shape[n] - 1) * strides[n];
    }
    sum += weight * values[at];
  }
  return unit * sum;
}
