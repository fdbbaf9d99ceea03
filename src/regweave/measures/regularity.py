"""Regularity of a deformation, from its Jacobian determinants."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from regweave.spatial.jacobian import determinant, log_deviation
from regweave.types import Field, Float32Array

SMALLEST = 1e-9
EXTREME = 5.0
"""Tissue that grows or shrinks by more than this factor is called extreme."""


def regularity(field: Field, mask: ArrayLike | None = None, *, kernels: Any = None) -> dict[str, float]:
    """Summarise the Jacobian determinants of a field.

    Parameters
    ----------
    field : Field
        Displacement on the fixed grid.
    mask : boolean array of shape (X, Y, Z), optional
        Voxels that count; all by default.
    kernels : optional
        What computes the determinants, as in `regweave.spatial.jacobian.determinant`.

    Returns
    -------
    dict
        ``folding_fraction``, ``extreme_fraction`` (determinants below 1/5 or above 5), of it ``low_fraction`` and
        ``high_fraction``, ``sdlogj``, ``sdlogj_l2r``, ``min_jacobian``, ``max_jacobian``, and the percentiles
        ``jacobian_p1`` and ``jacobian_p99``.

    Examples
    --------
    >>> from regweave.types import Geometry
    >>> regularity(Field.zero(Geometry((6, 6, 6), np.eye(4))))["folding_fraction"]
    0.0
    """
    jacobian = determinant(field) if kernels is None else determinant(field, kernels=kernels)
    inside = _selected(jacobian, mask)
    there = inside if inside.size else np.full(1, np.nan, dtype=np.float32)
    low, high = (float(np.mean(far)) if inside.size else np.nan for far in (there < 1 / EXTREME, there > EXTREME))
    numbers = {
        "folding_fraction": folding_fraction(jacobian, mask),
        "extreme_fraction": low + high,
        "low_fraction": low,
        "high_fraction": high,
        "sdlogj": sdlogj(jacobian, mask),
        "sdlogj_l2r": sdlogj_l2r(jacobian, mask),
        "min_jacobian": float(there.min()),
        "max_jacobian": float(there.max()),
    }
    first, last = (float(p) for p in np.percentile(there, (1, 99), overwrite_input=True))  # sorts them: comes last
    return {**numbers, "jacobian_p1": first, "jacobian_p99": last}


def folding_fraction(jacobian: Float32Array, mask: ArrayLike | None = None) -> float:
    """Return the share of voxels whose Jacobian determinant is zero or less.

    Parameters
    ----------
    jacobian : float array of shape (X, Y, Z)
        Determinants.
    mask : boolean array of shape (X, Y, Z), optional
        Voxels that count; all by default.

    Returns
    -------
    float
        Between 0 and 1; NaN where no voxel counts.

    Examples
    --------
    >>> folding_fraction(np.array([[[1.0, -0.5, 0.0, 2.0]]], dtype=np.float32))
    0.5
    """
    values = _selected(jacobian, mask)
    return float(np.mean(values <= 0)) if values.size else float("nan")


def sdlogj(jacobian: Float32Array, mask: ArrayLike | None = None) -> float:
    """Return the standard deviation of ``log J``; determinants below 1e-9, folds included, count as 1e-9.

    Parameters
    ----------
    jacobian : float array of shape (X, Y, Z)
        Determinants.
    mask : boolean array of shape (X, Y, Z), optional
        Voxels that count; all by default.

    Returns
    -------
    float

    Examples
    --------
    >>> sdlogj(np.full((2, 2, 2), 1.5, dtype=np.float32))
    0.0
    """
    values = _selected(jacobian, mask)
    return _deviation_of_log(values)


def sdlogj_l2r(jacobian: Float32Array, mask: ArrayLike | None = None) -> float:
    """Return SDlogJ as the Learn2Reg challenge computes it.

    That is ``std(log(clip(J + 3, 1e-9, 1e9)))`` without a rim of two voxels. The 3 is in the challenge's
    evaluation code, so this number is not comparable with `sdlogj`.

    Parameters
    ----------
    jacobian : float array of shape (X, Y, Z)
        Determinants.
    mask : boolean array of shape (X, Y, Z), optional
        Voxels that count; all by default.

    Returns
    -------
    float
        NaN where no voxel is left.

    Examples
    --------
    >>> sdlogj_l2r(np.ones((5, 5, 5), dtype=np.float32))
    0.0
    """
    core = (slice(2, -2),) * 3
    values = _selected(jacobian[core], None if mask is None else np.asarray(mask)[core])
    return _deviation_of_log(values, 3.0)


def _selected(jacobian: Float32Array, mask: ArrayLike | None) -> Float32Array:
    return jacobian.ravel() if mask is None else jacobian[np.asarray(mask, dtype=bool)]


def _deviation_of_log(values: Float32Array, shift: float = 0.0) -> float:
    if values.size == 0:
        return float("nan")
    return log_deviation(values, SMALLEST, 1e9, shift)
