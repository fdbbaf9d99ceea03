"""Consistency of two registrations, from today to plan and from plan to today, each run on its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from regweave.clinic.scans.pair import WorkingScan
from regweave.spatial.invert import invert
from regweave.spatial.warp import inverse_of, warp_points
from regweave.types import Float64Array, Transform

MOST_POINTS = 100_000
Register = Callable[[WorkingScan, WorkingScan, Transform], Transform]
"""Registers the second scan to the first from a start; gives the transform from the first to the second."""


@dataclass(frozen=True)
class BothWays:
    """A registration there, and one that was run the other way."""

    there: Transform
    back: Transform

    def errors_mm(self, points_mm: Float64Array) -> Float64Array:
        """Return how far points of today come to lie from where they began, by the one and then by the other.

        Points that the first takes out of the plan's scan have no error.
        """
        plan = warp_points(points_mm, self.there)
        grid = self.back.field.geometry
        to_voxels = inverse_of(grid.affine)
        index = plan @ to_voxels[:3, :3].T + to_voxels[:3, 3]
        seen = ((index >= 0) & (index <= np.array(grid.shape) - 1)).all(axis=1)
        return np.asarray(np.linalg.norm(warp_points(plan[seen], self.back) - points_mm[seen], axis=1))

    def numbers(self, today: WorkingScan) -> dict[str, float | None]:
        """Return mean, 95th percentile and largest error over the patient, and the mean in voxels."""
        inside = np.ones(today.image.data.shape, dtype=bool) if today.body is None else today.body
        if today.region is not None:
            inside = inside & (today.region.data != 0)
        flat = np.flatnonzero(inside)
        index = np.stack(np.unravel_index(flat[:: max(1, len(flat) // MOST_POINTS)], inside.shape), axis=1)
        found = self.errors_mm(today.image.geometry.points(index.astype(np.float64)))
        names = ("both_ways_mean_mm", "both_ways_p95_mm", "both_ways_max_mm", "both_ways_voxels")
        if not len(found):
            return dict.fromkeys(names)
        mean = float(found.mean())
        largest = float(today.image.geometry.spacing_mm.max())
        return dict(
            zip(names, (mean, float(np.percentile(found, 95)), float(found.max()), mean / largest), strict=True)
        )


def run_back(
    there: Transform, start: Transform, scans: tuple[WorkingScan, WorkingScan], register: Register
) -> BothWays:
    """Register today to the plan, from the inverse of the same start, and return both transforms.

    Parameters
    ----------
    there : Transform
        Today to plan.
    start : Transform
        Where it began.
    scans : two WorkingScan
        Today and plan.
    register : function
    """
    today, plan = scans
    turned: Any = invert(start, plan.image.geometry).transform
    return BothWays(there, register(plan, today, turned))
