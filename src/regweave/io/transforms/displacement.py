"""Displacement fields stored as images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.errors import RegweaveError
from regweave.io.disk.files import suffix_of
from regweave.io.formats import headers, nifti
from regweave.io.formats.nifti_frame import nifti_affine, require_voxel_size
from regweave.io.formats.validate import nonfinite_error
from regweave.io.geometry import make_geometry
from regweave.types import Field, Float32Array

SUFFIXES = (*nifti.SUFFIXES, *headers.SUFFIXES)
INTENT_RAS, INTENT_LPS = 1006, 1007
SIGNS = {INTENT_LPS: (1.0, 1.0, 1.0), INTENT_RAS: (-1.0, -1.0, 1.0)}
"""What takes the stored components to LPS: NIfTI's DISPVECT is RAS, ITK writes VECTOR in LPS."""


def read_displacement(path: Path, *, follow_links: bool = False) -> Field:
    """Read a field of displacements from fixed to moving points, or raise E115.

    With `follow_links` a header may name a file of vectors outside of its own folder.
    """
    if suffix_of(path) in nifti.SUFFIXES:
        return _read_nifti(path)
    return _read_text_header(headers.read_header(path, follow_links=follow_links))


def component_first(vectors: NDArray[Any], subject: str) -> Float32Array:
    """Turn ITK's (Z, Y, X, 3) into (3, X, Y, Z), refusing non-finite numbers with E104."""
    data = np.array(vectors.transpose(3, 2, 1, 0), dtype=np.float32, order="C")
    error = nonfinite_error(data, subject)
    if error is not None:
        raise RegweaveError(error.code, error.message, "compute the transform again")
    return data


def _refuse(subject: str, reason: str, hint: str) -> RegweaveError:
    return RegweaveError("E115", f"{subject} is no displacement field: {reason}", hint)


def _read_nifti(path: Path) -> Field:
    head = nifti.read_header(path)
    subject, shape, intent = head.subject, head.shape, int(head.header["intent_code"])
    if len(shape) != 5 or shape[3:] != (1, 3) or head.dtype.kind != "f":
        reason = f"shape {shape} of {head.dtype}, needed is (X, Y, Z, 1, 3) of floats"
        raise _refuse(subject, reason, "write it with SimpleITK as a vector image; (X, Y, Z, 3) says no frame")
    if intent not in SIGNS:
        reason = f"intent code {intent}, needed is {INTENT_LPS} (LPS) or {INTENT_RAS} (RAS)"
        raise _refuse(subject, reason, "without it nobody knows the frame of the vectors")
    if bytes(head.header["intent_name"].item()).startswith(b"NREG_TRANS"):
        reason = "NiftyReg wrote it, whose fields may hold positions"
        raise _refuse(subject, reason, "convert it first: reg_transform -disp, then to ITK's LPS")
    grid = (shape[0], shape[1], shape[2])
    geometry = make_geometry(grid, nifti_affine(head.header, grid, subject), subject)
    require_voxel_size(head.header, geometry, subject, "auto")
    slope, inter = head.scaling
    vectors = (head.read_voxels()[:, :, :, 0, :].astype(np.float64) * slope + inter) * SIGNS[intent]
    return Field(component_first(vectors.transpose(2, 1, 0, 3), subject), geometry)


def _read_text_header(head: headers.ImageHeader) -> Field:
    if len(head.shape) != 3 or head.components != 3:
        reason = f"{head.components} components in {len(head.shape)} dimensions, needed 3 in 3"
        raise _refuse(head.subject, reason, "give a vector image")
    if not head.vectors_lps:
        raise _refuse(head.subject, "its vectors are not along the axes of LPS", "write it with SimpleITK, in LPS")
    key = "displacement field type"
    if head.keys.get(key, "resampling") != "resampling":
        reason = f"its {key} is '{head.keys[key]}', which takes moving points to fixed points"
        raise _refuse(head.subject, reason, "export it in the resampling convention")
    assert head.affine is not None  # there are three axes
    geometry = make_geometry(head.shape, head.affine, head.subject)
    return Field(component_first(head.read_voxels().transpose(3, 2, 1, 0), head.subject), geometry)
