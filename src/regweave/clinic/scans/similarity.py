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
BONE_HU = 250.0
BLOCK_MM = 40.0
"""Edge of the blocks in which bone is taken as rigid; joints between blocks may bend."""
LEAST_IN_BLOCK = 30
"""Bone voxels that a block has at least."""


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


def moved_inside(today: WorkingScan, transform: Transform) -> float:
    """Return the 95th percentile of the displacement after the start over today's patient, in mm."""
    index = _places(today)
    if not len(index):
        return float("nan")
    return float(np.percentile(np.linalg.norm(transform.field.data[(slice(None), *index.T)], axis=0), 95))


def bones_bent(today: WorkingScan, transform: Transform) -> float:
    """Return how far a transform is from rigid in the bones of a CT, root mean square in mm; NaN without bones.

    Bone voxels of each block of `BLOCK_MM` are fitted by a rigid map of their own (Arun et al. 1987); what remains is
    bending. Bones of one patient keep their shape, bones of two people do not have the same one.
    """
    index = _places(today)
    if today.image.modality == "ct":
        index = index[today.image.data[tuple(index.T)] > BONE_HU]
    if today.image.modality != "ct" or not len(index):
        return float("nan")
    points = today.image.geometry.points(index.astype(np.float64))
    moved = points + transform.field.data[(slice(None), *index.T)].T
    _, block = np.unique(np.floor((points - points.min(axis=0)) / BLOCK_MM), axis=0, return_inverse=True)
    order = np.argsort(block.ravel(), kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(block.ravel()))[:-1])
    left = [_not_rigid(points[one], moved[one]) for one in parts if len(one) >= LEAST_IN_BLOCK]
    return float(np.sqrt((np.concatenate(left) ** 2).mean())) if left else float("nan")


def _not_rigid(points: Float64Array, moved: Float64Array) -> Float64Array:
    """Return the distances that the best rigid map leaves between two sets of points."""
    a, b = points - points.mean(axis=0), moved - moved.mean(axis=0)
    u, _, v = np.linalg.svd(a.T @ b)
    turn = (u * [1.0, 1.0, np.sign(np.linalg.det(u @ v))]) @ v
    return np.asarray(np.linalg.norm(a @ turn - b, axis=1))


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
