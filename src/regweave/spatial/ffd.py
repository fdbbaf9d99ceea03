"""Free-form deformation: cubic B-splines on a lattice of control points, in voxel units."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from regweave import _core
from regweave.types import Float32Array


def evaluate(
    coefficients: Float32Array, origin: ArrayLike, spacing: ArrayLike, shape: tuple[int, int, int]
) -> Float32Array:
    """Evaluate a free-form deformation at every voxel.

    With coefficients of at most 0.4 control spacings along each axis the map x → x + u(x) does not fold.

    Parameters
    ----------
    coefficients : float32 array of shape (C, nx, ny, nz)
        Displacement of each control point; control point (a, b, c) lies at ``origin + (a, b, c) * spacing``.
        Beyond the lattice the nearest control point is repeated.
    origin, spacing : three floats
        Of the lattice, in voxels.
    shape : tuple of three ints
        Voxels along each axis.

    Returns
    -------
    float32 array of shape (C, X, Y, Z)

    References
    ----------
    Rueckert et al. (1999), "Nonrigid registration using free-form deformations"; Choi and Lee (2000),
    "Injectivity conditions of 2D and 3D uniform cubic B-spline functions".

    Examples
    --------
    >>> shift = np.full((3, 4, 4, 4), 1.5, dtype=np.float32)
    >>> float(evaluate(shift, (0, 0, 0), (5, 5, 5), (10, 10, 10))[0, 3, 3, 3])
    1.5
    """
    dense: Float32Array = _core.ffd(coefficients, _triple(origin), _triple(spacing), shape)
    return dense


def adjoint(dense: Float32Array, origin: ArrayLike, spacing: ArrayLike, nodes: tuple[int, int, int]) -> Float32Array:
    """Apply the transpose of `evaluate`: take a gradient over voxels to one over coefficients.

    Parameters
    ----------
    dense : float32 array of shape (C, X, Y, Z)
        One value for each component and voxel.
    origin, spacing : three floats
        Of the lattice, in voxels.
    nodes : tuple of three ints
        Control points along each axis.

    Returns
    -------
    float32 array of shape (C, nx, ny, nz)

    Examples
    --------
    >>> total = adjoint(np.ones((1, 8, 8, 8), dtype=np.float32), (-4, -4, -4), (4, 4, 4), (5, 5, 5)).sum()
    >>> round(float(total))
    512
    """
    coefficients: Float32Array = _core.ffd_adjoint(dense, _triple(origin), _triple(spacing), nodes)
    return coefficients


def _triple(values: ArrayLike) -> list[float]:
    return [float(v) for v in np.broadcast_to(np.asarray(values, dtype=np.float64), (3,))]
