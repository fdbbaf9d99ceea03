"""Transport of shapes through a transform, to outlines on the slices of another series."""

import dataclasses

import numpy as np

from regweave.contours.regions import outlines
from regweave.contours.shape import Shape, samples_per_pixel, shape_of
from regweave.io.dicom.series import Series
from regweave.spatial.warp import warp_points
from regweave.threads import side_by_side
from regweave.types import Contour, Float64Array, LeftOut, Structure, StructureSet, Transform

MARGIN_MM = 12.0
MOST_SEEDS = 3000  # Points of the outlines that are followed to find the slices of a structure
KNOTS_OF_WIDE = 4
"""Pixels between points at which the transform of a wide structure is evaluated; fields are far smoother."""


def carry(shape: Shape, transform: Transform, today: Series) -> Structure:
    """Bring a shape onto the slices of today's series; the transform takes points of today to the plan.

    Returns outlines on the true slices, holes as keyholes, and the structure's points that have a preimage. Without
    contours if no part of the shape is within the slices.
    """
    points = preimages(transform, shape.structure.points)
    found = points[np.isfinite(points).all(axis=1)]
    contours = tuple(_contours(shape, transform, today)) if len(shape.along_mm) else ()
    return dataclasses.replace(shape.structure, contours=contours, points=found)


def carry_set(structures: StructureSet, planning: Series, transform: Transform, today: Series) -> StructureSet:
    """Bring all structures of a set drawn on ``planning`` to today's series, for a transform from today to the plan.

    ``left_out`` lists structures without contour and point there, beside those left out before.
    """
    found, lost = [], list(structures.left_out)
    for one in structures.structures:
        moved = carry(shape_of(one, planning), transform, today)
        if one.contours and not moved.contours:
            lost.append(LeftOut(one.name, "nothing of it lies on the slices of today's series"))
        if len(moved.points) < len(one.points):
            lost.append(
                LeftOut(one.name, f"{len(one.points) - len(moved.points)} points have no place in today's space")
            )
        if moved.contours or len(moved.points):
            found.append(moved)
    return dataclasses.replace(
        structures, structures=tuple(found), frame_uid=today.frame_uid, identity=today.identity, left_out=tuple(lost)
    )


def _contours(shape: Shape, transform: Transform, today: Series) -> list[Contour]:
    low, high = _box(shape, transform, today)
    reached = [k for k, one in enumerate(today.slices) if low[2] <= one.along_mm <= high[2]]
    found = side_by_side(lambda k: _on_slice(k, shape, transform, today, (low[:2], high[:2])), reached)
    return [one for contours in found for one in contours]


def _on_slice(
    k: int, shape: Shape, transform: Transform, today: Series, box: tuple[Float64Array, Float64Array]
) -> list[Contour]:
    """Outlines of a shape on one slice of today."""
    grid, one = today.grid, today.slices[k]
    first = np.array([one.position_mm @ grid.row, one.position_mm @ grid.column])
    (low, high), spacing = (box[0] - first, box[1] - first), grid.spacing_mm
    u, v = (_window(low[axis], high[axis], spacing[axis], grid.size[axis]) for axis in (0, 1))
    if len(u) < 2 or len(v) < 2:
        return []
    fine = samples_per_pixel((u[-1] - u[0], v[-1] - v[0]), spacing)
    apart = KNOTS_OF_WIDE if fine == 1 else 1
    knots = tuple(
        at if apart == 1 or len(at) < 2 * apart else np.unique(np.append(at[::apart], at[-1])) for at in (u, v)
    )
    places = one.position_mm + knots[1][:, None, None] * grid.column + knots[0][None, :, None] * grid.row
    index = shape.index(warp_points(places.reshape(-1, 3), transform)).reshape(3, len(knots[1]), len(knots[0]))
    if (index.max(axis=(1, 2)) < -1).any() or (index.min(axis=(1, 2)) > shape.distance.shape).any():
        return []
    wanted = tuple(
        np.linspace(at[0], at[-1], max(2, round((at[-1] - at[0]) / step * fine) + 1))
        for at, step in zip((u, v), spacing, strict=True)
    )
    distance = _sampled(shape, index, knots, wanted)
    if distance.min() >= 0:
        return []
    rings = outlines(distance, wanted[0], wanted[1])
    where = [one.position_mm + np.outer(ring[:, 0], grid.row) + np.outer(ring[:, 1], grid.column) for ring in rings]
    return [Contour(points, image=k) for points in where]


def _sampled(
    shape: Shape, index: Float64Array, knots: tuple[Float64Array, ...], wanted: tuple[Float64Array, ...]
) -> Float64Array:
    """Interpolate places in a shape from knots (3, V, U) to samples, and give the distance there."""
    for axis, (at, to) in zip((2, 1), zip(knots, wanted, strict=True), strict=True):
        place = np.interp(to, at, np.arange(len(at)))
        below = np.clip(np.floor(place).astype(int), 0, len(at) - 2)
        t = (place - below).reshape((-1, 1) if axis == 1 else (-1,))
        a, b = np.take(index, below, axis=axis), np.take(index, below + 1, axis=axis)
        index = a + t * (b - a)
    return shape.at_index(index.reshape(3, -1)).reshape(index.shape[1:])


def _window(low: float, high: float, spacing: float, size: int) -> Float64Array:
    """Distances of pixels from the first one, those between two limits and within the image, edges included."""
    reach = np.clip([low / spacing, high / spacing], 0.0, size - 1.0)  # limits may be infinite: look everywhere
    first, last = int(np.floor(reach[0])), int(np.ceil(reach[1]))
    if high < 0 or low > (size - 1) * spacing:
        return np.zeros(0)
    pixels = np.arange(first, last + 1, dtype=np.float64)
    if len(pixels) and first == 0:
        pixels = np.insert(pixels, 0, -0.5)
    if len(pixels) and last == size - 1:
        pixels = np.append(pixels, size - 0.5)
    return np.asarray(pixels * spacing)


def _box(shape: Shape, transform: Transform, today: Series) -> tuple[Float64Array, Float64Array]:
    """Limits along row, column and normal of today's slices that bound the shape."""
    drawn = np.concatenate([one.points_mm for one in shape.structure.contours])
    seeds = drawn[:: max(1, len(drawn) // MOST_SEEDS)]
    places = preimages(transform, seeds, tolerance_mm=1.0)
    known = places[np.isfinite(places).all(axis=1)]
    if len(known) < 0.9 * len(places):  # the field folds or is far from smooth: look everywhere
        return np.full(3, -np.inf), np.full(3, np.inf)
    axes = np.stack([today.grid.row, today.grid.column, today.grid.normal], axis=1)
    where = known @ axes
    ends = np.ptp(np.append(shape.along_mm, shape.along_mm[0]))
    room = MARGIN_MM + np.array([0.0, 0.0, ends / max(len(shape.along_mm) - 1, 1)])
    return where.min(axis=0) - room, where.max(axis=0) + room


STEP_MM = 0.5
MOST_STEPS = 30


def preimages(transform: Transform, points_mm: Float64Array, *, tolerance_mm: float = 0.01) -> Float64Array:
    """Return the points (n, 3) that a transform takes to given ones; NaN where none is within the tolerance."""
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
