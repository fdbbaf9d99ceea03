"""Target registration error of corresponding landmarks, in millimetres."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from regweave import notices
from regweave.errors import UsageError
from regweave.io.disk.files import sha256
from regweave.io.points import read_point_pairs
from regweave.spatial.warp import warp_points
from regweave.types import Float64Array, Geometry, Transform

ITERATIONS = 30
CLOSE_MM = 1e-4


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
    return _errors(np.asarray(np.linalg.norm(warp_points(fixed, transform) - moving, axis=1)))


def _errors(distances: Float64Array) -> TargetErrors:
    if distances.size == 0:
        return TargetErrors(distances, *(float("nan"),) * 3)
    p95 = float(np.percentile(distances, 95))
    return TargetErrors(distances, float(distances.mean()), p95, float(distances.max()))


@dataclass(frozen=True)
class LandmarkPairs:
    """Corresponding points (P, 3) in LPS millimetres, their names, and the hashes of the files they came from."""

    fixed: Float64Array
    moving: Float64Array
    names: Sequence[str] = ()
    sha256: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, fixed: Any, moving: Any) -> LandmarkPairs:
        """Read two files, or take two arrays; those that were read before pass through.

        Raises
        ------
        RegweaveError
            E116, where points cannot be read, lack a partner, or only one of the two is given.
        """
        if fixed is None or moving is None:
            lacking = "fixed" if fixed is None else "moving"
            raise UsageError("E116", f"landmarks of the {lacking} image are missing", "give the points of both images")
        if isinstance(fixed, str | Path) and isinstance(moving, str | Path):
            first, second, names = read_point_pairs(fixed, moving)
            return cls(
                first, second, names, {"fixed_points": sha256(Path(fixed)), "moving_points": sha256(Path(moving))}
            )
        first, second = (np.asarray(points, dtype=np.float64) for points in (fixed, moving))
        if first.shape != second.shape or first.ndim != 2 or first.shape[1] != 3 or not len(first):
            message = f"landmarks have shapes {first.shape} and {second.shape}, needed are two arrays (P, 3)"
            raise UsageError("E116", message, "give corresponding points in LPS mm, in the same order")
        return cls(first, second)


@dataclass(frozen=True)
class LandmarkScore:
    """Corresponding landmarks with their errors before and after registration.

    Parameters
    ----------
    names : tuple of str
        One for each landmark.
    fixed_mm, moving_mm : float arrays of shape (P, 3)
        Where they are, LPS millimetres of either image.
    start_mm, warped_mm : float arrays of shape (P, 3)
        The moving ones in the fixed image, as initially aligned and by the inverse of the transform.
    before, after : TargetErrors
        Distances in moving space, as initially aligned and by the transform.
    sha256 : mapping
        Hashes of the files ``fixed_points`` and ``moving_points``, where they were files.
    """

    names: tuple[str, ...]
    fixed_mm: Float64Array
    moving_mm: Float64Array
    start_mm: Float64Array
    warped_mm: Float64Array
    before: TargetErrors
    after: TargetErrors
    sha256: Mapping[str, str] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Return the score as JSON values."""
        rows = zip(
            self.names, self.fixed_mm, self.moving_mm, self.start_mm, self.warped_mm, self.before.distances_mm,
            self.after.distances_mm, strict=True,
        )  # fmt: skip
        keys = ("name", "fixed_mm", "moving_mm", "start_mm", "warped_mm", "before_mm", "after_mm")
        points = [
            dict(zip(keys, [v.tolist() if isinstance(v, np.ndarray) else v for v in row], strict=True)) for row in rows
        ]
        return {
            "before_mm": _summary(self.before),
            "after_mm": _summary(self.after),
            "points": [
                {**point, "before_mm": float(point["before_mm"]), "after_mm": float(point["after_mm"])}
                for point in points
            ],
            "sha256": dict(self.sha256),
        }

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> LandmarkScore:
        """Return the score that `record` wrote."""
        rows = content["points"]
        keys = ("fixed_mm", "moving_mm", "start_mm", "warped_mm")
        places = [np.array([row[key] for row in rows], dtype=np.float64).reshape(-1, 3) for key in keys]
        before, after = (_errors(np.array([row[key] for row in rows])) for key in ("before_mm", "after_mm"))
        names = tuple(str(row["name"]) for row in rows)
        return cls(names, places[0], places[1], places[2], places[3], before, after, dict(content.get("sha256", {})))

    def words(self) -> str:
        """Say mean and largest error before and after.

        Examples
        --------
        >>> from regweave.types import Field
        >>> identity = Transform(Field.zero(Geometry((4, 4, 4), np.eye(4))))
        >>> score_landmarks([[1, 1, 1]], [[1, 1, 3]], ["carina"], identity, identity, identity).words()
        '1 landmark, mean 2.00 → 2.00 mm, largest 2.00 → 2.00 mm'
        """
        n, b, a = len(self.names), self.before, self.after
        means, largest = f"{b.mean_mm:.2f} → {a.mean_mm:.2f}", f"{b.max_mm:.2f} → {a.max_mm:.2f}"
        return f"{n} landmark{'' if n == 1 else 's'}, mean {means} mm, largest {largest} mm"


def score_landmarks(
    fixed_points: ArrayLike,
    moving_points: ArrayLike,
    names: Sequence[str],
    start: Transform,
    transform: Transform,
    inverse: Transform,
) -> LandmarkScore:
    """Measure the landmarks of a registration before and after.

    Parameters
    ----------
    fixed_points, moving_points : float arrays of shape (P, 3)
        Corresponding points in LPS millimetres, in the same order.
    names : sequence of str
        One for each; numbers where it is empty.
    start, transform, inverse : Transform
        From fixed to moving points as initially aligned and after registration, and back.

    Warns
    -----
    RegweaveWarning
        W218, where points lie outside the fixed image: nothing measured the deformation there.
    """
    fixed, moving = (np.asarray(p, dtype=np.float64).reshape(-1, 3) for p in (fixed_points, moving_points))
    given = [name or str(n) for n, name in enumerate(names, start=1)] or [str(n + 1) for n in range(len(fixed))]
    outside = [name for name, out in zip(given, _outside(fixed, transform.field.geometry), strict=True) if out]
    if outside:
        notices.warn(f"W218: landmarks {', '.join(outside)} lie outside the fixed image; their errors say little")
    before, after = (target_registration_error_mm(fixed, moving, by) for by in (start, transform))
    return LandmarkScore(
        tuple(given), fixed, moving, inverted_points(moving, start), warp_points(moving, inverse), before, after
    )


def inverted_points(points_mm: Float64Array, transform: Transform) -> Float64Array:
    """Take points (P, 3) back through a transform by fixed-point steps, for a start that has no inverse in a file."""
    back = np.linalg.inv(transform.affine)
    found = points_mm @ back[:3, :3].T + back[:3, 3]
    for _ in range(ITERATIONS):
        rest = (points_mm - warp_points(found, transform)) @ back[:3, :3].T
        found = found + rest
        if np.abs(rest).max(initial=0.0) < CLOSE_MM:
            break
    return np.asarray(found)


def _outside(points_mm: Float64Array, grid: Geometry) -> list[bool]:
    index = (points_mm - grid.affine[:3, 3]) @ np.linalg.inv(grid.affine[:3, :3]).T
    beyond = np.maximum(-0.5 - index, index - (np.array(grid.shape) - 0.5))
    return [float(row.max()) > 0 for row in beyond]


def _summary(errors: TargetErrors) -> dict[str, float | None]:
    numbers = {"mean": errors.mean_mm, "p95": errors.p95_mm, "max": errors.max_mm}
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}
