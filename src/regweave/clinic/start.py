"""Start of a propagation: a fit, the headers, or an existing registration, refused where it makes things worse."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave import notices
from regweave.clinic.scans import Scan
from regweave.errors import RegweaveError, UsageError
from regweave.io.dicom.parse import looks_like_dicom
from regweave.io.dicom.reg import read_reg, require_frames
from regweave.io.disk.files import exists, open_file
from regweave.io.transforms.files import read_transform, require_direction, require_series
from regweave.registration.initial import METHODS, initial_affine
from regweave.spatial.intensity import apply_window, default_window
from regweave.spatial.warp import warp_points
from regweave.types import Field, Float64Array, Image, Transform, Volume

WORSE = 0.02  # A start may lower the correlation of the images by this much before it is called worse
CLEAR = 0.03
"""A fit must reduce 1 minus the correlation by at least this share. Along a phantom that is the same in every slice a
false shift of 12 mm reduces it by 0.01; on a head and neck the true 2.5 mm along the slices reduce it by 0.1."""
UNLIKE = 0.5  # Scans with a smaller correlation by the headers may be of two patients


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


def find_start(init: Any, today: Scan, plan: Scan) -> Start:
    """Bring the scans to their start, and warn if today's scan ends inside the patient (W242).

    ``init`` is a method, a DICOM registration of these frames, or a transform from today to plan. Raises E144 for a
    transform of other series, E160 for other frames, E167 for one that makes the images less alike than the headers do,
    E187 for an unknown method.
    """
    still = Transform(Field.zero(today.image.geometry))
    if isinstance(init, str | Path) and str(init) in METHODS:
        method, transform = _fitted(str(init), today, plan, still)
    else:
        method, transform = _given(init, today, plan, still)
        before, after = alike(today, plan, (still, transform))
        if np.isfinite(before) and not after >= before - WORSE:
            what = f"correlation {before:.3f} with the headers, {after:.3f} with it"
            hint = "check that it belongs to these scans and this direction, or --init rigid"
            raise RegweaveError("E167", f"the start makes the images less alike: {what}", hint)
    if lacks := missing_ends(today, plan, transform):
        notices.warn(f"W242: {lacks}; structures that reach there are cut by the scan end")
    headers = correlation(today, plan, still)
    return Start(method, transform, headers, headers if transform is still else correlation(today, plan, transform))


LEAST_MISSING_MM, LEAST_MISSING_SLICES = 6.0, 3
"""A scan that ends this much earlier than the plan is named; less is how a patient is laid."""
UPRIGHT = 0.7


def missing_ends(today: Scan, plan: Scan, start: Transform) -> str:
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


def _fitted(method: str, today: Scan, plan: Scan, still: Transform) -> tuple[str, Transform]:
    """Fit a start, and keep the part that the images clearly support: all of it, its part in the slices, or nothing."""
    fixed, moving = (Image.of(one.image, mask=one.region) for one in (today, plan))
    affine = initial_affine(fixed, moving, method)
    if np.allclose(affine, np.eye(4)):
        return "none", still
    whole, flat = (Transform(still.field, one) for one in (affine, in_slices(affine, today)))
    kept, part, all_of_it = alike(today, plan, (still, flat, whole))

    def clearly_above(value: float, before: float) -> bool:
        return 1.0 - value < (1.0 - CLEAR) * (1.0 - before)

    if not np.isfinite(kept) or clearly_above(all_of_it, max(kept, part)):
        return method, whole
    if clearly_above(part, kept):
        notices.warn(
            f"W229: the {method} start was used in the slices only (correlation {kept:.2f} before, {part:.2f} after, "
            f"{all_of_it:.2f} with its part along the slices); along the slices the headers are used"
        )
        return f"{method} in the slices", flat
    compared = f"correlation {kept:.2f} before, {all_of_it:.2f} after"
    if kept < UNLIKE:
        notices.warn(
            f"W229: the scans could not be aligned with a {method} start ({compared}); the headers are used. Check "
            "that this is the same patient"
        )
    else:
        notices.warn(f"W229: the {method} start is no better than the headers ({compared}); the headers are used")
    return "none", still


def in_slices(affine: Float64Array, today: Scan) -> Float64Array:
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


def _given(init: Any, today: Scan, plan: Scan, still: Transform) -> tuple[str, Transform]:
    """Read a registration or transform and sample it on the working grid."""
    grid, is_file = still.field.geometry, isinstance(init, str | Path)
    if is_file:
        if not exists(init):
            raise UsageError("E187", f"unknown start '{init}'", f"use {', '.join(METHODS)}, a REG or a transform file")
        with open_file(Path(init)) as stream:
            dicom = looks_like_dicom(stream.read(132))
        if dicom:
            reg = read_reg(init)
            require_frames(reg, today.series.frame_uid, plan.series.frame_uid, "the registration")
            return "REG", Transform(read_transform(reg.transform, grid).field, reg.transform.affine)
    transform = read_transform(init, grid)
    if transform.ends is not None:
        require_direction(transform.ends, "fixed_to_moving", "the start")
        ours, theirs = today.series.identity.series_hash, plan.series.identity.series_hash
        require_series(transform.ends, ours, theirs, "the start")
    return "file" if is_file else "memory", transform


MOST_POINTS = 200_000  # Voxels that are compared: every k-th of the patient
LEAST_POINTS = 100


def thinned(mask: NDArray[np.bool_], most: int = MOST_POINTS) -> Float64Array:
    """Return the indices (n, 3) of every k-th voxel of a mask, about ``most`` of them."""
    flat = np.flatnonzero(mask)
    return np.stack(np.unravel_index(flat[:: max(1, len(flat) // most)], mask.shape), axis=1)


def correlation(today: Scan, plan: Scan, transform: Transform) -> float:
    """Return Pearson's correlation of the windowed images over today's patient, where the plan has a voxel.

    NaN without overlap. 1 is the same image on another scale of grey.
    """
    index = thinned(today.inside)
    there = _in_plan(today, plan, index, transform)
    shown = ((there >= 0) & (there <= np.array(plan.image.geometry.shape) - 1)).all(axis=1)
    return _pearson(today, plan, index, [there], np.asarray(shown))[0]


def alike(today: Scan, plan: Scan, transforms: Sequence[Transform]) -> tuple[float, ...]:
    """Return the correlations of the images for several transforms, all over the same voxels.

    These are voxels of today that show the patient in either scan, inside both scans for *every* transform: neither
    slices without patient at the ends nor the parts that one scan lacks can favour a transform. NaN without such
    voxels.
    """
    counted = np.ones(today.image.data.shape, dtype=bool) if today.region is None else today.region.data != 0
    if today.body is not None:
        counted = counted & today.body.any(axis=(0, 1))
    index = thinned(counted)
    shown = np.ones(len(index), dtype=bool)
    patient = shown if today.body is None else today.body[tuple(index.T)]
    low, high = np.zeros(3), np.array(plan.image.geometry.shape) - 1.0
    if plan.body is not None:
        low[2], high[2] = np.flatnonzero(plan.body.any(axis=(0, 1)))[[0, -1]]
    places = [_in_plan(today, plan, index, one) for one in transforms]
    for there in places:
        shown = shown & ((there >= low) & (there <= high)).all(axis=1)
        if plan.region is not None:
            shown &= _at(plan.region.data != 0, there)
        if plan.body is not None:
            patient = patient | _at(plan.body, there)
    return _pearson(today, plan, index, places, np.asarray(shown & patient))


def _in_plan(today: Scan, plan: Scan, index: Float64Array, transform: Transform) -> Float64Array:
    points = today.image.geometry.points(index.astype(np.float64))
    return plan.image.geometry.index(warp_points(points, transform))


def _at(mask: NDArray[np.bool_], there: Float64Array) -> NDArray[np.bool_]:
    return np.asarray(ndimage.map_coordinates(mask.astype(np.uint8), there.T, order=0, cval=0) != 0)


def _pearson(
    today: Scan, plan: Scan, index: Float64Array, places: Sequence[Float64Array], shown: NDArray[np.bool_]
) -> tuple[float, ...]:
    """Correlate the windowed images at voxels of today and several places of them in the plan."""
    if shown.sum() < LEAST_POINTS:
        return (float("nan"),) * len(places)
    a, grey = _windowed(today.image)[tuple(index[shown].T)].astype(np.float64), _windowed(plan.image)
    a, found = a - a.mean(), []
    for there in places:
        b = ndimage.map_coordinates(grey, there[shown].T, order=1, mode="nearest").astype(np.float64)
        b -= b.mean()
        spread = float(np.sqrt((a**2).sum() * (b**2).sum()))
        found.append(float((a * b).sum() / spread) if spread > 0 else float("nan"))
    return tuple(found)


def _windowed(image: Volume) -> Float64Array:
    assert image.modality is not None
    return np.asarray(apply_window(image.data, default_window(image.data, image.modality)))
