"""Take voxels and axes from SimpleITK images in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.io.libraries import sitk


def itk_array(image: Any) -> NDArray[Any]:
    """Return the voxels of a scalar SimpleITK image, indexed in the order of its axes."""
    return np.array(sitk.GetArrayViewFromImage(image).T, order="C")


def without_trailing_axes(image: Any) -> Any:
    """Drop axes of length one beyond the third from a SimpleITK image."""
    while image.GetDimension() > 3 and image.GetSize()[-1] == 1:
        image = sitk.Extract(image, [*image.GetSize()[:-1], 0])
    return image
