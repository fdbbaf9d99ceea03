"""Similarity of two scans inside the patient, before and after a registration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave.clinic.scans.pair import WorkingScan
from regweave.spatial.intensity import apply_window, default_window
from regweave.spatial.warp import warp_points
from regweave.types import Float64Array, Transform, Volume

MOST_POINTS = 200_000
"""Voxels that are compared: every k-th of the patient."""
LEAST_POINTS = 100


def correlation(today: WorkingScan, plan: WorkingScan, transform: Transform) -> float:
    """Return Pearson's correlation of the windowed images over today's patient, where the plan has a voxel.

    NaN where nothing overlaps. 1 is the same image on another scale of grey.
    """
    index = _places(today)
    points = today.image.geometry.points(index.astype(np.float64))
    back = np.linalg.inv(plan.image.geometry.affine)
    there = warp_points(points, transform) @ back[:3, :3].T + back[:3, 3]
    inside = ((there >= 0) & (there <= np.array(plan.image.geometry.shape) - 1)).all(axis=1)
    if inside.sum() < LEAST_POINTS:
        return float("nan")
    a = _windowed(today.image)[tuple(index[inside].T)]
    b = ndimage.map_coordinates(_windowed(plan.image), there[inside].T, order=1, mode="nearest")
    return _pearson(a.astype(np.float64), b.astype(np.float64))


def alike(today: WorkingScan, plan: WorkingScan, transforms: Sequence[Transform]) -> tuple[float, ...]:
    """Return the correlations of the images for several transforms, all over the same voxels.

    Counted are voxels of today that show the patient in either scan, inside both scans for *every* transform: neither
    slices at the ends that hold no patient nor what one scan does not show can favour a transform. NaN where nothing
    is left.
    """
    index = _slices_with_patient(today)
    counted = np.ones(len(index), dtype=bool)
    seen = np.ones(len(index), dtype=bool) if today.body is None else today.body[tuple(index.T)]
    points = today.image.geometry.points(index.astype(np.float64))
    back = np.linalg.inv(plan.image.geometry.affine)
    places = [warp_points(points, one) @ back[:3, :3].T + back[:3, 3] for one in transforms]
    for there in places:
        counted &= _shown(plan, there)
        if plan.body is not None:
            seen = seen | _at(plan.body, there)
    counted &= seen
    if counted.sum() < LEAST_POINTS:
        return (float("nan"),) * len(transforms)
    a, grey = _windowed(today.image)[tuple(index[counted].T)].astype(np.float64), _windowed(plan.image)
    sampled = (ndimage.map_coordinates(grey, there[counted].T, order=1, mode="nearest") for there in places)
    return tuple(_pearson(a, b.astype(np.float64)) for b in sampled)


def _slices_with_patient(scan: WorkingScan) -> Float64Array:
    """Voxels of the slices that hold the patient, where the scan counts."""
    counted = np.ones(scan.image.data.shape, dtype=bool) if scan.region is None else scan.region.data != 0
    if scan.body is not None:
        counted = counted & scan.body.any(axis=(0, 1))
    return _thinned(counted)


def _shown(plan: WorkingScan, there: Float64Array) -> NDArray[np.bool_]:
    """Tell which places lie between the first and last slice of the patient, inside the scan, where it counts."""
    low, high = np.zeros(3), np.array(plan.image.geometry.shape) - 1.0
    if plan.body is not None:
        low[2], high[2] = np.flatnonzero(plan.body.any(axis=(0, 1)))[[0, -1]]
    inside = ((there >= low) & (there <= high)).all(axis=1)
    return np.asarray(inside if plan.region is None else inside & _at(plan.region.data != 0, there), dtype=bool)


def _at(mask: NDArray[np.bool_], there: Float64Array) -> NDArray[np.bool_]:
    return np.asarray(ndimage.map_coordinates(mask.astype(np.uint8), there.T, order=0, cval=0) != 0)


def _places(scan: WorkingScan) -> Float64Array:
    counted = np.ones(scan.image.data.shape, dtype=bool) if scan.body is None else scan.body
    if scan.region is not None:
        counted = counted & (scan.region.data != 0)
    return _thinned(counted)


def _thinned(counted: NDArray[np.bool_]) -> Float64Array:
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
