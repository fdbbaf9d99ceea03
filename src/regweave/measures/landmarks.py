"""Target registration error of corresponding landmarks, in millimetres."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from regweave.spatial.warp import warp_points
from regweave.types import Float64Array, Transform


@dataclass(frozen=True)
class TargetErrors:
    """Distances of the landmarks (P,) in millimetres, and what summarises them."""

    distances_mm: Float64Array
    mean_mm: float
    p95_mm: float
    max_mm: float


def target_registration_error_mm(
    fixed_points: ArrayLike, moving_points: ArrayLike, transform: Transform
) -> TargetErrors:
    """Measure how far the transform takes each fixed landmark from its partner in the moving image.

    Parameters
    ----------
    fixed_points, moving_points : float arrays of shape (P, 3)
        Corresponding points in LPS millimetres, in the same order.
    transform : Transform
        Takes fixed points to moving points.

    Returns
    -------
    TargetErrors
        Distances in moving space with their mean, 95th percentile and maximum; NaN where there are no points.

    Examples
    --------
    >>> from regweave.types import Field, Geometry
    >>> identity = Transform(Field.zero(Geometry((4, 4, 4), np.eye(4))))
    >>> target_registration_error_mm([[0, 0, 0], [1, 1, 1]], [[3, 0, 4], [1, 1, 1]], identity).max_mm
    5.0
    """
    fixed, moving = (np.asarray(p, dtype=np.float64) for p in (fixed_points, moving_points))
    if fixed.shape != moving.shape or fixed.ndim != 2 or fixed.shape[1] != 3:
        raise ValueError(f"landmarks have shapes {fixed.shape} and {moving.shape}; give two lists of P points (P, 3)")
    distances = np.asarray(np.linalg.norm(warp_points(fixed, transform) - moving, axis=1))
    if distances.size == 0:
        return TargetErrors(distances, *(float("nan"),) * 3)
    p95 = float(np.percentile(distances, 95))
    return TargetErrors(distances, float(distances.mean()), p95, float(distances.max()))
