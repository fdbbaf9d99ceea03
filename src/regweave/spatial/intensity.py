"""Intensity normalisation to [0, 1]: fixed Hounsfield windows for CT, percentiles for everything else."""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave import _core
from regweave.types import Float32Array, Image, Modality, Volume

Window = tuple[float, float]

BODY_WINDOW_HU: Window = (-200.0, 300.0)
PERCENTILES = (0.5, 99.5)


def default_window(image: Float32Array, modality: Modality) -> Window:
    """Window of a member that names none: the body for CT, the 0.5–99.5 percentiles otherwise."""
    if modality == "ct":
        return BODY_WINDOW_HU
    low, high = np.percentile(sampled(image), PERCENTILES)
    if high <= low:
        low, high = image.min(), image.max()
    return float(low), float(high)


def sampled(image: Float32Array) -> Float32Array:
    """Every k-th voxel, at least 65536 of them: quantiles of a large image do not need every voxel."""
    values = image.ravel()
    return values[:: max(1, values.size // 65536)]


def apply_window(image: Float32Array, window: Window) -> Float32Array:
    """Map the window to [0, 1] and cut values outside."""
    low, high = window
    values = np.ascontiguousarray(image, dtype=np.float32)
    solid = values if values.ndim == 3 else values.reshape(1, 1, -1)
    return _core.window(solid, low, high).reshape(values.shape)


def inside(image: Volume) -> NDArray[np.bool_] | None:
    """Voxels that a mask lets count, (X, Y, Z); None without a mask, or where it holds the whole image."""
    if not isinstance(image, Image) or image.mask is None:
        return None
    found = image.mask.data != 0
    return None if found.all() else found


def extrapolated(image: Volume) -> Float32Array:
    """Replace voxels outside the mask by the nearest one inside.

    Windows and gradients at the rim of the mask then do not depend on voxels beyond, as at the border of an image.
    """
    if (found := inside(image)) is None:
        return image.data
    nearest = ndimage.distance_transform_edt(~found, return_distances=False, return_indices=True)
    return np.asarray(image.data[tuple(nearest)])
