"""Regularity of a deformation from its Jacobian determinants, and the error of its numerical inverse."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import AfterValidator

from regweave.io.disk.records import Count, Measured, Number
from regweave.spatial.warp import defined, log_deviation
from regweave.types import Float32Array

SMALLEST, LARGEST = 1e-9, 1e9
EXTREME = 5.0  # Tissue that grows or shrinks by more than this factor is called extreme
REGULARITY = (
    "folding_fraction", "extreme_fraction", "low_fraction", "high_fraction", "sdlogj", "sdlogj_l2r", "min_jacobian",
    "max_jacobian", "jacobian_p1", "jacobian_p99",
)  # fmt: skip
Regularity = Annotated[
    dict[str, Measured], AfterValidator(lambda given: {name: given.get(name, math.nan) for name in REGULARITY})
]
"""The numbers of `regularity`, each of them: NaN for what a record lacks."""
RoundTrip = Annotated[
    dict[str, Measured], AfterValidator(lambda given: {n: given.get(n, math.nan) for n in ("mean", "p95", "max")})
]
"""Summary of distances in millimetres."""


def regularity(jacobian: Float32Array, mask: ArrayLike | None = None) -> dict[str, float]:
    """Summarise Jacobian determinants (X, Y, Z), inside a mask where one is given; NaN without a voxel.

    ``folding_fraction`` is the share of determinants of zero or less. ``extreme_fraction`` is that below 1/5 or above
    5, the sum of ``low_fraction`` and ``high_fraction``. ``sdlogj`` is the standard deviation of ``log J``, where
    determinants below 1e-9, folds included, count as 1e-9. ``sdlogj_l2r`` is that of the Learn2Reg challenge,
    ``std(log(clip(J + 3, 1e-9, 1e9)))`` without a rim of two voxels; the two are not comparable. ``min_jacobian``,
    ``max_jacobian``, ``jacobian_p1`` and ``jacobian_p99`` are the ends and percentiles.
    """
    core, chosen = (slice(2, -2),) * 3, None if mask is None else np.asarray(mask, dtype=bool)
    inside = jacobian.ravel() if chosen is None else jacobian[chosen]
    inner = jacobian[core].ravel() if chosen is None else jacobian[core][chosen[core]]
    there = inside if inside.size else np.full(1, np.nan, dtype=np.float32)
    low, high = (float(np.mean(far)) if inside.size else np.nan for far in (there < 1 / EXTREME, there > EXTREME))
    numbers = {
        "folding_fraction": float(np.mean(inside <= 0)) if inside.size else math.nan, "extreme_fraction": low + high,
        "low_fraction": low, "high_fraction": high,
        "sdlogj": log_deviation(inside, SMALLEST, LARGEST, 0.0) if inside.size else math.nan,
        "sdlogj_l2r": log_deviation(inner, SMALLEST, LARGEST, 3.0) if inner.size else math.nan,
        "min_jacobian": float(there.min()), "max_jacobian": float(there.max()),
    }  # fmt: skip
    first, last = (float(p) for p in np.percentile(there, (1, 99)))
    return {**numbers, "jacobian_p1": first, "jacobian_p99": last}


ACCEPTABLE_MM = 0.1  # A voxel of the inverse with a larger residual is inexact
SHARE = 1e-3
VOXELS = 1.0
"""Above this share of inexact body voxels, or this 99th percentile in voxels, the inverse deserves a warning."""


@dataclass(frozen=True)
class InverseError:
    """Residual of a numerical inverse over the moving body, and error there and back over the fixed one."""

    inexact_voxels: Count  # Body voxels whose residual exceeds 0.1 mm
    body_voxels: Count
    largest_mm: Number
    voxel: tuple[Count, Count, Count]  # Voxel of the largest residual
    p99_mm: Measured = math.nan
    """99th percentile of the error there and back; NaN where no body voxel stays inside the moving image."""
    p99_voxels: Measured = math.nan  # The same, relative to the largest spacing

    @classmethod
    def of_residual(cls, residual_mm: Float32Array, body: NDArray[np.bool_]) -> InverseError:
        """Summarise the residual of each voxel of the moving grid inside the body."""
        inexact, largest, at = 0, 0.0, (0, 0, 0)
        for i, (inside, residual) in enumerate(zip(body, residual_mm, strict=True)):  # a copy may not fit
            plane = np.where(inside, residual, np.float32(0.0))
            inexact += int((plane > ACCEPTABLE_MM).sum())
            if plane.max() > largest:
                j, k = divmod(int(plane.argmax()), plane.shape[1])
                largest, at = float(plane.max()), (i, j, k)
        return cls(inexact, int(body.sum()), largest, at)

    def with_round_trip(
        self, errors_mm: Float32Array, fixed_body: NDArray[np.bool_], spacing_mm: float
    ) -> InverseError:
        """Add the error there and back on the fixed grid, over its body; ``spacing_mm`` is its largest spacing."""
        errors = defined(errors_mm[fixed_body])
        p99_mm = float(np.percentile(errors, 99, overwrite_input=True)) if errors.size else math.nan
        return replace(self, p99_mm=p99_mm, p99_voxels=p99_mm / spacing_mm)

    @property
    def share(self) -> float:
        """Inexact voxels as a share of the body."""
        return self.inexact_voxels / self.body_voxels if self.body_voxels else 0.0

    @property
    def notable(self) -> bool:
        """True if the inverse deserves a warning; an error that could not be measured does."""
        return self.share > SHARE or not self.p99_voxels <= VOXELS

    def words(self) -> str:
        """Describe how inexact the inverse is, and where."""
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
