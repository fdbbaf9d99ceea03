"""Free-form deformation: cubic B-splines on a lattice of control points, in voxel units."""

from typing import Any

import numpy as np

from regweave import _core
from regweave.spatial.warp import slabs, to_field, to_voxels, voxel_matrix, warp_channels
from regweave.types import Field, Float32Array, Geometry


def compose(outer: Field, inner: Field) -> Field:
    """Return the field of the map that applies ``inner`` first and ``outer``, on the same grid, to its result.

    It is ``inner(p) + outer(p + inner(p))``, trilinear; beyond the grid ``outer`` keeps its border value.
    """
    data: Float32Array = _core.compose(to_voxels(outer), to_voxels(inner))
    return to_field(data, inner.geometry)


def resample(field: Field, geometry: Geometry) -> Field:
    """Interpolate a field on another grid, trilinearly; beyond its own grid it keeps its border value.

    Displacements are in millimetres, so their values need no scaling.
    """
    matrix = voxel_matrix(geometry, field.geometry, np.eye(4))
    still = np.zeros((3, *geometry.shape), dtype=np.float32)
    return Field(warp_channels(field.data, matrix, still), geometry)


def determinant(field: Field, *, kernels: Any = _core) -> Float32Array:
    """Return ``det(I + ∂u/∂x)`` at each voxel, by central differences, one-sided at the border.

    It is the same in voxels and in millimetres. ``kernels`` are the functions of `regweave._core` or those of a GPU.
    """
    parts = slabs(field.geometry.shape)
    if len(parts) == 1:
        return _planes(field, parts[0], kernels)
    out = np.empty(field.geometry.shape, dtype=np.float32)
    for slab in parts:
        out[slab] = _planes(field, slab, kernels)
    return out


def _planes(field: Field, slab: slice, kernels: Any) -> Float32Array:
    """Return the determinants of some planes, which differences with their neighbours need."""
    begin, end = slab.start, slab.stop
    low, high = max(0, begin - 1), min(end + 1, field.geometry.shape[0])
    part = Geometry((high - low, *field.geometry.shape[1:]), field.geometry.affine)  # where it lies does not matter
    values: Float32Array = kernels.jacobian(to_voxels(Field(field.data[:, low:high], part)))
    return values[begin - low : end - low]


def log_deviation(values: Float32Array, least: float, most: float, shift: float = 0.0) -> float:
    """Return the standard deviation of log(value + shift), cut to ``least`` and ``most`` before the logarithm."""
    return _core.log_spread(np.ascontiguousarray(values.ravel(), dtype=np.float32), shift, least, most)[1]
