"""Regularity of a deformation from its Jacobian determinants, and the error of its numerical inverse."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import AfterValidator

from regweave.io.disk.records import Count, Measured, Number
from regweave.spatial.deformation import determinant, log_deviation
from regweave.spatial.invert import defined
from regweave.types import Field, Float32Array

SMALLEST = 1e-9
EXTREME = 5.0
"""Tissue that grows or shrinks by more than this factor is called extreme."""
REGULARITY = (
    "folding_fraction", "extreme_fraction", "low_fraction", "high_fraction", "sdlogj", "sdlogj_l2r", "min_jacobian",
    "max_jacobian", "jacobian_p1", "jacobian_p99",
)  # fmt: skip
Regularity = Annotated[
    dict[str, Measured], AfterValidator(lambda found: {name: found.get(name, math.nan) for name in REGULARITY})
]
"""The numbers of `regularity`, each of them: NaN for what a record lacks."""
RoundTrip = Annotated[
    dict[str, Measured], AfterValidator(lambda found: {n: found.get(n, math.nan) for n in ("mean", "p95", "max")})
]
"""Summary of distances in millimetres."""


def regularity(field: Field, mask: ArrayLike | None = None, *, kernels: Any = None) -> dict[str, float]:
    """Summarise the Jacobian determinants of a field.

    Parameters
    ----------
    field : Field
        Displacement on the fixed grid.
    mask : boolean array of shape (X, Y, Z), optional
        Voxels that count; all by default.
    kernels : optional
        What computes the determinants, as in `regweave.spatial.deformation.determinant`.

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


ACCEPTABLE_MM = 0.1
"""A voxel of the inverse with a larger residual is inexact."""
SHARE = 1e-3
VOXELS = 1.0
"""Above this share of inexact body voxels, or this 99th percentile in voxels, the inverse deserves a warning."""


@dataclass(frozen=True)
class InverseError:
    """Residual of a numerical inverse and error there and back, over the body.

    Parameters
    ----------
    inexact_voxels, body_voxels : int
        Body voxels of the moving image whose residual exceeds 0.1 mm, and all body voxels.
    largest_mm : float
        Largest residual in the body.
    voxel : three ints
        Voxel of the moving image that has it.
    p99_mm, p99_voxels : float
        99th percentile of the error after going from fixed to moving and back, over the body of the fixed image; in
        voxels it is relative to the largest spacing. NaN where no body voxel stays inside the moving image.
    """

    inexact_voxels: Count
    body_voxels: Count
    largest_mm: Number
    voxel: tuple[Count, Count, Count]
    p99_mm: Measured = math.nan
    p99_voxels: Measured = math.nan

    @classmethod
    def of_residual(cls, residual_mm: Float32Array, body: NDArray[np.bool_]) -> InverseError:
        """Summarise the residual of each voxel of the moving grid inside the body."""
        inexact, largest, at = 0, 0.0, (0, 0, 0)
        for i, (inside, residual) in enumerate(zip(body, residual_mm, strict=True)):  # a copy may not fit
            found = np.where(inside, residual, np.float32(0.0))
            inexact += int((found > ACCEPTABLE_MM).sum())
            if found.max() > largest:
                j, k = divmod(int(found.argmax()), found.shape[1])
                largest, at = float(found.max()), (i, j, k)
        return cls(inexact, int(body.sum()), largest, at)

    def with_round_trip(
        self, errors_mm: Float32Array, fixed_body: NDArray[np.bool_], spacing_mm: float
    ) -> InverseError:
        """Add the error there and back.

        Parameters
        ----------
        errors_mm, fixed_body : arrays on the fixed grid
            Error there and back, NaN where it is not defined, and the voxels that count.
        spacing_mm : float
            Largest spacing of the fixed image.
        """
        seen = defined(errors_mm[fixed_body])
        p99_mm = float(np.percentile(seen, 99, overwrite_input=True)) if seen.size else math.nan
        return replace(self, p99_mm=p99_mm, p99_voxels=p99_mm / spacing_mm)

    @property
    def share(self) -> float:
        """Inexact voxels as a share of the body."""
        return self.inexact_voxels / self.body_voxels if self.body_voxels else 0.0

    @property
    def notable(self) -> bool:
        """True if a user of the inverse should know; so is an error that could not be measured."""
        return self.share > SHARE or not self.p99_voxels <= VOXELS

    def words(self) -> str:
        """Say how inexact the inverse is, and where."""
        place = f"voxel {self.voxel} of the moving image"
        if self.inexact_voxels:
            text = (
                f"the inverse transform is inexact at {self.inexact_voxels} voxels of the body ({self.share:.2%}), "
                f"at most {self.largest_mm:.2g} mm, near {place}"
            )
        else:
            text = "the inverse transform is exact at every voxel of the body"
        if np.isnan(self.p99_mm):
            return f"{text}; no voxel of the fixed body stays inside the moving image"
        return f"{text}; there and back the error is {self.p99_mm:.2g} mm at the 99th percentile"
