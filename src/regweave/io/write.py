"""Writers of images, label maps and displacement fields; the suffix names the format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.atomic import atomic_path
from regweave.io.disk.files import suffix_of
from regweave.io.geometry import ras_to_lps, set_itk_geometry
from regweave.io.libraries import nib, sitk
from regweave.io.transforms.displacement_ends import COMMENT, KEY, to_comment
from regweave.io.transforms.ends import to_line
from regweave.types import Ends, Field, Geometry, LabelMap, Volume

SCANNER = 1
"""NIfTI's code for scanner coordinates, given to qform and sform alike so that no reader has a choice."""
VECTOR_INTENT = "vector"
"""NIfTI intent 1007, whose numbers ITK reads as LPS; 1006 would be read as RAS."""


def write_image(path: str | Path, volume: Volume, dtype: DTypeLike | None = None) -> None:
    """Write an image as .nii, .nii.gz, .nrrd or .mha.

    Parameters
    ----------
    path : path
    volume : Volume
    dtype : dtype, optional
        Type of the voxels, float32 by default; integers are rounded to the nearest and must fit.
    """
    _write(path, _cast(volume.data, dtype), volume.geometry)


def write_labels(path: str | Path, labels: LabelMap) -> None:
    """Write a label map in its own integer type."""
    _write(path, labels.data, labels.geometry)


def write_displacement(path: str | Path, field: Field, ends: Ends | None = None) -> None:
    """Write a displacement field, float32 LPS millimetres.

    NIfTI gets five dimensions and intent 1007, the form that ITK, ANTs and 3D Slicer read as a transform in
    the resampling convention: it takes fixed points to moving points. NRRD and MHA hold three components.
    The ends, where they are known, stand in a comment extension of NIfTI, and in a field of the header else.
    """
    path = Path(path)
    if suffix_of(path) in {".nii", ".nii.gz"}:
        vectors = np.moveaxis(field.data.astype(np.float32, copy=False), 0, -1)
        image = nibabel_image(vectors[:, :, :, np.newaxis, :], field.geometry)
        image.header.set_intent(VECTOR_INTENT)
        if ends is not None:
            image.header.extensions.append(nib.nifti1.Nifti1Extension(COMMENT, to_comment(ends)))
        _save(path, image)
        return
    image = field.to_sitk()
    image.SetMetaData("displacement field type", "resampling")  # 3D Slicer's name for our direction
    if ends is not None:
        image.SetMetaData(KEY, to_line(ends))
    _save_itk(path, image)


def _cast(data: NDArray[Any], dtype: DTypeLike | None) -> NDArray[Any]:
    target = np.dtype(np.float32 if dtype is None else dtype)
    if target.kind not in "iu":
        return data.astype(target, copy=False)
    rounded, limits = np.rint(data), np.iinfo(target)
    if rounded.min() < limits.min or rounded.max() > limits.max:
        message = f"values {rounded.min():g} to {rounded.max():g} do not fit {target}"
        raise UsageError("E152", message, "write float32 or a wider integer type")
    result: NDArray[Any] = rounded.astype(target)
    return result


def _write(path: str | Path, data: NDArray[Any], geometry: Geometry) -> None:
    path = Path(path)
    if suffix_of(path) in {".nii", ".nii.gz"}:
        _save(path, nibabel_image(data, geometry))
        return
    _save_itk(path, sitk_image(data, geometry))


def sitk_image(data: NDArray[Any], geometry: Geometry) -> Any:
    """Return the SimpleITK image of voxels [i, j, k], or of vectors [3, i, j, k]."""
    image = sitk.GetImageFromArray(np.ascontiguousarray(data.T), isVector=data.ndim > 3)
    set_itk_geometry(image, geometry)
    return image


def nibabel_image(data: NDArray[Any], geometry: Geometry) -> Any:
    """Return the NIfTI image of nibabel; qform and sform are equal, in millimetres of RAS."""
    affine = ras_to_lps(geometry.affine)
    image = nib.Nifti1Image(data, affine, dtype=data.dtype)
    image.set_sform(affine, SCANNER)
    image.set_qform(affine, SCANNER)
    image.header.set_xyzt_units("mm")
    return image


def _save(path: Path, image: Any) -> None:
    with atomic_path(path) as part:
        nib.save(image, part)


def _save_itk(path: Path, image: Any) -> None:
    if suffix_of(path) not in {".nrrd", ".mha"}:
        message = f"cannot write '{path}': the suffix must be .nii, .nii.gz, .nrrd or .mha"
        raise UsageError("E152", message, "choose one of these suffixes")
    with atomic_path(path) as part:
        try:
            sitk.WriteImage(image, str(part), True)
        except RuntimeError as error:
            message = f"cannot write '{path}': ITK refused"
            raise RegweaveError("E153", message, "check the folder and the free space") from error
