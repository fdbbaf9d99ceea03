"""Contours of the structure set of a result: its polygons on today's slices, in voxels of the page."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regweave.contours.regions import even_odd
from regweave.errors import RegweaveError
from regweave.types import Float64Array, Geometry, Structure

STRUCTURE_SET = "structure set"  # key of the file of the contours in `result.json`
OFF_SLICE = 0.1  # share of a gap by which a polygon may be off its slice


class Ring(NamedTuple):
    """One polygon: the code of its structure, its slice, and its points (n, 2) along the two axes in the slice."""

    code: int
    slice: int
    points: Float64Array


@dataclass(frozen=True)
class Contours:
    """Polygons of a structure set in voxels of the page."""

    axis: int  # of the page, across today's slices
    slices: Float64Array  # (K,) positions of today's slices, ascending
    edges: Float64Array  # (K + 1,) ends of the slices: half way to their neighbours
    rings: list[Ring]

    @cached_property
    def by_slice(self) -> dict[int, dict[int, list[Ring]]]:
        """Polygons of each structure by slice."""
        found: dict[int, dict[int, list[Ring]]] = defaultdict(lambda: defaultdict(list))
        for ring in self.rings:
            found[ring.code][ring.slice].append(ring)
        return {code: dict(slices) for code, slices in found.items()}

    def mask(self, code: int, through: int, at: float, u: Float64Array, v: Float64Array) -> NDArray[np.bool_]:
        """Mark the samples (v, u) of a plane of the page inside a structure.

        In today's slices these are its polygons; in other planes each slice reaches half way to its neighbours. The
        plane cuts the axis ``through`` at ``at``; ``u, v`` are evenly spaced along the other axes, in their order.
        """
        own = self.by_slice.get(code, {})
        if through == self.axis:
            k = int(np.searchsorted(self.edges, at, side="right")) - 1
            first, step = np.array([u[0], v[0]]), np.array([u[1] - u[0], v[1] - v[0]])
            return even_odd((len(v), len(u)), [(ring.points - first) / step for ring in own.get(k, ())])
        column = [a for a in range(3) if a != self.axis].index(through)
        stacked_down = self.axis > 3 - self.axis - through
        along, across = (v, u) if stacked_down else (u, v)
        marked = np.zeros((len(along), len(across)), dtype=bool)
        for k, found in own.items():
            cuts = np.sort(np.concatenate([_crossings(ring.points, column, at) for ring in found]))
            inside = np.searchsorted(cuts, across) % 2 == 1
            marked[(along >= self.edges[k]) & (along < self.edges[k + 1])] |= inside
        return marked if stacked_down else marked.T

    def corners(self, rings: Sequence[Ring]) -> tuple[Float64Array, Float64Array]:
        """Return the corners of the box round some polygons with the depth of their slices, in voxels of the page."""
        points = np.concatenate([ring.points for ring in rings])
        low, high = (
            np.insert(ends, self.axis, edge)
            for ends, edge in (
                (points.min(axis=0), min(self.edges[ring.slice] for ring in rings)),
                (points.max(axis=0), max(self.edges[ring.slice + 1] for ring in rings)),
            )
        )
        return low, high


def placed(
    structures: Sequence[Structure],
    labels: Mapping[int, int],
    slices_mm: Float64Array,
    grid: Geometry,
    page: Geometry,
    axis: int,
) -> tuple[Contours, list[dict[str, Any]]]:
    """Convert the structures of a set to polygons, and to code, label, name, colour, centre and points of each.

    ``labels`` are by number of the structure; ``slices_mm`` are positions of today's slices along their normal, and the
    first two axes of ``grid`` run within them. ``axis`` of the page runs across them.

    Raises E148 where the set has a structure that the record lacks, or a contour beside today's slices.
    """
    in_plane = [a for a in range(3) if a != axis]
    back = np.linalg.inv(page.affine)
    normal = np.cross(grid.direction[:, 0], grid.direction[:, 1])
    slices = np.sort(back[axis, :3] @ normal * slices_mm + back[axis, 3])
    gaps = np.diff(slices) if len(slices) > 1 else np.ones(1)
    edges = np.concatenate([[slices[0] - gaps[0] / 2], slices[:-1] + np.diff(slices) / 2, [slices[-1] + gaps[-1] / 2]])
    rings, rows = [], []
    for code, one in enumerate(structures, start=1):
        if one.number not in labels:
            raise _changed(f"it has a structure {one.name!r} that result.json does not list")
        own = []
        for contour in one.contours:
            points = contour.points_mm @ back[:3, :3].T + back[:3, 3]
            k = int(np.abs(slices - points[:, axis].mean()).argmin())
            if np.abs(points[:, axis] - slices[k]).max() > OFF_SLICE * (edges[k + 1] - edges[k]):
                raise _changed(f"a contour of {one.name!r} lies on no slice of today's scan")
            own.append(Ring(code, k, points[:, in_plane]))
        rings += own
        points = one.points @ back[:3, :3].T + back[:3, 3]
        r, g, b = one.colour or (255, 255, 255)
        rows.append({
            "code": code, "label": labels[one.number], "name": one.name, "colour": f"#{r:02x}{g:02x}{b:02x}",
            "centre": _centre(own, points, axis, slices), "points": points.round(4).tolist(),
        })  # fmt: skip
    first, last = np.searchsorted(slices, [-0.5, page.shape[axis] - 0.5])
    drawn = [ring.slice for ring in rings]
    first, last = min(int(first), *drawn, len(slices) - 1), max(int(last), *(k + 1 for k in drawn), 1)
    shown = [Ring(ring.code, ring.slice - first, ring.points) for ring in rings]
    return Contours(axis, slices[first:last], edges[first : last + 1], shown), rows


def extent(structures: Sequence[Structure], geometry: Geometry) -> tuple[tuple[int, int], ...]:
    """Return the first voxel of a grid that contours need, and the one after the last, along each axis."""
    points = [contour.points_mm for one in structures for contour in one.contours]
    if not points:
        return ()
    back = np.linalg.inv(geometry.affine)
    places = np.concatenate(points) @ back[:3, :3].T + back[:3, 3]
    low = np.clip(np.floor(places.min(axis=0)), 0, np.array(geometry.shape) - 1).astype(int)
    high = np.clip(np.ceil(places.max(axis=0)) + 1, 1, geometry.shape).astype(int)
    return tuple(zip(low.tolist(), high.tolist(), strict=True))


def _crossings(points: Float64Array, column: int, at: float) -> Float64Array:
    """Return where the edges of a polygon cross a line along one of its two axes, measured along the other."""
    x, y = points[:, column], points[:, 1 - column]
    x1, y1 = np.roll(x, -1), np.roll(y, -1)
    cut = (x <= at) != (x1 <= at)
    return np.asarray(y[cut] + (at - x[cut]) / (x1[cut] - x[cut]) * (y1[cut] - y[cut]))


def _centre(rings: Sequence[Ring], points: Float64Array, axis: int, slices: Float64Array) -> list[float] | None:
    """Return a place inside a structure: on its middle slice, in the widest part of the row through the middle."""
    if not rings:
        return points[0].round(4).tolist() if len(points) else None
    drawn = sorted({ring.slice for ring in rings})
    middle = drawn[len(drawn) // 2]
    own = [ring.points for ring in rings if ring.slice == middle]
    largest = max(own, key=lambda p: float(np.ptp(p[:, 0]) * np.ptp(p[:, 1])))
    row = float((largest[:, 1].min() + largest[:, 1].max()) / 2)
    cuts = np.sort(np.concatenate([_crossings(p, 1, row) for p in own]))
    widest = int(np.diff(cuts)[::2].argmax()) * 2
    place = [float(cuts[widest : widest + 2].mean()), row]
    place.insert(axis, float(slices[middle]))
    return [round(p, 4) for p in place]


def _changed(what: str) -> RegweaveError:
    message = f"the structure set in the folder is not that of its result.json: {what}"
    return RegweaveError("E148", message, "put back the rtstruct.dcm that `regweave contours` wrote, or run it again")
