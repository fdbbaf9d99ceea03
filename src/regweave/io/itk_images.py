"""Read NRRD and MetaImage files with SimpleITK."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.io.files import damaged
from regweave.io.integrity import find_data, unreadable, verify_data
from regweave.io.libraries import sitk

SUFFIXES = (".nrrd", ".nhdr", ".mha", ".mhd")


def read_itk(path: Path) -> Any:
    """Read a file that was verified first, or raise E102."""
    subject = f"'{path}'"
    if path.stat().st_size == 0:
        raise damaged(subject, "it is empty")
    block = find_data(path)
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    try:
        reader.ReadImageInformation()
        if block is not None:
            verify_data(block, _expected_bytes(reader), subject)
        return reader.Execute()
    except RuntimeError as error:
        raise unreadable(subject, error) from error


def _expected_bytes(reader: Any) -> int:
    pixel = sitk.Image([1] * reader.GetDimension(), reader.GetPixelID(), reader.GetNumberOfComponents())
    return int(math.prod(reader.GetSize()) * pixel.GetNumberOfComponentsPerPixel() * pixel.GetSizeOfPixelComponent())


def itk_array(image: Any) -> NDArray[Any]:
    """Return the voxels of a scalar SimpleITK image, indexed in the order of its axes."""
    return np.array(sitk.GetArrayViewFromImage(image).T, order="C")


def without_trailing_axes(image: Any) -> Any:
    """Drop axes of length one beyond the third from a SimpleITK image."""
    while image.GetDimension() > 3 and image.GetSize()[-1] == 1:
        image = sitk.Extract(image, [*image.GetSize()[:-1], 0])
    return image
