"""Start of a propagation: a fit, the headers, or an existing registration, refused where it makes things worse."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regweave import notices
from regweave.clinic.inputs import Scans
from regweave.clinic.scans.pair import WorkingScan
from regweave.clinic.scans.similarity import alike, correlation
from regweave.errors import RegweaveError, UsageError
from regweave.io.dicom.parse import looks_like_dicom
from regweave.io.dicom.reg import read_reg, require_frames
from regweave.io.disk.files import exists, open_file
from regweave.io.transforms.ends_check import require_direction, require_series
from regweave.io.transforms.files import read_transform
from regweave.registration.initial import METHODS, initial_affine
from regweave.types import Field, Float64Array, Image, Transform

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
    """Start of a propagation.

    Parameters
    ----------
    method : str
        ``rigid``, ``affine``, ``moments``, ``none``, ``rigid in the slices``, ``REG`` or ``file``.
    transform : Transform
        Today to plan, on the grid of today's working copy.
    headers, chosen : float
        Correlation of the images inside the patient with the headers alone, and with this start.
    """

    method: str
    transform: Transform
    headers: float
    chosen: float


def find_start(init: Any, scans: Scans, today: WorkingScan, plan: WorkingScan) -> Start:
    """Bring the scans to their start, and warn where today's scan ends inside the patient (W242).

    Parameters
    ----------
    init : str, path, Transform or matrix
        A method, a DICOM registration of these frames, or a transform from today to plan.

    Raises
    ------
    RegweaveError
        E144 for a transform of other series, E160 for a registration between other frames, E167 for one that makes the
        images less alike than the headers do, E187 for an unknown method.
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
    """Say how much of the patient the plan shows beyond the first and the last slice of today; empty for nothing."""
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
    """Fit, and keep of the fit what the images clearly show: all of it, its part in the slices, or nothing."""
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
    middle = grid.points(np.array([np.average(np.arange(n), weights=shown.sum(axis=_others(k)))
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


def _others(axis: int) -> tuple[int, ...]:
    return tuple(a for a in range(3) if a != axis)


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
