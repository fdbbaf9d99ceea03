"""Image pyramid: grids shrunk by whole factors, and displacements carried between levels."""

import numpy as np

from regweave import _core
from regweave.types import Float32Array, Float64Array, Geometry

Factors = tuple[int, int, int]


def shrink_geometry(geometry: Geometry, factors: Factors) -> Geometry:
    """Grid of the blocks of ``factors`` voxels; a block's centre is the mean of its voxels' centres."""
    f = np.array(factors)
    x, y, z = (int(n) for n in -(-np.array(geometry.shape) // f))
    affine = geometry.affine.copy()
    affine[:3, :3] = geometry.affine[:3, :3] * f
    affine[:3, 3] = geometry.points((f - 1) / 2)
    return Geometry((x, y, z), affine)


def shrink(image: Float32Array, factors: Factors) -> Float32Array:
    """Mean of each block of voxels; the last block along an axis is filled with the edge voxel."""
    if factors == (1, 1, 1):
        return image
    return _core.block_mean(np.ascontiguousarray(image, dtype=np.float32), factors)


def change_level(u: Float32Array, before: Factors, after: Factors, shape: tuple[int, int, int]) -> Float32Array:
    """Carry a displacement in voxels (3, X, Y, Z) from one shrunken grid to another of the same image."""
    if before == after:
        return u
    b, a = np.array(before, dtype=np.float64), np.array(after, dtype=np.float64)
    scale: Float64Array = a / b
    offset: Float64Array = (a - b) / (2 * b)
    units = (b / a).astype(np.float32)
    if u[0].size < np.prod(shape):  # the smaller of the two is scaled
        return _core.resample_field(_core.scale_channels(u, units), shape, scale, offset)
    return _core.scale_channels(_core.resample_field(u, shape, scale, offset), units)
