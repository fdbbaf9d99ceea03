"""Start of a propagation: a fit, the headers, or an existing registration, refused where it makes things worse."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regweave import notices
from regweave.clinic.inputs import Scans
from regweave.clinic.scans.pair import WorkingScan
from regweave.clinic.scans.similarity import correlation
from regweave.errors import RegweaveError, UsageError
from regweave.io.dicom.parse import looks_like_dicom
from regweave.io.dicom.reg import read_reg, require_frames
from regweave.io.disk.files import exists, open_file
from regweave.io.transforms.ends_check import require_direction
from regweave.io.transforms.files import read_transform
from regweave.registration.initial import METHODS, initial_affine
from regweave.types import Field, Image, Transform

WORSE = 0.02
"""A start may lower the correlation of the images by this much before it is called worse."""


@dataclass(frozen=True)
class Start:
    """Start of a propagation.

    Parameters
    ----------
    method : str
        ``rigid``, ``affine``, ``moments``, ``none``, ``REG`` or ``file``.
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
    """Bring the scans to their start.

    Parameters
    ----------
    init : str, path, Transform or matrix
        A method, a DICOM registration of these frames, or a transform from today to plan.

    Raises
    ------
    RegweaveError
        E160 for a registration between other frames, E167 for one that makes the images less alike than the headers
        do, E187 for an unknown method.
    """
    grid = today.image.geometry
    still = Transform(Field.zero(grid))
    headers = correlation(today, plan, still)
    named = isinstance(init, str | Path)
    if named and str(init) in METHODS:
        fixed, moving = (Image.of(one.image, mask=one.region) for one in (today, plan))
        affine = initial_affine(fixed, moving, str(init))
        start = Transform(Field.zero(grid), affine)
        fitted = correlation(today, plan, start)
        if np.isfinite(headers) and not fitted >= headers - WORSE:
            notices.warn(
                f"W229: the {init} start was refused: correlation {headers:.3f} with the headers, {fitted:.3f} with "
                "it; the headers are used"
            )
            return Start("none", still, headers, headers)
        return Start(str(init), start, headers, fitted)
    method, start = _given(init, scans, still)
    chosen = correlation(today, plan, start)
    if np.isfinite(headers) and not chosen >= headers - WORSE:
        message = (
            f"the start makes the images less alike: correlation {headers:.3f} with the headers, {chosen:.3f} with it"
        )
        raise RegweaveError("E167", message, "check that it belongs to these scans and this direction, or --init rigid")
    return Start(method, start, headers, chosen)


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
    return "file" if isinstance(init, str | Path) else "memory", transform


def _on_grid(transform: Transform, grid: Any) -> Transform:
    return Transform(read_transform(transform, grid).field, transform.affine)
