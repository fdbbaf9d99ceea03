"""Sub-voxel outlines of a plane of signed distances: thinned polygons, holes joined by keyholes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import shapely
from contourpy import FillType, contour_generator

from regweave.types import Float64Array

THINNING = 0.002
LEAST_THINNING_MM, MOST_THINNING_MM = 0.003, 0.05
"""Points are left out where the outline moves by less than this share of the square root of its area."""
LEAST_AREA_MM2 = 0.05


def outlines(distance_mm: Float64Array, u_mm: Float64Array, v_mm: Float64Array) -> list[Float64Array]:
    """Return closed polygons (n, 2) around all that is negative, one for each island.

    Parameters
    ----------
    distance_mm : array of shape (V, U)
    u_mm, v_mm : arrays of shape (U,) and (V,)
        Where the samples lie.

    Examples
    --------
    >>> at = np.arange(9.0)
    >>> ring = np.abs(np.hypot(*np.meshgrid(at - 4, at - 4)) - 2.5) - 1
    >>> [len(one) > 8 for one in outlines(ring, at, at)]
    [True]
    """
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

    Examples
    --------
    >>> square = shapely.box(0, 0, 4, 4).difference(shapely.box(1, 1, 2, 2))
    >>> float(shapely.Polygon(keyholed(square)).area)
    15.0
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
