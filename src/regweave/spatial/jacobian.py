"""Jacobian determinant of a field: local change of volume, negative where it folds."""

from __future__ import annotations

from typing import Any

from regweave.kernels import fields
from regweave.spatial.warp import to_voxels
from regweave.types import Field, Float32Array


def determinant(field: Field, *, kernels: Any = fields) -> Float32Array:
    """Return ``det(I + ∂u/∂x)`` at each voxel, by central differences, one-sided at the border.

    The determinant is the same in voxels and in millimetres.

    Parameters
    ----------
    field : Field
        Displacement u.
    kernels : optional
        What computes: the functions of `regweave.kernels.fields`, by default those of the host.

    Returns
    -------
    float32 array of shape (X, Y, Z)

    Examples
    --------
    >>> import numpy as np
    >>> from regweave.types import Geometry
    >>> float(determinant(Field.zero(Geometry((3, 3, 3), np.eye(4)))).min())
    1.0
    """
    values: Float32Array = kernels.jacobian(to_voxels(field))
    return values
