"""Accuracy of a numerical inverse, judged inside the body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.spatial.invert import defined
from regweave.types import Float32Array

ACCEPTABLE_MM = 0.1
"""A voxel of the inverse with a larger residual is inexact."""
SHARE = 1e-3
VOXELS = 1.0
"""Above this share of inexact body voxels, or this 99th percentile in voxels, the inverse deserves a warning."""


@dataclass(frozen=True)
class Residual:
    """Residual of an inversion inside the body.

    Inexact voxels and all, the largest residual and the voxel that has it.
    """

    inexact: int
    body: int
    largest_mm: float
    at: tuple[int, int, int]

    @classmethod
    def of(cls, residual_mm: Float32Array, body: NDArray[np.bool_]) -> Residual:
        """Summarise the residual of each voxel of the moving grid, of those that count."""
        inexact, largest, at = 0, 0.0, (0, 0, 0)
        for i, (inside, residual) in enumerate(zip(body, residual_mm, strict=True)):  # a copy may not fit
            found = np.where(inside, residual, np.float32(0.0))
            inexact += int((found > ACCEPTABLE_MM).sum())
            if found.max() > largest:
                j, k = divmod(int(found.argmax()), found.shape[1])
                largest, at = float(found.max()), (i, j, k)
        return cls(inexact, int(body.sum()), largest, at)


@dataclass(frozen=True)
class InverseError:
    """Residual of the inverse and error of going there and back, over the body.

    Parameters
    ----------
    inexact : int
        Body voxels of the moving image whose residual exceeds 0.1 mm.
    body : int
        Voxels of the body.
    largest_mm : float
        Largest residual in the body.
    at : tuple of three ints
        Voxel of the moving image that has it.
    p99_mm, p99_voxels : float
        99th percentile of the error after going from fixed to moving and back, over the body of the fixed image; in
        voxels it is relative to the largest spacing. NaN where no body voxel stays inside the moving image.
    """

    inexact: int
    body: int
    largest_mm: float
    at: tuple[int, int, int]
    p99_mm: float
    p99_voxels: float

    @classmethod
    def of(
        cls, left: Residual, errors_mm: Float32Array, fixed_body: NDArray[np.bool_], spacing_mm: float
    ) -> InverseError:
        """Summarise what an inversion left over.

        Parameters
        ----------
        left : Residual
            Residual of the inverse in the moving body.
        errors_mm, fixed_body : arrays on the fixed grid
            Error there and back, NaN where it is not defined, and the voxels that count.
        spacing_mm : float
            Largest spacing of the fixed image.
        """
        seen = defined(errors_mm[fixed_body])
        p99_mm = float(np.percentile(seen, 99, overwrite_input=True)) if seen.size else float("nan")
        return cls(left.inexact, left.body, left.largest_mm, left.at, p99_mm, p99_mm / spacing_mm)

    @property
    def share(self) -> float:
        """Inexact voxels as a share of the body."""
        return self.inexact / self.body if self.body else 0.0

    @property
    def notable(self) -> bool:
        """True if a user of the inverse should know; so is an error that could not be measured."""
        return self.share > SHARE or not self.p99_voxels <= VOXELS

    def words(self) -> str:
        """Say how inexact the inverse is, and where."""
        place = f"voxel {self.at} of the moving image"
        if self.inexact:
            text = (
                f"the inverse transform is inexact at {self.inexact} voxels of the body ({self.share:.2%}), at most "
                f"{self.largest_mm:.2g} mm, near {place}"
            )
        else:
            text = "the inverse transform is exact at every voxel of the body"
        if np.isnan(self.p99_mm):
            return f"{text}; no voxel of the fixed body stays inside the moving image"
        return f"{text}; there and back the error is {self.p99_mm:.2g} mm at the 99th percentile"

    def record(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        known = not np.isnan(self.p99_mm)
        return {
            "inexact_voxels": self.inexact,
            "body_voxels": self.body,
            "inexact_fraction": self.share,
            "largest_mm": self.largest_mm,
            "voxel": list(self.at),
            "p99_mm": self.p99_mm if known else None,
            "p99_voxels": self.p99_voxels if known else None,
        }

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> InverseError:
        """Return what `record` wrote."""
        i, j, k = row["voxel"]
        p99 = [float("nan") if row[key] is None else float(row[key]) for key in ("p99_mm", "p99_voxels")]
        return cls(row["inexact_voxels"], row["body_voxels"], row["largest_mm"], (i, j, k), *p99)
