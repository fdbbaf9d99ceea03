"""Target registration error of corresponding landmarks, in millimetres."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, computed_field

from regweave import notices
from regweave.errors import UsageError
from regweave.io.disk.files import sha256
from regweave.io.disk.records import Number, RecordPart, Text
from regweave.io.points import read_point_pairs
from regweave.spatial.warp import beyond, summary_mm, warp_points
from regweave.types import Float64Array, Transform

ITERATIONS = 30
CLOSE_MM = 1e-4


def target_registration_errors_mm(
    fixed_points: ArrayLike, moving_points: ArrayLike, transform: Transform
) -> Float64Array:
    """Measure how far, in moving space, the transform takes each fixed landmark from its moving partner, (P,).

    Both lists of points (P, 3) are in LPS millimetres, in the same order.
    """
    fixed, moving = (np.asarray(p, dtype=np.float64) for p in (fixed_points, moving_points))
    if fixed.shape != moving.shape or fixed.ndim != 2 or fixed.shape[1] != 3:
        raise ValueError(f"landmarks have shapes {fixed.shape} and {moving.shape}; give two lists of P points (P, 3)")
    return np.asarray(np.linalg.norm(warp_points(fixed, transform) - moving, axis=1))


@dataclass(frozen=True)
class LandmarkPairs:
    """Corresponding points (P, 3) in LPS millimetres, their names, and the hashes of the files they came from.

    ``guides`` are the points that guide, empty for none.
    """

    fixed: Float64Array
    moving: Float64Array
    names: Sequence[str] = ()
    sha256: Mapping[str, str] = field(default_factory=dict)
    guides: Sequence[bool] = ()

    @property
    def named(self) -> list[str]:
        """Name of each point; its number where it has none."""
        return [name or str(n) for n, name in enumerate(self.names or [""] * len(self.fixed), start=1)]

    @classmethod
    def read(cls, fixed: Any, moving: Any) -> LandmarkPairs:
        """Read two files, or take two arrays; those that were read before pass through."""
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
        if not (np.isfinite(first).all() and np.isfinite(second).all()):
            raise UsageError("E116", "landmarks hold numbers that are not finite", "give LPS mm of every point")
        return cls(first, second)


Point = tuple[Number, Number, Number]


@dataclass(frozen=True)
class Landmark:
    """A landmark in both images, LPS millimetres, and its errors."""

    name: Text
    fixed_mm: Point
    moving_mm: Point
    start_mm: Point  # The moving one in the fixed image as initially aligned, and by the inverse of the transform
    warped_mm: Point
    before_mm: Number  # Distance in moving space as initially aligned, and by the transform
    after_mm: Number
    guides: bool = False  # whether it guided the registration, so that its error proves nothing


class LandmarkScore(RecordPart):
    """Corresponding landmarks with their errors before and after registration, and the hashes of their files."""

    points: Annotated[tuple[Landmark, ...], Field(min_length=1)]
    sha256: dict[str, Text] = Field(default_factory=dict)

    @property
    def judging(self) -> tuple[Landmark, ...]:
        """Points that did not guide the registration."""
        return tuple(point for point in self.points if not point.guides)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def before_mm(self) -> dict[str, float]:
        """Mean, 95th percentile and maximum as initially aligned: of the points that judge, where there are any."""
        return summary_mm(np.array([point.before_mm for point in self.judging or self.points]))

    @computed_field  # type: ignore[prop-decorator]
    @property
    def after_mm(self) -> dict[str, float]:
        """The same by the transform."""
        return summary_mm(np.array([point.after_mm for point in self.judging or self.points]))

    def words(self) -> str:
        """Describe mean and largest error before and after."""
        n, b, a = len(self.points), self.before_mm, self.after_mm
        means, largest = f"{b['mean']:.2f} → {a['mean']:.2f}", f"{b['max']:.2f} → {a['max']:.2f}"
        guided = n - len(self.judging)
        which = f" ({self.roles()}): " if guided else ", "
        return f"{n} landmark{'' if n == 1 else 's'}{which}mean {means} mm, largest {largest} mm"

    def roles(self) -> str:
        """Describe which points guided and which judge."""
        guided = len(self.points) - len(self.judging)
        return f"{guided} guided, numbers of the others" if self.judging else "all guided, which proves nothing"


def score_landmarks(
    fixed_points: ArrayLike, moving_points: ArrayLike, names: Sequence[str], start: Transform, transform: Transform,
    inverse: Transform, guides: Sequence[bool] = (),
) -> LandmarkScore:  # fmt: skip
    """Measure the landmarks of a registration before and after.

    The points (P, 3) are in LPS millimetres, in the same order; a point without a name has its number. ``start`` and
    ``transform`` take fixed to moving points, as initially aligned and after registration, and ``inverse`` takes them
    back. ``guides`` are the points that guided, empty for none.
    """
    fixed, moving = (np.asarray(p, dtype=np.float64).reshape(-1, 3) for p in (fixed_points, moving_points))
    given = LandmarkPairs(fixed, moving, names).named
    outside = [name for name, out in zip(given, beyond(fixed, transform.field.geometry), strict=True) if out]
    if outside:
        notices.warn(f"W218: landmarks {', '.join(outside)} lie outside the fixed image; their errors mean little")
    before, after = (target_registration_errors_mm(fixed, moving, by) for by in (start, transform))
    places = (fixed, moving, inverted_points(moving, start), warp_points(moving, inverse))
    positions = zip(*(tuple(map(tuple, at.tolist())) for at in places), strict=True)
    errors = zip(before.tolist(), after.tolist(), strict=True)
    rows = zip(given, positions, errors, guides or [False] * len(given), strict=True)
    points = tuple(
        Landmark(name, a, b, start_mm, warped_mm, *error, guided)
        for name, (a, b, start_mm, warped_mm), error, guided in rows
    )
    return LandmarkScore(points=points)


def inverted_points(points_mm: Float64Array, transform: Transform) -> Float64Array:
    """Take points (P, 3) back through a transform by fixed-point steps, for a start that has no inverse in a file."""
    back = np.linalg.inv(transform.affine)
    source = points_mm @ back[:3, :3].T + back[:3, 3]
    for _ in range(ITERATIONS):
        rest = (points_mm - warp_points(source, transform)) @ back[:3, :3].T
        source = source + rest
        if np.abs(rest).max(initial=0.0) < CLOSE_MM:
            break
    return np.asarray(source)
