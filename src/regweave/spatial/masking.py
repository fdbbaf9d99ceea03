"""Image masks: selection of voxels, what they enclose, and extrapolation of an image beyond them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave import _core
from regweave.types import Float32Array, Image, Volume


def inside(image: Volume) -> NDArray[np.bool_] | None:
    """Voxels that a mask lets count, (X, Y, Z); None without a mask, or where it holds the whole image."""
    if not isinstance(image, Image) or image.mask is None:
        return None
    found = image.mask.data != 0
    return None if found.all() else found


def extrapolated(image: Volume) -> Float32Array:
    """Replace voxels outside the mask by the nearest one inside.

    Windows and gradients at the rim of the mask then see nothing of what lies beyond, as at the border of an image.

    Examples
    --------
    >>> from regweave.types import Geometry, LabelMap
    >>> grid = Geometry((4, 1, 1), np.eye(4))
    >>> mask = LabelMap(np.array([0, 1, 1, 0]).reshape(4, 1, 1), grid)
    >>> image = Image(np.float32([9, 1, 2, 9]).reshape(4, 1, 1), grid, mask=mask)
    >>> extrapolated(image).ravel().tolist()
    [1.0, 1.0, 2.0, 2.0]
    """
    found = inside(image)
    if found is None:
        return image.data
    nearest = ndimage.distance_transform_edt(~found, return_distances=False, return_indices=True)
    return np.asarray(image.data[tuple(nearest)])


def enclosed(mask: NDArray[np.bool_], axes: int) -> NDArray[np.bool_]:
    """Add the voxels that lie between two of the mask along that many axes.

    Examples
    --------
    >>> enclosed(np.array([True, False, True, False]).reshape(4, 1, 1), 1).ravel().tolist()
    [True, True, True, False]
    """
    return np.asarray(_core.enclosed(np.ascontiguousarray(mask).view(np.uint8), axes)).view(np.bool_)
