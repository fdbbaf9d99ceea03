"""Start of a propagation: a fit, the headers, or an existing registration, refused where it makes things worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave import notices
from regweave.clinic.inputs import Scans
from regweave.clinic.scans import WorkingScan
from regweave.errors import RegweaveError, UsageError
from regweave.io.dicom.parse import looks_like_dicom
from regweave.io.dicom.reg import read_reg, require_frames
from regweave.io.disk.files import exists, open_file
from regweave.io.transforms.ends import require_direction, require_series
from regweave.io.transforms.files import read_transform
from regweave.registration.initial import METHODS, initial_affine
from regweave.spatial.intensity import apply_window, default_window
from regweave.spatial.warp import warp_points
from regweave.types import Field, Float64Array, Image, Transform, Volume

WORSE = 0.02
"""A start may lower the correlation of the images by this much before it is called worse."""
CLEAR = 0.03
"""A fit must reduce 1 minus the correlation by at least this share. Along a phantom that is the same in every slice a
false shift of 12 mm reduces it by 0.01; on a head and neck the true 2.5 mm along the slices reduce it by 0.1."""
LEAST_MISSING_MM, LEAST_MISSING_SLICES = 6.0, 3
"""A scan that ends this much earlier than the plan is named; less is how a patient is laid."""
UPRIGHT = 0.7

UNLIKE = 0.5
"""Scans with a smaller correlation by the headers may be of two patients."""


@dataclass(frozen=True)
class Start:
    """Start of a propagation: transform from today to plan, on the grid of today's working copy.

    ``method`` is ``rigid``, ``affine``, ``moments``, ``none``, ``rigid in the slices``, ``REG`` or ``file``;
    ``headers`` and ``chosen`` are the correlations of the images inside the patient with the headers alone, and with
    this start.
    """

    method: str
    transform: Transform
    headers: float
    chosen: float


def find_start(init: Any, scans: Scans, today: WorkingScan, plan: WorkingScan) -> Start:
    """Bring the scans to their start, and warn if today's scan ends inside the patient (W242).

    ``init`` is a method, a DICOM registration of these frames, or a transform from today to plan. Raises E144 for a
    transform of other series, E160 for other frames, E167 for one that makes the images less alike than the headers do,
    E187 for an unknown method.
    """
    start = _start(init, scans, today, plan)
    if lacks := missing_ends(today, plan, start.transform):
        notices.warn(f"W242: {lacks}; structures that reach there are cut by the scan end")
    return start


def _start(init: Any, scans: Scans, today: WorkingScan, plan: WorkingScan) -> Start:
    grid = today.image.geometry
    still = Transform(Field.zero(grid))
    headers = correlation(today, plan, still)
    named = isinstance(init, str | Path)
    if named and str(init) in METHODS:
        return _fitted(str(init), today, plan, still, headers)
    method, start = _given(init, scans, still)
    before, after = alike(today, plan, (still, start))
    if np.isfinite(before) and not after >= before - WORSE:
        message = (
            f"the start makes the images less alike: correlation {before:.3f} with the headers, {after:.3f} with it"
        )
        raise RegweaveError("E167", message, "check that it belongs to these scans and this direction, or --init rigid")
    return Start(method, start, headers, correlation(today, plan, start))


def missing_ends(today: WorkingScan, plan: WorkingScan, start: Transform) -> str:
    """Describe how far the plan extends beyond the first and the last slice of today; empty if it does not."""
    if plan.body is None:
        return ""
    grid, source = today.image.geometry, plan.image.geometry
    shown = np.flatnonzero(plan.body.any(axis=(0, 1)))
    middles = np.array([[*np.argwhere(plan.body[..., k]).mean(axis=0), k] for k in shown])
    to_today = np.linalg.inv(grid.affine) @ np.linalg.inv(start.affine) @ source.affine
    along = middles @ to_today[2, :3] + to_today[2, 3]
    step = float(grid.spacing_mm[2])
    up = grid.affine[2, 2] / step
    ends = ("lower", "upper") if up > UPRIGHT else ("upper", "lower") if up < -UPRIGHT else ("first", "last")
    half = 0.5 * (float(source.spacing_mm[2]) - step)
    beyond = -along.min() * step + half, (along.max() - (grid.shape[2] - 1)) * step + half
    least = max(LEAST_MISSING_MM, LEAST_MISSING_SLICES * step)
    short = [(end, mm) for end, mm in zip(ends, beyond, strict=True) if mm > least]
    lacks = [f"{mm:.0f} mm ({mm / step:.0f} slices) at its {end} end" for end, mm in short]
    return f"today's scan lacks {' and '.join(lacks)} of the patient that the plan shows" if lacks else ""


def _fitted(method: str, today: WorkingScan, plan: WorkingScan, still: Transform, headers: float) -> Start:
    """Fit a start, and keep the part that the images clearly support: all of it, its part in the slices, or nothing."""
    fixed, moving = (Image.of(one.image, mask=one.region) for one in (today, plan))
    affine = initial_affine(fixed, moving, method)
    if np.allclose(affine, np.eye(4)):
        return Start("none", still, headers, headers)
    grid = today.image.geometry
    whole, flat = (Transform(Field.zero(grid), one) for one in (affine, in_slices(affine, today)))
    kept, part, all_of_it = alike(today, plan, (still, flat, whole))
    if not np.isfinite(kept) or _clearly_above(all_of_it, max(kept, part)):
        return Start(method, whole, headers, correlation(today, plan, whole))
    if _clearly_above(part, kept):
        notices.warn(
            f"W229: the {method} start was used in the slices only (correlation {kept:.2f} before, {part:.2f} after, "
            f"{all_of_it:.2f} with its part along the slices); along the slices the headers are used"
        )
        return Start(f"{method} in the slices", flat, headers, correlation(today, plan, flat))
    said = f"correlation {kept:.2f} before, {all_of_it:.2f} after"
    if kept < UNLIKE:
        notices.warn(
            f"W229: the scans could not be aligned with a {method} start ({said}); the headers are used. Check that "
            "this is the same patient"
        )
    else:
        notices.warn(f"W229: the {method} start is no better than the headers ({said}); the headers are used")
    return Start("none", still, headers, headers)


def _clearly_above(found: float, before: float) -> bool:
    return 1.0 - found < (1.0 - CLEAR) * (1.0 - before)


def in_slices(affine: Float64Array, today: WorkingScan) -> Float64Array:
    """Return the part of a map that stays in the slices: turn and shift in the plane of the patient's middle."""
    grid = today.image.geometry
    axes = grid.affine[:3, :3] / grid.spacing_mm
    shown = np.ones(grid.shape, dtype=bool) if today.body is None else today.body
    middle = grid.points(np.array([np.average(np.arange(n), weights=shown.sum(axis=((1, 2), (0, 2), (0, 1))[k]))
                                   for k, n in enumerate(grid.shape)]))  # fmt: skip
    turn = np.eye(3)
    u, _, v = np.linalg.svd((axes.T @ affine[:3, :3] @ axes)[:2, :2])
    turn[:2, :2] = u @ v
    turn = axes @ turn @ axes.T
    shift = affine[:3, :3] @ middle + affine[:3, 3] - middle
    shift -= axes[:, 2] * (axes[:, 2] @ shift)
    flat = np.eye(4)
    flat[:3, :3], flat[:3, 3] = turn, middle + shift - turn @ middle
    return flat


