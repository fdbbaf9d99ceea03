"""Images and label maps from files and from what other libraries hold in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave import notices
from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import require_file, suffix_of
from regweave.io.geometry import itk_affine, make_geometry, ras_to_lps
from regweave.io.label_names import find_names, read_names
from regweave.io.libraries import nib, sitk
from regweave.io.readers import headers, itk_images, nifti
from regweave.io.readers.nifti_frame import NiftiFrame, nifti_affine, require_voxel_size
from regweave.io.readers.validate import (
    NonFinite,
    constant_error,
    nonfinite_error,
    replace_nonfinite,
    require_scalar,
    volume_shape,
    whole_labels,
)
from regweave.types import Float32Array, Geometry, LabelMap, Volume


@dataclass(frozen=True)
class Stored:
    """Voxels as they are stored, their grid, and the scaling that takes them to values."""

    data: NDArray[Any]
    geometry: Geometry
    scaling: tuple[float, float]
    subject: str

    def values(self) -> NDArray[Any]:
        """Return the voxels in the stored type, or in float64 where the file asks for scaling."""
        if self.scaling == (1.0, 0.0):
            return np.ascontiguousarray(self.data).astype(self.data.dtype.newbyteorder("="), copy=False)
        slope, inter = self.scaling
        return np.ascontiguousarray(self.data, dtype=np.float64) * slope + inter

    def intensities(self) -> Float32Array:
        """Return the values as float32; what does not fit becomes infinite and is caught as non-finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.values().astype(np.float32)


def read_image(
    path: str | Path,
    *,
    nifti_frame: NiftiFrame = "auto",
    nonfinite: NonFinite = "error",
    follow_links: bool = False,
) -> Volume:
    """Read a 3-D scalar image.

    Parameters
    ----------
    path : path
        A .nii, .nii.gz, .nrrd, .nhdr, .mha or .mhd file.
    nifti_frame : {"auto", "sform", "qform"}
        Which matrix places a NIfTI file; ``auto`` refuses a file whose two matrices disagree.
    nonfinite : {"error", "mask"}
        Refuse NaN and infinite voxels, or set them to the smallest finite value with warning W205.
    follow_links : bool
        Let a header name a file of voxels outside of its own folder.

    Returns
    -------
    Volume
        Voxels [i, j, k] in float32 with an affine that ends in LPS millimetres.

    Raises
    ------
    RegweaveError
        E101 missing, E102 damaged, E103 not 3-D scalar, E104 non-finite, E105 constant, E109 voxels elsewhere,
        E110, E111 and E113 header, E140 too large for the machine.
    """
    return _volume(read_stored(path, nifti_frame, follow_links=follow_links), nonfinite)


def read_labels(
    path: str | Path,
    *,
    names_path: str | Path | None = None,
    nifti_frame: NiftiFrame = "auto",
    follow_links: bool = False,
) -> LabelMap:
    """Read a label map: whole numbers from 0 on, in the integer type of the file.

    Parameters
    ----------
    path : path
        An image file of integers, or of floats that are whole numbers.
    names_path : path, optional
        JSON or TSV with the names of the labels; by default one that lies beside the file is used.
    nifti_frame, follow_links
        As in `read_image`.
    """
    stored = read_stored(path, nifti_frame, follow_links=follow_links)
    chosen = Path(names_path) if names_path is not None else find_names(Path(path))
    names = {} if chosen is None else read_names(chosen)
    return LabelMap(whole_labels(stored.values(), stored.subject), stored.geometry, names)


def as_volume(source: Any) -> Volume:
    """Take an image from a path, a SimpleITK or nibabel image, or an (array, RAS affine) tuple.

    A Volume is returned as it is. A bare array is refused: nobody knows where it lies.

    Examples
    --------
    >>> ramp = np.arange(64.0).reshape(4, 4, 4)
    >>> as_volume((ramp, np.eye(4))).geometry.direction.diagonal()
    array([-1., -1.,  1.])
    """
    if isinstance(source, Volume):
        return source
    if isinstance(source, str | Path):
        return read_image(source)
    return _volume(_stored_in_memory(source), "error")


