"""Shapes of drawn structures, their signed distance on the true slices, and their transport to another series."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave._core import plane_distance
from regweave.contours.regions import even_odd, outlines, region_of, rings_of
from regweave.io.dicom.series import Series, SliceGrid
from regweave.spatial.warp import warp_points
from regweave.threads import side_by_side
from regweave.types import Contour, Float32Array, Float64Array, LeftOut, Structure, StructureSet, Transform

WIDE_PIXELS = 200  # Structures wider than this are sampled once a pixel, smaller ones three times
FINE, MOST_FINE = 3, 40
MOST_SAMPLES = 1_000_000
LEAST_SAMPLES = 96  # Samples across a small structure
MARGIN_MM = 6.0
BAND = 2.5  # Samples around an outline whose distance is that to the polygon itself
FAR_MM = 63.9
STEP_MM = 1 / 512
"""Unit of stored distances: 16 bits hold `FAR_MM`, and thirty structures of a large scan take half of the memory."""
ON_PLANE = 0.005  # Share of a gap within which a point is on the first or last plane


@dataclass(frozen=True)
class Shape:
    """A structure as a signed distance, negative inside.

    ``distance`` (K, V, U) is the in-plane distance in units of `STEP_MM`, at most `FAR_MM`, on the planes ``along_mm``;
    a plane without contours closes its neighbour half way. ``origin_mm`` is the in-plane position of the first sample
    along ``grid.row`` and ``grid.column`` from the LPS origin, ``step_mm`` the distance of samples.
    """

    structure: Structure
    grid: SliceGrid = field(repr=False)
    origin_mm: tuple[float, float] = field(repr=False)
    step_mm: tuple[float, float] = field(repr=False)
    along_mm: Float64Array = field(repr=False)
    distance: NDArray[np.int16] = field(repr=False)

    def index(self, points_mm: Float64Array) -> Float64Array:
        """Take LPS points (n, 3) to places (3, n) in ``distance``; planes may be uneven."""
        u = (points_mm @ self.grid.row - self.origin_mm[0]) / self.step_mm[0]
        v = (points_mm @ self.grid.column - self.origin_mm[1]) / self.step_mm[1]
        along, planes = points_mm @ self.grid.normal, self.along_mm
        place = np.interp(along, planes, np.arange(float(len(planes))))
        below, above = np.minimum(along - planes[0], 0.0), np.maximum(along - planes[-1], 0.0)
        gap = float(np.ptp(planes)) / max(len(planes) - 1, 1) or 1.0
        return np.stack([place + (below + above) / gap, v, u])

    def at_index(self, index: Float64Array) -> Float64Array:
        """Return the signed distance at places (3, n); beyond the samples it is large."""
        inside = np.clip(index[0], 0.0, len(self.along_mm) - 1.0)
        along = np.where(np.abs(inside - index[0]) < ON_PLANE, inside, index[0])
        found = ndimage.map_coordinates(
            self.distance, [along, index[1], index[2]], order=1, mode="constant", cval=FAR_MM / STEP_MM,
            output=np.float64,
        )  # fmt: skip
        return np.asarray(STEP_MM * found)

    def at(self, points_mm: Float64Array) -> Float64Array:
        """Return the signed distance at LPS points (n, 3), interpolated; far away, and without planes, it is large."""
        if not len(self.along_mm):
            return np.full(len(points_mm), FAR_MM)
        return self.at_index(self.index(points_mm))


def shape_of(structure: Structure, series: Series) -> Shape:
    """Compute the signed distance of a structure drawn on a series.

    The planes are the slices from one before the first contour to one after the last; a slice without contours between
    them is outside, as in every reader. A structure that reaches the first or last slice ends there, as the scan does.
    A structure of points alone has no planes; `carry` maps its points.
    """
    grid, drawn = series.grid, defaultdict(list)
    for contour in structure.contours:
        if contour.image is not None and contour.kind == "CLOSED_PLANAR":
            flat = np.stack([contour.points_mm @ grid.row, contour.points_mm @ grid.column], axis=1)
            drawn[contour.image].append(flat)
    rings = {k: rings_of(region_of(found)) for k, found in sorted(drawn.items())}
    rings = {k: found for k, found in rings.items() if found}
    if not rings:
        return Shape(structure, grid, (0.0, 0.0), grid.spacing_mm, np.zeros(0), np.zeros((0, 0, 0), np.int16))
    every = np.concatenate([ring for found in rings.values() for ring in found])
    low, high = every.min(axis=0), every.max(axis=0)
    x, y = (high - low).tolist()
    step = np.asarray(grid.spacing_mm) / samples_per_pixel((x, y), grid.spacing_mm)
    origin = low - MARGIN_MM
    u, v = (np.ceil((high + MARGIN_MM - origin) / step).astype(int) + 1).tolist()
    positions = np.array([one.along_mm for one in series.slices])
    first, last = max(min(rings) - 1, 0), min(max(rings) + 1, len(positions) - 1)
    along, filled = positions[first : last + 1], {k - first: k for k in rings}
    distance = np.full((len(along), v, u), np.nan, dtype=np.float32)

    def fill(one: tuple[int, int]) -> None:
        place, k = one
        distance[place] = signed_distance((v, u), [(ring - origin) / step for ring in rings[k]], step)

    side_by_side(fill, filled.items())
    for k in set(range(len(along))) - filled.keys():  # empty planes get that of neighbours: a shape ends half way
        near = [distance[n] for n in (k - 1, k + 1) if n in filled]
        distance[k] = np.abs(np.min(near, axis=0)) if near else FAR_MM
    steps = (float(step[0]), float(step[1]))
    stored = np.rint(np.clip(distance, -FAR_MM, FAR_MM) / np.float32(STEP_MM)).astype(np.int16)
    return Shape(structure, grid, (float(origin[0]), float(origin[1])), steps, along, stored)


def samples_per_pixel(extent_mm: tuple[float, float], spacing_mm: tuple[float, float]) -> int:
    """Return how finely a structure is sampled: once a pixel where it is wide, more often the smaller it is."""
    pixels = np.asarray(extent_mm) / spacing_mm
    if pixels.max() > WIDE_PIXELS:
        return 1
    room = np.sqrt(MOST_SAMPLES / np.prod(pixels + 2 * MARGIN_MM / np.asarray(spacing_mm)))
    wanted = np.ceil(LEAST_SAMPLES / max(float(pixels.min()), 1.0))
    return int(np.clip(min(wanted, room), FINE, MOST_FINE))


def signed_distance(size: tuple[int, int], rings: Sequence[Float64Array], step_mm: Float64Array) -> Float32Array:
    """Return the distance of samples (v, u) to rings (n, 2), negative inside, in millimetres.

    Rings are in units of samples (u, v), ``step_mm`` apart. The distance is exact near the rings, sampled elsewhere.
    """
    edges = (
        np.concatenate([np.zeros((0, 2)), *rings]),
        np.concatenate([np.zeros((0, 2)), *(np.roll(ring, -1, axis=0) for ring in rings)]),
    )
    inside = even_odd(size, rings).view(np.uint8)
    return plane_distance(inside, *edges, (float(step_mm[0]), float(step_mm[1])), BAND)


AROUND_MM = 12.0
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
    room = AROUND_MM + np.array([0.0, 0.0, ends / max(len(shape.along_mm) - 1, 1)])
    return where.min(axis=0) - room, where.max(axis=0) + room


SLOPE_MM = 0.5
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
        (warp_points(points + e, transform) - warp_points(points - e, transform)) / (2 * SLOPE_MM)
        for e in SLOPE_MM * np.eye(3)
    ]
    jacobian = np.stack(columns, axis=-1)
    good = np.linalg.det(jacobian) > 0.05
    jacobian[~good] = np.eye(3)
    return np.asarray(np.linalg.solve(jacobian, away[..., None])[..., 0])
