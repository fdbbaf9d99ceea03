"""Read displacement fields stored as images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.errors import RegweaveError
from regweave.io import itk_images, nifti
from regweave.io.files import suffix_of
from regweave.io.geometry import itk_affine, make_geometry
from regweave.io.libraries import sitk
from regweave.io.nifti_frame import nifti_affine
from regweave.io.validate import nonfinite_error
from regweave.types import Field, Float32Array

SUFFIXES = (*nifti.SUFFIXES, *itk_images.SUFFIXES)
INTENT_RAS, INTENT_LPS = 1006, 1007
SIGNS = {INTENT_LPS: (1.0, 1.0, 1.0), INTENT_RAS: (-1.0, -1.0, 1.0)}
"""What takes the stored components to LPS: NIfTI's DISPVECT is RAS, ITK writes VECTOR in LPS."""


def read_displacement(path: Path) -> Field:
    """Read a field of displacements from fixed to moving points, or raise E115."""
    if suffix_of(path) in nifti.SUFFIXES:
        return _read_nifti(path)
    return _read_itk(path)


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
    subject, file = f"'{path}'", nifti.read_nifti(path)
    intent, shape = int(file.header["intent_code"]), file.stored.shape
    if len(shape) != 5 or shape[3:] != (1, 3) or file.stored.dtype.kind != "f":
        reason = f"shape {shape} of {file.stored.dtype}, needed is (X, Y, Z, 1, 3) of floats"
        raise _refuse(subject, reason, "write it with SimpleITK as a vector image; (X, Y, Z, 3) says no frame")
    if intent not in SIGNS:
        reason = f"intent code {intent}, needed is {INTENT_LPS} (LPS) or {INTENT_RAS} (RAS)"
        raise _refuse(subject, reason, "without it nobody knows the frame of the vectors")
    if bytes(file.header["intent_name"].item()).startswith(b"NREG_TRANS"):
        reason = "NiftyReg wrote it, whose fields may hold positions"
        raise _refuse(subject, reason, "convert it first: reg_transform -disp, then to ITK's LPS")
    grid = (shape[0], shape[1], shape[2])
    geometry = make_geometry(grid, nifti_affine(file.header, grid, subject), subject)
    slope, inter = file.scaling
    vectors = (file.stored[:, :, :, 0, :].astype(np.float64) * slope + inter) * SIGNS[intent]
    return Field(component_first(vectors.transpose(2, 1, 0, 3), subject), geometry)


def _read_itk(path: Path) -> Field:
    subject, image = f"'{path}'", itk_images.read_itk(path)
    components, n_axes = image.GetNumberOfComponentsPerPixel(), image.GetDimension()
    if n_axes != 3 or components != 3:
        reason = f"{components} components in {n_axes} dimensions, needed 3 in 3"
        raise _refuse(subject, reason, "give a vector image")
    key = "displacement field type"
    if image.HasMetaDataKey(key) and image.GetMetaData(key) != "resampling":
        reason = f"its {key} is '{image.GetMetaData(key)}', which takes moving points to fixed points"
        raise _refuse(subject, reason, "export it in the resampling convention")
    geometry = make_geometry(image.GetSize(), itk_affine(image), subject)
    return Field(component_first(sitk.GetArrayViewFromImage(image), subject), geometry)
