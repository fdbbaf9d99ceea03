"""Gaussian smoothing of an image, shared by the metrics that look at derivatives."""

from __future__ import annotations

from regweave import _core
from regweave.types import Float32Array


def smooth(image: Float32Array, sigma_voxels: float) -> Float32Array:
    """Convolve with a Gaussian cut at two standard deviations; edge voxels repeat outside."""
    if sigma_voxels == 0:
        return image
    out: Float32Array = _core.gaussian(image[None], (sigma_voxels,) * 3, 2.0)[0]
    return out