def as_labels(source: Any) -> LabelMap:
    """Take a label map from what `as_volume` takes an image from; a LabelMap is returned as it is."""
    if isinstance(source, LabelMap):
        return source
    if isinstance(source, str | Path):
        return read_labels(source)
    stored = _stored_in_memory(source)
    return LabelMap(whole_labels(stored.values(), stored.subject), stored.geometry)


def _volume(stored: Stored, nonfinite: NonFinite) -> Volume:
    data = stored.intensities()
    error = nonfinite_error(data, stored.subject)
    if error is not None:
        if nonfinite == "error":
            raise error
        notices.warn(f"W205: {error.message}; treated as background")
        data = replace_nonfinite(data, stored.subject)
    error = constant_error(data, stored.scaling, stored.subject)
    if error is not None:
        raise error
    return Volume(data, stored.geometry)


def read_stored(path: str | Path, frame: NiftiFrame, *, follow_links: bool = False) -> Stored:
    """Read a file and check all but its values; what its header forbids is refused before voxels are read."""
    path = require_file(path)
    subject, suffix = f"'{path}'", suffix_of(path)
    if suffix in nifti.SUFFIXES:
        head = nifti.read_header(path)
        geometry = nifti_geometry(head.header, head.shape, head.dtype, subject, frame)
        return Stored(head.read_voxels().reshape(geometry.shape, order="F"), geometry, head.scaling, subject)
    if suffix in headers.SUFFIXES:
        return _from_text_header(headers.read_header(path, follow_links=follow_links))
    known = ", ".join((*nifti.SUFFIXES, *headers.SUFFIXES))
    message = f"{subject} has the suffix '{suffix}', readable are {known}"
    raise RegweaveError("E103", message, "convert the image to one of these formats")


def nifti_geometry(
    header: Any, shape: tuple[int, ...], dtype: np.dtype[Any], subject: str, frame: NiftiFrame
) -> Geometry:
    """Check that a NIfTI header is that of a scalar volume, and place it."""
    require_scalar(dtype, 1, subject)
    nifti.require_intensity(header, subject)
    grid = volume_shape(shape, subject)
    geometry = make_geometry(grid, nifti_affine(header, grid, subject, frame), subject)
    require_voxel_size(header, geometry, subject, frame)
    return geometry


def _from_text_header(head: headers.ImageHeader) -> Stored:
    require_scalar(head.dtype, head.components, head.subject)
    shape = volume_shape(head.shape, head.subject)
    assert head.affine is not None  # there are three axes
    geometry = make_geometry(shape, head.affine, head.subject)
    return Stored(head.read_voxels(), geometry, (1.0, 0.0), head.subject)


def _from_itk(image: Any, subject: str) -> Stored:
    image = itk_images.without_trailing_axes(image)
    components = image.GetNumberOfComponentsPerPixel()
    if "complex" in image.GetPixelIDTypeAsString():
        components = 2
    require_scalar(np.dtype(float), components, subject)
    shape = volume_shape(image.GetSize(), subject)
    geometry = make_geometry(shape, itk_affine(image), subject)
    return Stored(itk_images.itk_array(image), geometry, (1.0, 0.0), subject)


def _stored_in_memory(source: Any) -> Stored:
    if isinstance(source, sitk.Image):
        return _from_itk(source, "the SimpleITK image")
    if isinstance(source, nib.Nifti1Pair):
        data = np.asanyarray(source.dataobj)  # scaled already
        geometry = nifti_geometry(source.header, data.shape, data.dtype, "the nibabel image", "auto")
        return Stored(data.reshape(geometry.shape), geometry, (1.0, 0.0), "the nibabel image")
    if isinstance(source, nib.spatialimages.SpatialImage):
        return _from_array(np.asanyarray(source.dataobj), source.affine, "the nibabel image")
    if isinstance(source, tuple) and len(source) == 2:
        return _from_array(np.asarray(source[0]), source[1], "the array")
    message = f"an object of type {type(source).__name__} says nothing about where it lies"
    hint = "give a path, a SimpleITK or nibabel image, or (array, affine) with nibabel's RAS affine"
    raise UsageError("E108", message, hint)


def _from_array(data: NDArray[Any], affine: Any, subject: str) -> Stored:
    require_scalar(data.dtype, 1, subject)
    shape = volume_shape(data.shape, subject)
    geometry = make_geometry(shape, ras_to_lps(affine), subject)
    return Stored(data.reshape(shape), geometry, (1.0, 0.0), subject)
