"""Similarity of two scans inside the patient, before and after a registration."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from regweave.clinic.scans.pair import WorkingScan
from regweave.spatial.intensity import apply_window, default_window
from regweave.spatial.warp import warp_points
from regweave.types import Float64Array, Transform, Volume

MOST_POINTS = 200_000
"""Voxels that are compared: every k-th of the patient."""


def correlation(today: WorkingScan, plan: WorkingScan, transform: Transform) -> float:
    """Return Pearson's correlation of the windowed images over today's patient, where the plan has a voxel.

    NaN where nothing overlaps. 1 is the same image on another scale of grey.
    """
    index = _places(today)
    points = today.image.geometry.points(index.astype(np.float64))
    back = np.linalg.inv(plan.image.geometry.affine)
    there = warp_points(points, transform) @ back[:3, :3].T + back[:3, 3]
    inside = ((there >= 0) & (there <= np.array(plan.image.geometry.shape) - 1)).all(axis=1)
    if inside.sum() < 100:
        return float("nan")
    a = _windowed(today.image)[tuple(index[inside].T)]
    b = ndimage.map_coordinates(_windowed(plan.image), there[inside].T, order=1, mode="nearest")
    return _pearson(a.astype(np.float64), b.astype(np.float64))


def _places(scan: WorkingScan) -> Float64Array:
    counted = np.ones(scan.image.data.shape, dtype=bool) if scan.body is None else scan.body
    if scan.region is not None:
        counted = counted & (scan.region.data != 0)
    flat = np.flatnonzero(counted)
    flat = flat[:: max(1, len(flat) // MOST_POINTS)]
    return np.stack(np.unravel_index(flat, counted.shape), axis=1)


def _windowed(image: Volume) -> Float64Array:
    assert image.modality is not None
    return np.asarray(apply_window(image.data, default_window(image.data, image.modality)))


def _pearson(a: Float64Array, b: Float64Array) -> float:
    a, b = a - a.mean(), b - b.mean()
    spread = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum() / spread) if spread > 0 else float("nan")
