"use strict";

/** The cross-hair, with a gap around the voxel that it names. */
function drawCross(context, [x, y], line) {
  const gap = 9 * line, { width, height } = context.canvas;
  context.strokeStyle = "#7dff6acc";
  context.lineWidth = line;
  context.beginPath();
  for (const [x0, y0, x1, y1] of [[0, y, x - gap, y], [x + gap, y, width, y], [x, 0, x, y - gap], [x, y + gap, x, height]]) {
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
  }
  context.stroke();
}

/** Rings at the points of a structure that lie near a plane. */
function drawPoints(context, points, plane, position, frame, colour, line) {
  for (const point of points) {
    if (Math.abs(point[plane.through] - position[plane.through]) > NEAR_SLICES) continue;
    for (const [style, width] of [[rim(colour), 4], [colour, 2]]) {
      context.strokeStyle = style;
      context.lineWidth = width * line;
      context.beginPath();
      context.arc(...frame.place(point[plane.across], point[plane.down]), 5 * line, 0, 2 * Math.PI);
      context.stroke();
    }
  }
}

/** White text with a black rim, readable on any image. */
function drawText(context, text, x, y, line, { size = 13, align = "center", weight = 600, colour = "#fff" } = {}) {
  context.font = `${weight} ${size * line}px system-ui, sans-serif`;
  context.textAlign = align;
  context.textBaseline = "middle";
  context.lineJoin = "round";
  context.lineWidth = 3 * line;
  context.strokeStyle = "#000";
  context.fillStyle = colour;
  context.strokeText(text, x, y);
  context.fillText(text, x, y);
}

/** Letters of the body's sides. */
function drawLetters(context, letters, line) {
  const { width, height } = context.canvas, edge = 12 * line;
  const places = [[edge, height / 2], [width - edge, height / 2], [width / 2, edge], [width / 2, height - edge]];
  letters.forEach((letter, n) => drawText(context, letter, ...places[n], line));
}

/** A bar of 1, 2, 5, 10, … mm, about a fifth of the width; `pixels` is the length of a millimetre. */
function drawScale(context, pixels, line) {
  const { width, height } = context.canvas;
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
  drawText(context, `${mm} mm`, x, y - 11 * line, line, { size: 12, align: "right", weight: 400 });
}

/** The edge of the curtain with a handle, and what is on either side of it. */
function drawCurtain(context, x, names, line) {
  const { height } = context.canvas, y = height * 0.82;
  context.strokeStyle = "#fff";
  context.fillStyle = "#fff";
  context.lineWidth = 1.5 * line;
  context.beginPath();
  context.moveTo(x, 0);
  context.lineTo(x, height);
  context.stroke();
  context.beginPath();
  context.arc(x, y, 11 * line, 0, 2 * Math.PI);
  context.fill();
  context.strokeStyle = "#222";
  context.lineWidth = 2 * line;
  context.beginPath();
  for (const side of [-1, 1]) {
    context.moveTo(x + side * 3 * line, y - 4 * line);
    context.lineTo(x + side * 7 * line, y);
    context.lineTo(x + side * 3 * line, y + 4 * line);
  }
  context.stroke();
  drawText(context, names[0], x - 10 * line, 34 * line, line, { size: 12, align: "right" });
  drawText(context, names[1], x + 10 * line, 34 * line, line, { size: 12, align: "left" });
}
