"""Plane regions of contours: from rings by the even-odd rule, to outlines again, and their exact areas."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import shapely
from contourpy import FillType, contour_generator
from numpy.typing import NDArray

from regweave.io.dicom.series import Series
from regweave.types import Contour, Float64Array, Geometry, LabelMap, Structure

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
