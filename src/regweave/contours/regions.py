"""Plane regions of drawn contours: keyholes, nested rings and islands by the even-odd rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray

from regweave.types import Float64Array

SLIT_MM = 0.02
"""Half the width of a channel that joins a hole to the outside and encloses nothing."""
SPECK_MM2 = 1e-4
MOST_POINTS, DENSE_MM = 20_000, 1e-3
"""Rings of more points are thinned by so much: edges as short as the rounding make the closing of slits slow."""


def region_of(rings: Sequence[Float64Array]) -> Any:
    """Return the region that rings (n, 2) enclose by the even-odd rule.

    A keyhole's channel runs there and back over the same points, or leaves a slit: both are closed.

    Examples
    --------
    >>> square = np.array([[0.0, 0.0], [4.0, 0.0], [4.0, 4.0], [0.0, 4.0]])
    >>> region_of([square, square / 2 + 1]).area
    12.0
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
    return region if region.is_empty else _without_slits(region)


def _without_slits(region: Any) -> Any:
    """Close channels of no width; a region without them stays as it is."""
    closed = _areas(region.buffer(SLIT_MM, join_style="mitre").buffer(-SLIT_MM, join_style="mitre"))
    before, after = rings_of(region), rings_of(closed)
    if len(before) == len(after) and closed.length > 0.9 * region.length:
        return region
    return closed


def _areas(geometry: Any) -> Any:
    """Keep the polygons of a geometry, without specks and the lines that a repair may leave."""
    parts = [p for p in shapely.get_parts(geometry, return_index=False) if not p.is_empty]
    flat = [q for p in parts for q in (p.geoms if hasattr(p, "geoms") else [p])]
    kept = [p for p in flat if p.geom_type == "Polygon" and p.area > SPECK_MM2]
    return shapely.unary_union(kept) if len(kept) != 1 else kept[0]


def polygons_of(region: Any) -> list[Any]:
    """Return the polygons of a region, each one island with its holes."""
    return [p for p in shapely.get_parts(region) if p.geom_type == "Polygon" and not p.is_empty]


def rings_of(region: Any) -> list[Float64Array]:
    """Return all rings of a region, (n, 2) each, the first point not repeated."""
    return [
        np.asarray(ring.coords, dtype=np.float64)[:-1]
        for polygon in polygons_of(region)
        for ring in (polygon.exterior, *polygon.interiors)
    ]


def even_odd(size: tuple[int, int], rings: Sequence[Float64Array]) -> NDArray[np.bool_]:
    """Mark the samples (v, u) of a raster that lie inside an odd number of rings, given in units of samples.

    Each edge toggles all samples to the right of where it crosses a row; the running sum of a row counts crossings.

    Examples
    --------
    >>> int(even_odd((4, 4), [np.array([[0.5, 0.5], [2.5, 0.5], [2.5, 2.5], [0.5, 2.5]])]).sum())
    4
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