def _given(init: Any, scans: Scans, still: Transform) -> tuple[str, Transform]:
    """Read a registration or transform and sample it on the working grid."""
    grid = still.field.geometry
    if isinstance(init, str | Path):
        if not exists(init):
            raise UsageError("E187", f"unknown start '{init}'", f"use {', '.join(METHODS)}, a REG or a transform file")
        with open_file(Path(init)) as stream:
            dicom = looks_like_dicom(stream.read(132))
        if dicom:
            found = read_reg(init)
            require_frames(found, scans.today.frame_uid, scans.plan.frame_uid, "the registration")
            return "REG", _on_grid(found.transform, grid)
    transform = read_transform(init, grid)
    if transform.ends is not None:
        require_direction(transform.ends, "fixed_to_moving", "the start")
        today, plan = scans.today.identity.series_hash, scans.plan.identity.series_hash
        require_series(transform.ends, today, plan, "the start")
    return "file" if isinstance(init, str | Path) else "memory", transform


def _on_grid(transform: Transform, grid: Any) -> Transform:
    return Transform(read_transform(transform, grid).field, transform.affine)


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

    NaN without overlap. 1 is the same image on another scale of grey.
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

    These are voxels of today that show the patient in either scan, inside both scans for *every* transform: neither
    slices without patient at the ends nor the parts that one scan lacks can favour a transform. NaN without such
    voxels.
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
    """Return the distance of a transform from rigid in the bones of a CT, root mean square in mm; NaN without bones.

    A rigid map is fitted to the bone voxels of each block of `BLOCK_MM` (Arun et al. 1987); the residual is bending.
    Bones of one patient keep their shape, bones of two people differ.
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
    """Mark the places between the first and last slice of the patient, inside the scan, in its region."""
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
