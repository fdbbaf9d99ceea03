"use strict";

// Sides of a cell of four voxel centres: 0 above, 1 right, 2 below, 3 left. By which corners are inside (1 above left,
// 2 above right, 4 below right, 8 below left): the sides that the outline joins, two by two.
const JOINS = [[], [3, 0], [0, 1], [3, 1], [1, 2], [3, 0, 1, 2], [0, 2], [3, 2], [2, 3], [0, 2], [0, 1, 2, 3],
  [1, 2], [3, 1], [0, 1], [3, 0], []];
const SIDES = [[0.5, 0], [1, 0.5], [0.5, 1], [0, 0.5]];

/** A label map: each voxel has one structure, and outlines run between voxels. */
class LabelMap {
  constructor(codes, shape) {
    this.codes = codes;
    this.shape = shape;
  }

  section(plane, position, shown) {
    return outlines(this.codes, sliceOf(plane, this.shape, position), shown);
  }

  /** Codes of the structures at a place. */
  at(position) {
    const voxel = position.map(Math.round), [x, y] = this.shape;
    if (voxel.some((v, axis) => v < 0 || v >= this.shape[axis])) return [];
    const code = this.codes[voxel[0] + x * (voxel[1] + y * voxel[2])];
    return code ? [code] : [];
  }
}

/** Polygons of a structure set on slices; each slice reaches half way to its neighbours. */
class Polygons {
  constructor(data, rings, points, spacing) {
    Object.assign(this, { axis: data.axis, slices: data.slices, edges: data.edges });
    const axes = [0, 1, 2].filter((axis) => axis !== data.axis), count = points.length / 2;
    const places = axes.map((axis, c) => Float64Array.from(points.subarray(c * count, (c + 1) * count), (v) => (v * data.unit) / spacing[axis]));
    this.axes = axes;
    this.rings = [];
    for (let n = 0, first = 0; n < rings.length; first += rings[n + 2], n += 3) {
      const both = places.map((all) => all.subarray(first, first + rings[n + 2]));
      const ends = both.map((all) => [all.reduce((a, b) => Math.min(a, b), Infinity), all.reduce((a, b) => Math.max(a, b), -Infinity)]);
      this.rings.push({ code: rings[n], slice: rings[n + 1], both, ends });
    }
  }

  /** The slice at a place along the axis, -1 beyond all of them. */
  slice(place) {
    const slice = this.edges.findLastIndex((edge) => edge <= place);
    return slice < this.slices.length ? slice : -1;
  }

  section(plane, position, shown) {
    return plane.through === this.axis ? this.polygons(position, shown) : this.stacked(plane, position[plane.through], shown);
  }

  /** The polygons of one slice. */
  polygons(position, shown) {
    const slice = this.slice(position[this.axis]), found = new Map();
    for (const { code, slice: own, both: [x, y] } of this.rings) {
      if (own !== slice || !shown.has(code)) continue;
      if (!found.has(code)) found.set(code, []);
      const pieces = found.get(code);
      for (let n = 0, last = x.length - 1; n < x.length; last = n++) pieces.push(x[last], y[last], x[n], y[n]);
    }
    return found;
  }

  /** Where a plane across the slices cuts the polygons: sorted ends of what lies inside, by code and slice. */
  cuts(column, at, wanted) {
    const found = new Map();
    for (const { code, slice, both, ends } of this.rings) {
      if (at < ends[column][0] || at > ends[column][1] || !wanted(code, slice)) continue;
      const x = both[column], y = both[1 - column];
      if (!found.has(code)) found.set(code, new Map());
      const slices = found.get(code);
      if (!slices.has(slice)) slices.set(slice, []);
      for (let n = 0, last = x.length - 1; n < x.length; last = n++) {
        if (x[last] <= at !== x[n] <= at) slices.get(slice).push(y[last] + ((at - x[last]) / (x[n] - x[last])) * (y[n] - y[last]));
      }
    }
    for (const slices of found.values()) for (const ends of slices.values()) ends.sort((a, b) => a - b);
    return found;
  }

  /** The outline of the stack in a plane across the slices: sides at the ends, steps where neighbours differ. */
  stacked(plane, at, shown) {
    const found = new Map(), down = plane.down === this.axis;
    for (const [code, slices] of this.cuts(this.axes.indexOf(plane.through), at, (c) => shown.has(c))) {
      const pieces = [], add = (a, s, b, t) => (down ? pieces.push(a, s, b, t) : pieces.push(s, a, t, b));
      for (const [slice, ends] of slices) for (const end of ends) add(end, this.edges[slice], end, this.edges[slice + 1]);
      for (const edge of new Set([...slices.keys()].flatMap((slice) => [slice, slice + 1]))) {
        const ends = [...(slices.get(edge - 1) ?? []), ...(slices.get(edge) ?? [])].sort((a, b) => a - b);
        for (let n = 0; n + 1 < ends.length; n += 2) add(ends[n], this.edges[edge], ends[n + 1], this.edges[edge]);
      }
      found.set(code, pieces);
    }
    return found;
  }

  /** Codes of all structures at a place, however many overlap there. */
  at(position) {
    const slice = this.slice(position[this.axis]), [along, across] = this.axes;
    const found = this.cuts(0, position[along], (_, own) => own === slice);
    return [...found].filter(([, slices]) => slices.get(slice).filter((end) => end < position[across]).length % 2).map(([code]) => code);
  }
}

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
