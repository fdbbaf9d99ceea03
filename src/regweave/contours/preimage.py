"""Preimages of single points under a transform, by Newton's method."""

from __future__ import annotations

import numpy as np

from regweave.spatial import warp_points
from regweave.types import Float64Array, Transform

STEP_MM = 0.5
MOST_STEPS = 30


def preimages(transform: Transform, points_mm: Float64Array, *, tolerance_mm: float = 0.01) -> Float64Array:
    """Return the points that a transform takes to given ones.

    Parameters
    ----------
    transform : Transform
    points_mm : float array of shape (n, 3)
    tolerance_mm : float
        How near the transform must come.

    Returns
    -------
    float array of shape (n, 3)
        NaN where nothing comes near enough.

    Examples
    --------
    >>> from regweave.types import Field, Geometry
    >>> shift = Field(np.ones((3, 4, 4, 4), dtype=np.float32), Geometry((4, 4, 4), np.eye(4)))
    >>> preimages(Transform(shift), np.array([[3.0, 3.0, 3.0]])).tolist()
    [[2.0, 2.0, 2.0]]
    """
    wanted = np.asarray(points_mm, dtype=np.float64).reshape(-1, 3)
    if not len(wanted):
        return wanted.copy()
    back = np.linalg.inv(transform.affine)
    found = wanted @ back[:3, :3].T + back[:3, 3]
    best, error = found.copy(), np.full(len(wanted), np.inf)
    for _ in range(MOST_STEPS):
        away = warp_points(found, transform) - wanted
        length = np.linalg.norm(away, axis=1)
        better = length < error
        best[better], error[better] = found[better], length[better]
        if (error <= 1e-3 * tolerance_mm).all() or not better.any():
            break
        found = best - np.where(better[:, None], _newton(transform, found, away), 0.0)
    return np.where((error <= tolerance_mm)[:, None], best, np.nan)


def _newton(transform: Transform, points: Float64Array, away: Float64Array) -> Float64Array:
    """Solve the linear problem at each point, with differences of the transform; a plain step where it is singular."""
    columns = [
        (warp_points(points + e, transform) - warp_points(points - e, transform)) / (2 * STEP_MM)
        for e in STEP_MM * np.eye(3)
    ]
    jacobian = np.stack(columns, axis=-1)
    good = np.linalg.det(jacobian) > 0.05
    jacobian[~good] = np.eye(3)
    return np.asarray(np.linalg.solve(jacobian, away[..., None])[..., 0])
