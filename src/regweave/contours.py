"""Contours of structures: their regions in the plane, their shapes, and the transport of these to another series.

Rings become regions by the even-odd rule and outlines again, with exact areas. A shape is a signed distance on the true
slices; a transform brings it to outlines on those of another series.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import shapely
from contourpy import FillType, contour_generator
from numpy.typing import NDArray
from scipy import ndimage

from regweave._core import plane_distance
from regweave.io.dicom.series import Series, SliceGrid
from regweave.spatial.warp import warp_points
from regweave.threads import side_by_side
from regweave.types import Contour, Float64Array, Geometry, LabelMap, LeftOut, Structure, StructureSet, Transform

SLIT_MM = 0.02  # Half the width of a channel that joins a hole to the outside and encloses nothing
SPECK_MM2 = 1e-4
MOST_POINTS, DENSE_MM = 20_000, 1e-3
"""Rings of more points are thinned by so much: edges as short as the rounding make the closing of slits slow."""


def region_of(rings: Sequence[Float64Array]) -> Any:
    """Return the region that rings (n, 2) enclose by the even-odd rule.

    A keyhole's channel runs there and back over the same points, or leaves a slit: both are closed.
    """
    polygons = [shapely.Polygon(ring) for ring in rings if len(ring) >= 3]
    polygons = [
        p.simplify(DENSE_MM, preserve_topology=False) if len(p.exterior.coords) > MOST_POINTS else p for p in polygons
    ]
    found = [p if p.is_valid else _areas(shapely.make_valid(p)) for p in polygons]
    while len(found) > 1:  # in pairs, as one after the other takes the square of the time
        pairs = zip(found[::2], found[1::2], strict=False)
        found = [a.symmetric_difference(b) for a, b in pairs] + found[len(found) & ~1 :]
    region = shapely.Polygon() if not found else found[0] if len(polygons) == 1 else _areas(found[0])
    if region.is_empty:
        return region
    closed = _areas(region.buffer(SLIT_MM, join_style="mitre").buffer(-SLIT_MM, join_style="mitre"))
    whole = len(rings_of(region)) == len(rings_of(closed)) and closed.length > 0.9 * region.length
    return region if whole else closed  # a region without channels is not changed


def _areas(geometry: Any) -> Any:
    """Keep the polygons of a geometry, without specks and the lines that a repair may leave."""
    parts = [p for p in shapely.get_parts(geometry, return_index=False) if not p.is_empty]
    flat = [q for p in parts for q in (p.geoms if hasattr(p, "geoms") else [p])]
    kept = [p for p in flat if p.geom_type == "Polygon" and p.area > SPECK_MM2]
    return shapely.unary_union(kept) if len(kept) != 1 else kept[0]


def rings_of(region: Any) -> list[Float64Array]:
    """Return all rings of a region, (n, 2) each, the first point not repeated."""
    return [
        np.asarray(ring.coords, dtype=np.float64)[:-1]
        for polygon in shapely.get_parts(region)
        if polygon.geom_type == "Polygon" and not polygon.is_empty
        for ring in (polygon.exterior, *polygon.interiors)
    ]


def even_odd(size: tuple[int, int], rings: Sequence[Float64Array]) -> NDArray[np.bool_]:
    """Mark the samples (v, u) of a raster inside an odd number of rings, given in units of samples.

    Each edge toggles all samples to the right of where it crosses a row; the running sum of a row counts crossings.
    """
    toggles = np.zeros((size[0], size[1] + 1), dtype=np.int32)
    if rings:
        (u0, v0), (u1, v1) = np.concatenate(rings).T, np.concatenate([np.roll(ring, -1, axis=0) for ring in rings]).T
        first = np.clip(np.ceil(np.minimum(v0, v1)).astype(np.int64), 0, size[0])
        last = np.clip(np.ceil(np.maximum(v0, v1)).astype(np.int64), 0, size[0])
        count = last - first
        edge = np.repeat(np.arange(len(u0)), count)
        row = np.arange(len(edge)) - np.repeat(np.cumsum(count) - count, count) + first[edge]
        with np.errstate(divide="ignore", invalid="ignore"):
            u = u0[edge] + (row - v0[edge]) * (u1[edge] - u0[edge]) / (v1[edge] - v0[edge])
        np.add.at(toggles, (row, np.clip(np.ceil(u), 0, size[1]).astype(np.int64)), 1)
    return np.asarray(np.cumsum(toggles, axis=1)[:, :-1] % 2 == 1)


THINNING = 0.002
LEAST_THINNING_MM, MOST_THINNING_MM = 0.003, 0.05
"""Points are left out where the outline moves by less than this share of the square root of its area."""
LEAST_AREA_MM2 = 0.05


def outlines(distance_mm: Float64Array, u_mm: Float64Array, v_mm: Float64Array) -> list[Float64Array]:
    """Return closed polygons (n, 2) around the negative samples (V, U), one for each island."""
    generator = contour_generator(u_mm, v_mm, distance_mm, fill_type=FillType.OuterOffset)
    filled: Any = generator.filled(-np.inf, 0.0)
    found = []
    for part, places in zip(*filled, strict=True):
        rings = [part[a:b] for a, b in pairwise(places)]
        found += [keyholed(polygon) for polygon in _thinned(rings)]
    return found


def _thinned(rings: list[Float64Array]) -> list[Any]:
    solid = [ring for ring in rings if len(ring) >= 4]
    if not solid or solid[0] is not rings[0]:
        return []
    polygon = shapely.Polygon(solid[0], [r for r in solid[1:] if shapely.Polygon(r).area >= LEAST_AREA_MM2])
    if polygon.area < LEAST_AREA_MM2:
        return []
    tolerance = float(np.clip(THINNING * np.sqrt(polygon.area), LEAST_THINNING_MM, MOST_THINNING_MM))
    thin = polygon.simplify(tolerance, preserve_topology=True)
    if not thin.is_valid:
        thin = shapely.make_valid(thin)
    return [p for p in shapely.get_parts(thin) if p.geom_type == "Polygon" and p.area >= LEAST_AREA_MM2]


def keyholed(polygon: Any) -> Float64Array:
    """Join the holes of a polygon to its outline by channels of no width; return the points (n, 2).

    Each channel is the shortest from a corner of a hole to a corner of what is joined already, so that none crosses
    another hole.
    """
    joined = np.asarray(polygon.exterior.coords, dtype=np.float64)[:-1]
    waiting = [np.asarray(ring.coords, dtype=np.float64)[:-1] for ring in polygon.interiors]
    while waiting:
        nearest = [_nearest(joined, hole) for hole in waiting]
        k = int(np.argmin([length for length, _, _ in nearest]))
        _, at, start = nearest[k]
        hole = np.roll(waiting.pop(k), -start, axis=0)
        joined = np.concatenate([joined[: at + 1], hole, hole[:1], joined[at:]])
    return joined


def _nearest(outer: Float64Array, hole: Float64Array) -> tuple[float, int, int]:
    away = np.linalg.norm(outer[:, None] - hole[None], axis=2)
    at, start = np.unravel_index(int(np.argmin(away)), away.shape)
    return float(away[at, start]), int(at), int(start)


def volume_ml(structure: Structure, series: Series) -> float:
    """Return the volume: areas of the contours times the share of each slice, in millilitres."""
    share = _shares_mm(series)
    return float(sum(region.area * share[k] for k, region in regions_of(structure, series).items()) / 1e3)


def dice_of_areas(a: Structure, b: Structure, series: Series) -> float:
    """Return the Dice overlap of two structures on one series, by exact areas of polygons; NaN for two empty ones."""
    one, other, both = overlap_ml(a, b, series).sum(axis=0).tolist()
    return 2 * both / (one + other) if one + other > 0 else float("nan")


def overlap_ml(a: Structure, b: Structure, series: Series, shown: Mapping[int, Any] | None = None) -> Float64Array:
    """Return the volumes of two structures and of their overlap on each slice (K, 3), in millilitres.

    ``shown`` limits them to a region by slice, in millimetres along rows and columns.
    """
    share, one, other = _shares_mm(series), regions_of(a, series), regions_of(b, series)
    found = np.zeros((len(share), 3))
    for k in one.keys() | other.keys():
        parts = [regions.get(k, shapely.Polygon()) for regions in (one, other)]
        if shown is not None:
            parts = [part.intersection(shown.get(k, shapely.Polygon())) for part in parts]
        found[k] = [part.area * share[k] / 1e3 for part in (*parts, parts[0].intersection(parts[1]))]
    return found


def regions_of(structure: Structure, series: Series) -> dict[int, Any]:
    """Return the regions of a structure by slice, in millimetres along rows and columns."""
    rings: dict[int, list[Float64Array]] = defaultdict(list)
    for contour in structure.contours:
        if contour.image is not None:
            points = contour.points_mm
            rings[contour.image].append(np.stack([points @ series.grid.row, points @ series.grid.column], axis=1))
    return {k: region_of(found) for k, found in rings.items()}


def _shares_mm(series: Series) -> Float64Array:
    """Thickness of each slice: half way to its neighbours."""
    along = np.array([one.along_mm for one in series.slices])
    gaps = np.diff(along)
    return np.asarray((np.append(gaps, gaps[-1]) + np.insert(gaps, 0, gaps[0])) / 2)


MOST = 65535  # Largest label that is written


def label_values(structures: Sequence[Structure]) -> dict[int, int]:
    """Return the label of each structure by its number: the number where all can be labels, else counted from 1."""
    numbers = [one.number for one in structures]
    fits = all(0 < number <= MOST for number in numbers)
    return {number: number if fits else k for k, number in enumerate(numbers, start=1)}


def draw_labels(
    structures: Sequence[Structure], series: Series, values: Mapping[int, int], names: Mapping[str, str] | None = None
) -> LabelMap:
    """Draw structures as labels ``values`` by number; the smaller one wins where two overlap.

    A voxel belongs to a structure if its centre is inside an odd number of its contours. Between uneven slices the
    nearest slice decides. ``names`` are other names of structures.
    """
    geometry = series.image.geometry
    index = np.zeros((geometry.shape[2], 3))
    index[:, 2] = np.arange(geometry.shape[2])
    along, true = geometry.points(index) @ series.grid.normal, np.array([one.along_mm for one in series.slices])
    slices = np.abs(along[:, None] - true[None]).argmin(axis=1)
    data = np.zeros(geometry.shape, dtype=np.min_scalar_type(max(values.values(), default=1)))
    for rings, value in sorted(((_rings(s, geometry), values[s.number]) for s in structures), key=_area, reverse=True):
        for k, s in enumerate(slices.tolist()):
            if s in rings:  # only the box round the rings is filled
                points = np.concatenate(rings[s])
                low = np.clip(np.floor(points.min(axis=0)).astype(int), 0, data.shape[:2])
                high = np.clip(np.ceil(points.max(axis=0)).astype(int) + 1, 0, data.shape[:2])
                if (high > low).all():
                    size = int(high[1] - low[1]), int(high[0] - low[0])
                    inside = even_odd(size, [ring - low for ring in rings[s]])
                    data[low[0] : high[0], low[1] : high[1], k][inside.T] = value
    called = names or {}
    return LabelMap(data, geometry, {values[one.number]: called.get(one.name, one.name) for one in structures})


Rings = dict[int, list[Float64Array]]


def _rings(structure: Structure, geometry: Geometry) -> Rings:
    """Contours in voxels (n, 2) by slice."""
    back = np.linalg.inv(geometry.affine)
    found: Rings = defaultdict(list)
    for contour in structure.contours:
        if contour.image is not None and contour.kind == "CLOSED_PLANAR":
            found[contour.image].append((contour.points_mm @ back[:3, :3].T + back[:3, 3])[:, :2])
    return found


def _area(drawn: tuple[Rings, int]) -> float:
    """Sum of the areas of all rings, by the shoelace formula: enough to order structures by size."""
    every = (ring for found in drawn[0].values() for ring in found)
    return sum(abs(float(np.sum(r[:, 0] * np.roll(r[:, 1], -1) - np.roll(r[:, 0], -1) * r[:, 1]))) / 2 for r in every)


def contour_labels(labels: LabelMap, series: Series) -> tuple[Structure, ...]:
    """Return outlines of labels on the slices of the series on whose grid they lie, half way between voxels."""
    grid, back = series.grid, np.linalg.inv(labels.geometry.affine)
    x, y, z = labels.geometry.shape
    u, v = (np.arange(-1.0, n + 1) * np.float64(spacing) for n, spacing in zip((x, y), grid.spacing_mm, strict=True))
    found = []
    for number, value in enumerate(labels.values(), start=1):
        mask = np.pad((labels.data == value).astype(np.float64), ((1, 1), (1, 1), (0, 0)))
        contours = []
        for k, one in enumerate(series.slices):
            place = float(np.clip((back[:3, :3] @ one.position_mm + back[:3, 3])[2], 0, z - 1))
            below = min(int(place), max(z - 2, 0))
            share = mask[:, :, below] + (place - below) * (mask[:, :, min(below + 1, z - 1)] - mask[:, :, below])
            contours += [
                Contour(one.position_mm + np.outer(ring[:, 0], grid.row) + np.outer(ring[:, 1], grid.column), image=k)
                for ring in (outlines(0.5 - share.T, u, v) if share.any() else [])
            ]
        found.append(Structure(number, labels.name(value), "ORGAN", contours=tuple(contours)))
    return tuple(found)


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


def signed_distance(size: tuple[int, int], rings: Sequence[Float64Array], step_mm: Float64Array) -> NDArray[np.float32]:
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
    contours: list[Contour] = []
    if len(shape.along_mm):
        low, high = _box(shape, transform, today)
        reached = [k for k, one in enumerate(today.slices) if low[2] <= one.along_mm <= high[2]]
        drawn = side_by_side(lambda k: _on_slice(k, shape, transform, today, (low[:2], high[:2])), reached)
        contours = [one for on_slice in drawn for one in on_slice]
    return dataclasses.replace(shape.structure, contours=tuple(contours), points=found)


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
        # Newton's step, with differences of the transform; a plain step where the linear problem is singular.
        ends = [(warp_points(found + e, transform), warp_points(found - e, transform)) for e in SLOPE_MM * np.eye(3)]
        jacobian = np.stack([(after - before) / (2 * SLOPE_MM) for after, before in ends], axis=-1)
        jacobian[~(np.linalg.det(jacobian) > 0.05)] = np.eye(3)
        step = np.linalg.solve(jacobian, away[..., None])[..., 0]
        found = best - np.where(better[:, None], step, 0.0)
    return np.where((error <= tolerance_mm)[:, None], best, np.nan)
