"""Rigid motion of what is no tissue: fixation, supports, and marks outside the body are moved, never bent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from regweave.clinic.quality import RegisteredPair, structure_row
from regweave.clinic.scans.pair import WorkingScan, box_round
from regweave.contours import Shape
from regweave.spatial.warp import inverse_of, warp_points
from regweave.types import Field, Float64Array, Geometry, Structure, Transform

DEVICES = {"FIXATION", "SUPPORT"}
BENT = {"EXTERNAL", "BOLUS"}
"""Types that may lie outside the skin and still follow it."""
NEAR_MM = 50.0
"""Tissue whose motion a device follows lies at most this much farther away than the nearest."""
MOST_POINTS = 50_000
LEAST_INSIDE = 0.5
"""Share of a structure inside the body from which it is tissue."""


def rigid_reason(shape: Shape, plan: WorkingScan) -> str:
    """Return why a structure is moved rigidly; empty where it is carried as tissue.

    Of its points those between the first and last slice of the plan count: beyond them the body is not known.
    """
    one = shape.structure
    if one.kind in DEVICES:
        return f"moved rigidly: a {one.kind.lower()} device is not bent"
    if plan.body is None or one.kind in BENT:
        return ""
    grid = plan.image.geometry
    back = np.linalg.inv(grid.affine)
    index = np.rint(_inner_points(shape, grid) @ back[:3, :3].T + back[:3, 3]).astype(int)
    index = index[(index[:, 2] >= 0) & (index[:, 2] < grid.shape[2])]
    if not len(index):
        return ""
    shown = index[((index >= 0) & (index < grid.shape)).all(axis=1)]
    inside = plan.body[tuple(shown.T)].sum() / len(index)
    return "moved rigidly: it lies outside the body" if inside < LEAST_INSIDE else ""


def _inner_points(shape: Shape, grid: Geometry) -> Float64Array:
    """Voxel centres inside a structure; its own points where it is smaller than a voxel or has no contours."""
    drawn = [contour.points_mm for contour in shape.structure.contours]
    box = box_round(np.concatenate(drawn), grid) if drawn else None
    inside = np.zeros((0, 3)) if box is None else box.points_mm[shape.at(box.points_mm) < 0]
    return inside if len(inside) else np.concatenate([*drawn, shape.structure.points])


def rigid_pair(shape: Shape, found: RegisteredPair, today: WorkingScan) -> RegisteredPair:
    """Return a registration by the rigid motion that fits the transform best in the tissue near a structure."""
    one = shape.structure
    there = warp_points(np.concatenate([*(c.points_mm for c in one.contours), one.points]), found.inverse)
    grid = today.image.geometry
    flat = np.flatnonzero(np.ones(grid.shape, dtype=bool) if today.body is None else today.body)
    index = np.unravel_index(flat[:: max(1, len(flat) // MOST_POINTS)], grid.shape)
    points = grid.points(np.stack(index, axis=1).astype(np.float64))
    away, _ = cKDTree(there).query(points)
    points = points[away <= away.min() + NEAR_MM]
    affine = rigid_fit(points, warp_points(points, found.transform))
    still = Field.zero(grid)
    return replace(
        found, transform=Transform(still, affine), inverse=Transform(still, inverse_of(affine)),
        jacobian=np.broadcast_to(np.float32(1.0), grid.shape),
    )  # fmt: skip


def rigid_row(
    shape: Shape, carried: Structure, rigid: RegisteredPair, start: Float64Array, note: str
) -> dict[str, Any]:
    """Measure a structure that was moved rigidly; its displacement is counted from the start (4, 4), as all are."""
    row = structure_row(shape, carried, rigid, note)
    places = np.concatenate([*(c.points_mm for c in carried.contours), carried.points])
    if not len(places):
        return row
    there, back = warp_points(places, rigid.transform), np.linalg.inv(start)
    moved = there @ back[:3, :3].T + back[:3, 3] - places
    length = np.linalg.norm(moved, axis=1)
    return row | {
        "centroid_shift_mm": float(np.linalg.norm(moved.mean(axis=0))),
        "displacement_mean_mm": float(length.mean()), "displacement_max_mm": float(length.max()),
    }  # fmt: skip


def rigid_fit(points: Float64Array, moved: Float64Array) -> Float64Array:
    """Return the rotation and shift (4, 4) that take points (n, 3) nearest to others, by least squares.

    Examples
    --------
    >>> points = np.eye(3)
    >>> rigid_fit(points, points + 2.0)[:3, 3].round(6).tolist()
    [2.0, 2.0, 2.0]
    """
    middle, there = points.mean(axis=0), moved.mean(axis=0)
    u, _, v = np.linalg.svd((moved - there).T @ (points - middle))
    turn = u @ np.diag([1.0, 1.0, np.sign(np.linalg.det(u @ v))]) @ v
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = turn, there - turn @ middle
    return affine
