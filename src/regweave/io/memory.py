"""Images in memory: objects of SimpleITK, nibabel, ANTsPy, TorchIO and MONAI, and arrays with their affine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from regweave.errors import UsageError
from regweave.io import nifti
from regweave.io.geometry import itk_affine, make_geometry, ras_to_lps
from regweave.io.libraries import sitk
from regweave.io.nifti import NiftiFrame
from regweave.io.stored import Stored, require_scalar, require_unmasked, volume_shape


def read_object(source: Any, frame: NiftiFrame) -> Stored:
    """Read an image in memory, or raise E108.

    Libraries are recognised by the names of the classes of an object, so that none is imported.
    """
    for name in classes_of(source):
        if name in READERS:
            return READERS[name][1](source, frame)
    if isinstance(source, tuple) and len(source) == 2:
        voxels, affine = source
        return Stored.of_array(np.asanyarray(voxels), ras_to_lps(affine), "the array")
    kinds = ", ".join([*(words for words, _ in READERS.values()), "(array, affine) with nibabel's RAS affine"])
    message = f"cannot read an image from an object of type {type(source).__module__}.{type(source).__qualname__}"
    raise UsageError("E108", message, f"give a path or one of: {kinds}")


def classes_of(source: Any) -> list[str]:
    """Return the classes of an object, each with the package that defines it.

    Examples
    --------
    >>> import fractions
    >>> classes_of(fractions.Fraction(1))[:2]
    ['fractions.Fraction', 'numbers.Rational']
    """
    return [f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(source).__mro__]


def _read_ants(source: Any, _: NiftiFrame) -> Stored:
    data, subject = source.numpy(), "the ANTsPy image"
    require_scalar(data.dtype, int(source.components), subject)
    volume_shape(data.shape, subject)  # before a matrix is made of three axes
    affine = np.eye(4)
    affine[:3, :3] = np.asarray(source.direction) * np.asarray(source.spacing)
    affine[:3, 3] = source.origin
    return Stored.of_array(data, affine, subject)


def _read_monai(source: Any, _: NiftiFrame) -> Stored:
    """Read an (X, Y, Z) tensor or one of a single channel, on any device; it is in RAS unless its metadata name LPS."""
    data, subject = np.asarray(source.array), "the MetaTensor"
    if data.ndim == 4:
        require_scalar(data.dtype, data.shape[0], subject)
        data = data[0]
    affine = np.asarray(source.affine, dtype=np.float64)
    return Stored.of_array(data, affine if source.meta.get("space") == "LPS" else ras_to_lps(affine), subject)


def _read_nibabel(source: Any, frame: NiftiFrame) -> Stored:
    """Read voxels, which nibabel has scaled; a NIfTI header is checked as that of a file is."""
    data, subject = np.asanyarray(source.dataobj), "the nibabel image"
    require_unmasked(data, subject)
    if "nibabel.Nifti1Pair" not in classes_of(source):
        return Stored.of_array(data, ras_to_lps(source.affine), subject)
    geometry = nifti.place(source.header, data.shape, data.dtype, subject, frame)
    return Stored(data.reshape(geometry.shape), geometry, subject)


def _read_sitk(source: Any, _: NiftiFrame) -> Stored:
    subject = "the SimpleITK image"
    while source.GetDimension() > 3 and source.GetSize()[-1] == 1:
        source = sitk.Extract(source, [*source.GetSize()[:-1], 0])
    components = 2 if "complex" in source.GetPixelIDTypeAsString() else source.GetNumberOfComponentsPerPixel()
    require_scalar(np.dtype(float), components, subject)
    geometry = make_geometry(volume_shape(source.GetSize(), subject), itk_affine(source), subject)
    return Stored(np.array(sitk.GetArrayViewFromImage(source).T, order="C"), geometry, subject)


def _read_torchio(source: Any, _: NiftiFrame) -> Stored:
    """Read the one channel of a (1, X, Y, Z) tensor."""
    data, subject = np.asarray(source.data), "the TorchIO image"
    require_scalar(data.dtype, data.shape[0], subject)
    return Stored.of_array(data[0], ras_to_lps(source.affine), subject)


READERS: dict[str, tuple[str, Callable[[Any, NiftiFrame], Stored]]] = {
    "SimpleITK.Image": ("a SimpleITK image", _read_sitk),
    "nibabel.SpatialImage": ("a nibabel image", _read_nibabel),
    "ants.ANTsImage": ("an ANTsPy image", _read_ants),
    "torchio.Image": ("a TorchIO image", _read_torchio),
    "monai.MetaTensor": ("a MONAI MetaTensor", _read_monai),
}
"""Readers by class, each with the words of messages."""
