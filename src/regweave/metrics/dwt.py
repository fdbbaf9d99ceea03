"""Mean absolute difference of discrete wavelet coefficients: orthonormal Haar, two levels, all sub-bands.

The transform is linear, so the coefficients of the difference image are what is summed. The support is the box of
the node with each edge rounded to a multiple of 4 voxels, as two levels need.
"""

import numpy as np

from regweave import _core, metrics
from regweave.spatial.control_grid import ControlGrid
from regweave.types import Float32Array


class Options(metrics.Options):
    """No options."""


def features(image: Float32Array, options: Options) -> Float32Array:
    """Return the intensities themselves, (1, X, Y, Z)."""
    return image[None]


def wavelet_support(grid: ControlGrid) -> ControlGrid:
    """Return the grid with each edge of the support rounded to a multiple of 4, at least 4."""
    return grid.with_support(
        tuple(4 * max(1, min((edge + 2) // 4, n // 4)) for edge, n in zip(grid.support, grid.image_shape, strict=True))
    )


def haar(blocks: Float32Array) -> list[Float32Array]:
    """One level of the orthonormal Haar transform over the last three axes: the low band, then seven details."""
    bands = [blocks]
    for axis in (-3, -2, -1):
        halves = [(b.take(range(0, b.shape[axis], 2), axis), b.take(range(1, b.shape[axis], 2), axis)) for b in bands]
        bands = [f(a, b) / np.sqrt(np.float32(2)) for a, b in halves for f in (np.add, np.subtract)]
    return bands


def cost(fixed: Float32Array, moved: Float32Array, grid: ControlGrid, options: Options) -> Float32Array:
    """Mean absolute Haar coefficient of the difference in the support of each node."""
    patches = wavelet_support(grid).patches(moved[0] - fixed[0])
    low, *fine = haar(patches)
    total = sum(np.abs(band).sum(axis=(1, 2, 3)) for band in fine + haar(low))
    return np.asarray(total / np.prod(patches.shape[1:]), dtype=np.float32)


def volume(
    fixed: Float32Array, moved: Float32Array, grid: ControlGrid, offsets: metrics.Offsets, options: Options
) -> Float32Array:
    """Return the cost of every label, (N, L)."""
    return _core.dwt_volume(fixed, moved, *wavelet_support(grid).support_arguments, *offsets)
