"use strict";

const TYPES = { u1: Uint8Array, u2: Uint16Array, i2: Int16Array, i4: Int32Array };

/** Bytes of a zlib stream in base64, as an array of its type. */
async function unpack(item) {
  const text = atob(item.data);
  const bytes = new Uint8Array(text.length);
  for (let n = 0; n < text.length; n++) bytes[n] = text.charCodeAt(n);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const values = new TYPES[item.type](await new Response(stream).arrayBuffer());
  if (item.differences) for (let n = 1; n < values.length; n++) values[n] += values[n - 1];
  return values;
}

/** The planes: which display axis (0 left, 1 posterior, 2 superior) runs across, which down, which through. */
const PLANES = [
  { name: "axial", across: 0, down: 1, through: 2, up: false, letters: ["R", "L", "A", "P"] },
  { name: "coronal", across: 0, down: 2, through: 1, up: true, letters: ["R", "L", "S", "I"] },
  { name: "sagittal", across: 1, down: 2, through: 0, up: true, letters: ["A", "P", "S", "I"] },
];

/** The voxel of an axis of n that is nearest to a place. */
const nearest = (place, n) => Math.max(0, Math.min(n - 1, Math.round(place)));

/** Places of the voxels of a slice: first index and the two strides. */
function sliceOf(plane, shape, position) {
  const strides = [1, shape[0], shape[0] * shape[1]];
  return {
    width: shape[plane.across],
    height: shape[plane.down],
    first: strides[plane.through] * nearest(position[plane.through], shape[plane.through]),
    across: strides[plane.across],
    down: strides[plane.down],
  };
}
