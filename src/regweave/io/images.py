"""Images and label maps from files, folders and objects in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regweave import notices
from regweave.io import readers
from regweave.io.disk.files import open_file, require_file
from regweave.io.formats.nifti_frame import NiftiFrame
from regweave.io.formats.stored import Stored
from regweave.io.formats.validate import (
    NonFinite,
    constant_error,
    intensities_error,
    nonfinite_error,
    replace_nonfinite,
    whole_labels,
)
from regweave.io.label_names import find_names, read_names, require_names
from regweave.io.readers import ReadOptions
from regweave.kernels.threads import side_by_side
from regweave.types import LabelMap, Volume

CHUNK = 1 << 20


def read_image(
    source: Any,
    *,
    nifti_frame: NiftiFrame = "auto",
    nonfinite: NonFinite = "error",
    follow_links: bool = False,
    series: str | None = None,
) -> Volume:
    """Read a 3-D scalar image.

    Parameters
    ----------
    source : path or object
        A .nii, .nii.gz, .nrrd, .nhdr, .mha or .mhd file, a folder with one of them or with a DICOM series, an image of
        SimpleITK, nibabel, ANTsPy, TorchIO or MONAI, or (array, RAS affine). A Volume is returned as it is; a bare
        array is refused.
    nifti_frame : {"auto", "sform", "qform"}
        Which matrix places a NIfTI file; ``auto`` refuses a file whose two matrices disagree.
    nonfinite : {"error", "mask"}
        Refuse NaN and infinite voxels, or set them to the smallest finite value with warning W205.
    follow_links : bool
        Let a header name a file of voxels outside of its own folder.
    series : str, optional
        The DICOM series that is meant, by the beginning of its hash, where a folder holds several.

    Returns
    -------
    Volume
        Voxels [i, j, k] in float32 with an affine that ends in LPS millimetres.

    Raises
    ------
    RegweaveError
        E101 missing, E102 damaged, E103 not 3-D scalar, E104 non-finite, E105 constant, E109 voxels elsewhere,
        E110, E111 and E113 header, E140 too large for the machine.
    UsageError
        E108 an object of another type.

    Examples
    --------
    >>> import numpy as np
    >>> ramp = np.arange(64.0).reshape(4, 4, 4)
    >>> read_image((ramp, np.eye(4))).geometry.direction.diagonal()
    array([-1., -1.,  1.])
    """
    if isinstance(source, Volume):
        return source
    stored = readers.read(source, ReadOptions(nifti_frame, follow_links, series))
    data = stored.intensities()
    error = nonfinite_error(data, stored.subject)
    if error is not None:
        if nonfinite == "error":
            raise error
        notices.warn(f"W205: {error.message}; treated as background")
        data = replace_nonfinite(data, stored.subject)
    error = constant_error(data, stored.data, stored.scaling, stored.subject)
    if error is not None:
        raise error
    return Volume(data, stored.geometry, stored.modality)


def read_labels(
    source: Any,
    *,
    names_path: str | Path | Mapping[int, str] | None = None,
    nifti_frame: NiftiFrame = "auto",
    follow_links: bool = False,
) -> LabelMap:
    """Read a label map: whole numbers from 0 on, in the integer type of the source.

    Parameters
    ----------
    source : path or object
        As in `read_image`: integers, or floats that are whole numbers. A LabelMap keeps its voxels.
    names_path : path or mapping, optional
        JSON, TSV or ITK-SNAP file with the names of the labels, or names by value; by default a file
        that lies beside the file is used.
    nifti_frame, follow_links
        As in `read_image`.

    Raises
    ------
    RegweaveError
        E106 negative or fractional values, E127 the values of an image.
    """
    given = require_names(names_path)
    if isinstance(source, LabelMap):
        return source if given is None else replace(source, names=read_names(given))
    options = ReadOptions(nifti_frame, follow_links)
    stored = readers.read(source, options)
    chosen = names_file(source) if given is None else given
    names = {} if chosen is None else read_names(chosen)
    labels = LabelMap(whole_labels(stored.values(), stored.subject), stored.geometry, names)
    error = intensities_error(labels.data, names, stored.subject)
    if error is not None:
        raise error
    return labels


def names_file(source: Any) -> Path | None:
    """Find the file of label names that lies beside a label map; None where there is none, or no file."""
    path = readers.as_path(source)
    return None if path is None else find_names(readers.files_of(path, ReadOptions())[0])


def read_stored(source: Any, nifti_frame: NiftiFrame = "auto", *, follow_links: bool = False) -> Stored:
    """Read an image and check all but its values; what its header forbids is refused before voxels are read."""
    return readers.read(source, ReadOptions(nifti_frame, follow_links))


def read_volumes(paths: Sequence[Path]) -> list[Volume]:
    """Read several images side by side, and check all but their values."""

    def volume(path: Path) -> Volume:
        stored = read_stored(path)
        return Volume(stored.intensities(), stored.geometry)

    return side_by_side(volume, paths)


def require_image(path: str | Path) -> None:
    """Raise E101 unless every file of an image can be opened."""
    for file in readers.files_of(path, ReadOptions()):
        require_file(file)


def image_sha256(path: str | Path, *, follow_links: bool = False, series: str | None = None) -> str:
    """Return the SHA-256 of the bytes of all files of an image, one after the other.

    The header of an .mhd or .nhdr file stays the same when its voxels change, so their file counts.

    Parameters
    ----------
    path : path
        An image, or anything else, whose digest is that of the file.
    follow_links, series
        As in `read_image`.
    """
    digest = hashlib.sha256()
    for file in readers.files_of(path, ReadOptions(follow_links=follow_links, series=series)):
        with open_file(file) as stream:
            while block := stream.read(CHUNK):
                digest.update(block)
    return digest.hexdigest()
