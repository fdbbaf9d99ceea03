"""Composition of dense fields, and fields on other grids."""

from __future__ import annotations

import numpy as np

from regweave import _core
from regweave.spatial.warp import to_field, to_voxels, voxel_matrix, warp_channels
from regweave.types import Field, Float32Array, Geometry


def compose(outer: Field, inner: Field) -> Field:
    """Return the field of the map that applies ``inner`` first and ``outer`` to its result.

    Parameters
    ----------
    outer, inner : Field
        On one grid. Points that ``inner`` takes outside the grid see the border value of ``outer``.

    Returns
    -------
    Field
        ``inner(p) + outer(p + inner(p))``, trilinear.

    Examples
    --------
    >>> grid = Geometry((4, 4, 4), np.eye(4))
    >>> shift = Field(np.ones((3, 4, 4, 4), dtype=np.float32), grid)
    >>> float(compose(shift, shift).data[0, 1, 2, 3])
    2.0
    """
    data: Float32Array = _core.compose(to_voxels(outer), to_voxels(inner))
    return to_field(data, inner.geometry)


def resample(field: Field, geometry: Geometry) -> Field:
    """Interpolate a field on another grid, trilinearly; beyond its own grid it keeps its border value.

    Parameters
    ----------
    field : Field
        Displacements in millimetres: their values need no scaling when the grid changes.
    geometry : Geometry
        Grid of the result.

    Returns
    -------
    Field

    Examples
    --------
    >>> coarse = Geometry((2, 2, 2), np.diag([4.0, 4.0, 4.0, 1.0]))
    >>> field = Field(np.ones((3, 2, 2, 2), dtype=np.float32), coarse)
    >>> resample(field, Geometry((8, 8, 8), np.eye(4))).data.shape
    (3, 8, 8, 8)
    """
    matrix = voxel_matrix(geometry, field.geometry, np.eye(4))
    still = np.zeros((3, *geometry.shape), dtype=np.float32)
    return Field(warp_channels(field.data, matrix, still), geometry)
