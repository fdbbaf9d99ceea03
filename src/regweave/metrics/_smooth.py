"""Gaussian smoothing of an image, shared by the metrics that look at derivatives."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from regweave.types import Float32Array


def smooth(image: Float32Array, sigma_voxels: float) -> Float32Array:
    """Convolve with a Gaussian cut at two standard deviations; edge voxels repeat outside."""
    if sigma_voxels == 0:
        return image
    return np.asarray(ndimage.gaussian_filter(image, sigma_voxels, mode="nearest", truncate=2.0))
