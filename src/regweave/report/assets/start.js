"use strict";

/** Unpack the volumes and start; where the browser cannot, the pictures stay and the page says why. */
async function start() {
  const data = JSON.parse(find("view-data").textContent);
  const all = async (items) => Object.fromEntries(await Promise.all(Object.entries(items).map(async ([k, v]) => [k, await unpack(v)])));
  const loaded = { images: await all(data.images), jacobian: await unpack(data.jacobian) };
  const labels = Object.entries(await all(data.labels)).map(([name, codes]) => [name, new LabelMap(codes, data.shape)]);
  loaded.drawn = Object.fromEntries(labels);
  if (data.contours) {
    loaded.drawn.after = new Polygons(data.contours, await unpack(data.contours.rings), await unpack(data.contours.points), data.spacing);
  }
  loaded.grid = { ...data.grid, values: await unpack(data.grid) };
  if (data.limit) loaded.limit = await unpack(data.limit);
  if (data.metric) {
    loaded.metric = await unpack(data.metric);
    loaded.share = await unpack(data.metric.share);
    loaded.confidence = await unpack(data.confidence);
  }
  find("viewer").hidden = false;
  window.viewer = new Viewer(data, loaded);
  new Landmarks(new Controls(window.viewer));
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
