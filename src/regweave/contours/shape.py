"""Signed distance of a drawn structure on the true slices."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave._core import plane_distance
from regweave.contours.regions import even_odd, region_of, rings_of
from regweave.io.dicom.series import Series, SliceGrid
from regweave.threads import side_by_side
from regweave.types import Float32Array, Float64Array, Structure

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
