"""Normalised gradient fields (Haber and Modersitzki 2006): edges match where they are parallel.

With n = ∇I / √(|∇I|² + ε²) the cost of a voxel is ½ |n_W n_W' − n_J n_J'|² = ½ (|n_W|⁴ + |n_J|⁴) − ⟨n_W, n_J⟩². It does
not see the sign of an edge, and is zero at a perfect match; 1 − ⟨n_W, n_J⟩² is not where an edge is faint, and draws
faint edges to strong ones.
"""

import numpy as np
from pydantic import Field

from regweave import _core, metrics
from regweave.spatial.control_grid import ControlGrid
from regweave.types import Float32Array

PENALTY = "tensor"


class Options(metrics.Options):
    """Scale and noise level of the gradient."""

    sigma_voxels: float = Field(default=0.7, ge=0, le=5)
    """Standard deviation of the Gaussian applied before the differences."""
    edge: float = Field(default=1.0, ge=1e-6, le=1e3)
    """ε as a multiple of the mean gradient magnitude of the image: weaker slopes count as noise."""


def features(image: Float32Array, options: Options) -> Float32Array:
    """Return the normalised gradient per voxel, (3, X, Y, Z), of length below 1."""
    return _core.gradient_direction(smooth(image, options.sigma_voxels), options.edge)


def cost(fixed: Float32Array, moved: Float32Array, grid: ControlGrid, options: Options) -> Float32Array:
    """Half the mean squared difference of the outer products in the support of each node, in [0, 1]."""
    dot, ww, ff = ((a * b).sum(axis=0) for a, b in ((fixed, moved), (moved, moved), (fixed, fixed)))
    return grid.pool(np.float32(0.5) * (ww**2 + ff**2) - dot**2)


def volume(
    fixed: Float32Array, moved: Float32Array, grid: ControlGrid, offsets: metrics.Offsets, options: Options
) -> Float32Array:
    """Return the cost of every label, (N, L)."""
    return _core.ngf_volume(fixed, moved, *grid.support_arguments, *offsets)


def smooth(image: Float32Array, sigma_voxels: float) -> Float32Array:
    """Convolve with a Gaussian cut at two standard deviations; edge voxels repeat outside."""
    if sigma_voxels == 0:
        return image
    out: Float32Array = _core.gaussian(image[None], (sigma_voxels,) * 3, 2.0)[0]
    return out
