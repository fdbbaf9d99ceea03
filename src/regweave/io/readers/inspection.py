"""Look at an image file without stopping at the first thing that is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from regweave import notices
from regweave.errors import RegweaveError
from regweave.io.disk.digests import image_sha256
from regweave.io.disk.files import require_file, suffix_of
from regweave.io.geometry import shear_angle
from regweave.io.readers import nifti
from regweave.io.readers.images import Stored, nifti_geometry, read_stored
from regweave.io.readers.nifti_frame import clash_error, read_frames
from regweave.io.readers.validate import constant_error, nonfinite_error, volume_shape
from regweave.types import Geometry


@dataclass(frozen=True)
class Inspection:
    """What is known about a file, and what is wrong with it.

    ``facts`` holds plain values for text and JSON: geometry, frame, value range, digest. No text field of
    the header is copied into it, as such fields may name a patient.
    """

    path: str
    facts: dict[str, Any] = field(default_factory=dict)
    problems: tuple[RegweaveError, ...] = ()
    warnings: tuple[str, ...] = ()


def inspect_image(path: str | Path, *, follow_links: bool = False) -> Inspection:
    """Read a file, check everything that `read_image` checks, and collect what is found."""
    facts: dict[str, Any] = {}
    problems: list[RegweaveError] = []
    with notices.collected() as noted, notices.muted():
        try:
            stored = _read(require_file(path), facts, problems, follow_links)
            # After reading: of a file that its header condemns, however long, no more is read.
            facts["sha256"] = image_sha256(path, follow_links=follow_links)
            facts.update(_geometry_facts(stored.geometry))
            _add_values(stored, facts, problems)
        except RegweaveError as error:
            problems.append(error)
    return Inspection(str(path), facts, tuple(problems), tuple(noted))


def _read(path: Path, facts: dict[str, Any], problems: list[RegweaveError], follow_links: bool) -> Stored:
    facts["bytes"] = path.stat().st_size
    if suffix_of(path) not in nifti.SUFFIXES:
        return read_stored(path, "auto", follow_links=follow_links)
    head = nifti.read_header(path)
    shape = volume_shape(head.shape, head.subject)
    frames = read_frames(head.header, shape, head.subject)
    facts["nifti"] = {
        "version": 1 if int(head.header["sizeof_hdr"]) == 348 else 2,
        "qform_code": frames.qform_code,
        "sform_code": frames.sform_code,
        "q_s_distance_mm": frames.distance_mm,
        "scl_slope": head.scaling[0],
        "scl_inter": head.scaling[1],
    }
    clash = clash_error(frames, head.subject)
    if clash is not None:
        problems.append(clash)
    geometry = nifti_geometry(head.header, shape, head.dtype, head.subject, "auto" if clash is None else "sform")
    return Stored(head.read_voxels().reshape(shape, order="F"), geometry, head.scaling, head.subject)


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
    bad = nonfinite_error(data, stored.subject)
    if bad is None:
        bad = constant_error(data, stored.scaling, stored.subject)
    if bad is not None:
        problems.append(bad)
