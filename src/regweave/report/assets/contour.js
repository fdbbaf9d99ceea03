"use strict";

// Sides of a cell of four voxel centres: 0 above, 1 right, 2 below, 3 left. By which corners are inside (1 above left,
// 2 above right, 4 below right, 8 below left): the sides that the outline joins, two by two.
const JOINS = [[], [3, 0], [0, 1], [3, 1], [1, 2], [3, 0, 1, 2], [0, 2], [3, 2], [2, 3], [0, 2], [0, 1, 2, 3],
  [1, 2], [3, 1], [0, 1], [3, 0], []];
const SIDES = [[0.5, 0], [1, 0.5], [0.5, 1], [0, 0.5]];

/** Outlines of the structures in a slice by their code, as pieces x0, y0, x1, y1 in voxels; only those that `shown` names. */
function outlines(labels, slice, shown) {
  const { width, height, first, across, down } = slice;
  const at = (i, j) => (i < 0 || j < 0 || i >= width || j >= height ? 0 : labels[first + i * across + j * down]);
  const found = new Map();
  for (let j = -1; j < height; j++) {
    for (let i = -1; i < width; i++) {
      const corners = [at(i, j), at(i + 1, j), at(i + 1, j + 1), at(i, j + 1)];
      if (corners[0] === corners[1] && corners[1] === corners[2] && corners[2] === corners[3]) continue;
      for (const label of new Set(corners)) {
        if (label === 0 || !shown.has(label)) continue;
        if (!found.has(label)) found.set(label, []);
        const pieces = found.get(label);
        const inside = corners.reduce((bits, corner, n) => bits | (corner === label ? 1 << n : 0), 0);
        const join = JOINS[inside];
        for (let n = 0; n < join.length; n += 2) {
          const [a, b] = [SIDES[join[n]], SIDES[join[n + 1]]];
          pieces.push(i + a[0], j + a[1], i + b[0], j + b[1]);
        }
      }
    }
  }
  return found;
}
