"""Intensity normalisation and pooling strides of a convolutional network.

Only NumPy is imported: a machine that trains a network needs nothing else of the package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

VERSION = 1
"""Changes whenever the same image gives other channels."""
SOFT_TISSUE_HU = (-160.0, 240.0)
ALL_TISSUE_HU = (-1000.0, 1500.0)
PERCENTILES = (0.5, 99.5)
"""Of the voxels above the minimum of an MR image, which is what surrounds the body: they become -1 and 1."""
MR_RANGE = (-1.2, 1.5)
"""Where mapped MR intensities are cut: a vessel far above the percentile must not drown the rest."""

SCALES = 4
LEAST_VOXELS = 4
"""Voxels along an axis that pooling leaves, where there were so many."""
LATE = 1.5
"""An axis is pooled once its voxels are at most this many times as long as the shortest: thick slices wait."""


def n_channels(modality: Literal["ct", "mr"]) -> int:
    """Count the channels that `channels` gives."""
    return 2 if modality == "ct" else 1


def channels(data: NDArray[Any], modality: Literal["ct", "mr"]) -> NDArray[np.float32]:
    """Map intensities to about -1 to 1.

    Parameters
    ----------
    data : array of shape (X, Y, Z)
        Hounsfield units, or the intensities of an MR image in any scale.
    modality : "ct" or "mr"
        Two fixed windows, or one by the percentiles of the image.

    Returns
    -------
    float32 array of shape (I, X, Y, Z)
        Two channels for CT, soft tissue first, and one for MR.

    Examples
    --------
    >>> channels(np.array([-1024.0, 40.0, 1500.0]), "ct").tolist()
    [[-1.0, 0.0, 1.0], [-1.0, -0.168..., 1.0]]
    """
    image = np.asarray(data, dtype=np.float32)
    if modality == "ct":
        return np.stack([_mapped(image, *window).clip(-1, 1) for window in (SOFT_TISSUE_HU, ALL_TISSUE_HU)])
    inside = image[image > image.min()]
    low, high = np.percentile(inside, PERCENTILES) if len(inside) else (float(image.min()), np.inf)
    return _mapped(image, float(low), float(high)).clip(*MR_RANGE)[None]


def _mapped(image: NDArray[np.float32], low: float, high: float) -> NDArray[np.float32]:
    """Send ``low`` to -1 and ``high`` to 1; an image of a single value above its minimum has no range to divide by."""
    span = high - low if high > low else 1.0
    return np.asarray((image - np.float32(low)) * np.float32(2 / span) - np.float32(1))


def strides_for(spacing_mm: Sequence[float], shape: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """Choose how far each axis is pooled between scales, so that voxels become cubes first.

    Parameters
    ----------
    spacing_mm : three numbers
        Distance of the voxels along the axes.
    shape : three ints
        Voxels along the axes of a middling image.

    Returns
    -------
    tuple of `SCALES` - 1 tuples of three ints
        1 or 2 for each axis, the finest scale first.

    Examples
    --------
    >>> strides_for((2.5, 2.5, 10.0), (64, 64, 12))
    ((2, 2, 1), (2, 2, 1), (2, 2, 2))
    """
    spacing, sizes, found = np.array(spacing_mm, dtype=np.float64), np.array(shape), []
    for _ in range(SCALES - 1):
        large = sizes >= 2 * LEAST_VOXELS
        pooled = large & (spacing <= LATE * spacing[large].min()) if large.any() else large
        x, y, z = (2 if axis else 1 for axis in pooled)
        found.append((x, y, z))
        spacing, sizes = spacing * (x, y, z), -(-sizes // (x, y, z))
    return tuple(found)
