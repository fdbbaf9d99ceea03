"""Inspection of an image: facts and problems, without stopping at the first."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from regweave import notices
from regweave.errors import RegweaveError
from regweave.io.geometry import shear_angle
from regweave.io.images import ReadOptions, files_of, image_sha256, read_stored
from regweave.io.modality import modality_of
from regweave.io.stored import Stored, constant_error, nonfinite_error
from regweave.types import Geometry, Volume

CLASH = "E110"


@dataclass(frozen=True)
class Inspection:
    """Facts and problems of an image.

    ``facts`` holds plain values for text and JSON: geometry, frame, value range, digest. No text field of
    the header is copied into it, as such fields may name a patient.
    """

    path: str
    facts: dict[str, Any] = field(default_factory=dict)
    problems: tuple[RegweaveError, ...] = ()
    warnings: tuple[str, ...] = ()


def inspect_image(path: str | Path, *, follow_links: bool = False) -> Inspection:
    """Read an image, check everything that `read_image` checks, and collect what is found."""
    facts: dict[str, Any] = {}
    problems: list[RegweaveError] = []
    with notices.collected() as noted, notices.muted():
        try:
            files = files_of(path, ReadOptions(follow_links=follow_links))
            facts["bytes"] = sum(file.stat().st_size for file in files)
            stored = _read(path, problems, follow_links)
            # After reading: of a file that its header condemns, however long, no more is read.
            facts |= {**stored.facts, "sha256": image_sha256(path, follow_links=follow_links)}
            facts |= _geometry_facts(stored.geometry)
            _add_values(stored, facts, problems)
        except RegweaveError as error:
            problems.append(error)
    return Inspection(str(path), facts, tuple(problems), tuple(noted))


def _read(path: str | Path, problems: list[RegweaveError], follow_links: bool) -> Stored:
    """Read an image; of a NIfTI file whose two matrices disagree the sform is taken, after that was noted."""
    try:
        return read_stored(path, follow_links=follow_links)
    except RegweaveError as error:
        if error.code != CLASH:
            raise
        problems.append(error)
        return read_stored(path, "sform", follow_links=follow_links)


def _geometry_facts(geometry: Geometry) -> dict[str, Any]:
    return {
        "size": list(geometry.shape),
        "spacing_mm": geometry.spacing_mm.tolist(),
        "origin_mm_lps": geometry.origin_mm.tolist(),
        "direction_lps": geometry.direction.tolist(),
        "orientation": orientation(geometry),
        "handedness": "right" if np.linalg.det(geometry.direction) > 0 else "left",
        "shear_rad": shear_angle(geometry.direction),
    }


def orientation(geometry: Geometry) -> str:
    """Name the direction in which each image axis grows, nearest anatomical axis, e.g. ``LPS``.

    Examples
    --------
    >>> orientation(Geometry((4, 4, 4), np.diag([-1.0, -1.0, 2.0, 1.0])))
    'RAS'
    """
    direction = geometry.direction
    letters = ""
    for axis in range(3):
        main = int(np.argmax(np.abs(direction[:, axis])))
        letters += ("RL", "AP", "IS")[main][int(direction[main, axis] > 0)]
    return letters


def _add_values(stored: Stored, facts: dict[str, Any], problems: list[RegweaveError]) -> None:
    facts["type"] = str(stored.data.dtype.newbyteorder("="))
    data = stored.intensities()
    finite = data[np.isfinite(data)]
    facts["nonfinite_voxels"] = int(data.size - finite.size)
    if finite.size:
        facts["minimum"], facts["maximum"] = float(finite.min()), float(finite.max())
        facts["mean"] = float(finite.mean(dtype=np.float64))
        facts["ct"] = modality_of(Volume(finite.astype(np.float32), stored.geometry)) == "ct"
    bad = nonfinite_error(data, stored.subject)
    if bad is None:
        bad = constant_error(data, stored.data, stored.scaling, stored.subject)
    if bad is not None:
        problems.append(bad)
