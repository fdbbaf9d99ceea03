"""Data of the viewer on a page: volumes on the axes of the body as one byte a voxel, windows, structures, maps."""

from __future__ import annotations

import base64
import itertools
import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave.contours import even_odd
from regweave.errors import RegweaveError
from regweave.io.dicom.rtstruct import read_drawn
from regweave.io.disk.files import is_file
from regweave.io.geometry import check_same_grid
from regweave.io.points import MARKUPS_SCHEMA
from regweave.run.result import Result
from regweave.spatial.voxels import Factors, body_mask, shrink, shrink_geometry
from regweave.types import PALETTE, Field, Geometry, NodeEvidence, Structure, Volume
from regweave.types.images import Float32Array, Float64Array, LabelArray

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
    structures: Sequence[Structure], labels: Mapping[int, int], slices_mm: Float64Array, grid: Geometry,
    page: Geometry, axis: int,
) -> tuple[Contours, list[dict[str, Any]]]:  # fmt: skip
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
            "centre": _centre_of_rings(own, points, axis, slices), "points": points.round(4).tolist(),
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


def _centre_of_rings(
    rings: Sequence[Ring], points: Float64Array, axis: int, slices: Float64Array
) -> list[float] | None:
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


BUDGETS = {"small": 600_000, "normal": 4_000_000, "full": 64_000_000}
"""Voxels of a volume on the page, by how much detail is asked for; a browser holds no more than the last."""
BUDGET = BUDGETS["normal"]
BINS, LEVELS = 4096, 256
CT_WINDOWS = {
    "soft tissue": (-160.0, 240.0),
    "mediastinum": (-125.0, 225.0),
    "liver": (-45.0, 155.0),
    "brain": (0.0, 80.0),
    "lung": (-1350.0, 150.0),
    "bone": (-500.0, 1300.0),
}
LUNG_BELOW_HU, BONE_ABOVE_HU = -400.0, 250.0
BRAIN_HU = (-10.0, 70.0)
AUTO_PERCENTILES = (1.0, 99.5)
MARGIN = 0.05
COARSE = 300_000  # voxels in which the body is segmented for the box of the page
NOISE = 0.005  # a plane counts if at least this share of it is body; noise and wires of the couch are less
TILES = 8  # tiles of the checkerboard along the longest side
COLOURS = tuple(f"#{r:02x}{g:02x}{b:02x}" for r, g, b in PALETTE)
JACOBIAN_RANGE = 4.0  # the map of the Jacobian goes from a quarter to four times the volume
UNIT_MM = 0.01  # places of polygons on the page are whole multiples of this
GRID_LINES = 28
GRID_UNIT = 0.01  # displacements of the grid are stored in hundredths of a voxel
CONFIDENCE_PERCENTILE = 98.0
FIXED_AND_MOVING = {"fixed": "fixed", "moving": "moving", "warped": "warped"}
TODAY_AND_PLAN = {"fixed": "today", "moving": "plan", "warped": "warped"}
Box = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
"""First voxel, and the one after the last, along each axis of the page."""


@dataclass(frozen=True)
class Display:
    """Axis order, cropping and whole-number shrinking of volumes on the page.

    The axes run towards left, posterior and superior.
    """

    axes: tuple[int, int, int]  # image axis that runs most nearly to the left, to posterior, to superior
    flipped: tuple[bool, bool, bool]  # whether it runs the other way
    factors: Factors  # voxels merged into one, along the display axes
    geometry: Geometry  # the grid on the page
    box: Box | None = None  # shown voxels along the display axes, before shrinking; None for all

    @classmethod
    def of(cls, geometry: Geometry, budget: int = BUDGET, box: Box | None = None) -> Display:
        """Choose axes and shrinking for a grid; a box is cropped first, so that what is left keeps more detail."""
        direction = geometry.direction
        i, j, k = max(itertools.permutations(range(3)), key=lambda axes: sum(abs(direction[range(3), axes])))
        flipped = (bool(direction[0, i] < 0), bool(direction[1, j] < 0), bool(direction[2, k] < 0))
        low, high = np.array([(0, geometry.shape[a]) for a in (i, j, k)] if box is None else box).T
        turn = np.zeros((4, 4))
        turn[3, 3] = 1.0
        for display, image in enumerate((i, j, k)):
            turn[image, display] = -1.0 if flipped[display] else 1.0
            turn[image, 3] = geometry.shape[image] - 1.0 if flipped[display] else 0.0
        affine = geometry.affine @ turn
        affine[:3, 3] += affine[:3, :3] @ low
        x, y, z = (high - low).tolist()
        shown, factors = Geometry((x, y, z), affine), np.ones(3, dtype=int)
        # Voxels are merged along the axis where they are closest, until there are few enough.
        while np.prod(-(-(high - low) // factors)) > budget:
            factors[int(np.where(high - low > factors, shown.spacing_mm * factors, np.inf).argmin())] += 1
        x, y, z = factors.tolist()
        return cls((i, j, k), flipped, (x, y, z), shrink_geometry(shown, (x, y, z)), box)

    def turn(self, data: NDArray[Any]) -> NDArray[Any]:
        """Put the axes in the display's order and crop, without shrinking."""
        out = np.flip(data.transpose(self.axes), tuple(a for a in range(3) if self.flipped[a]))
        return np.ascontiguousarray(out if self.box is None else out[tuple(slice(*ends) for ends in self.box)])

    def image(self, data: Float32Array) -> Float32Array:
        """Mean of the merged voxels."""
        return shrink(self.turn(data), self.factors)

    def labels(self, data: LabelArray) -> LabelArray:
        """One of the merged voxels, the one at their centre."""
        turned = self.turn(data)
        picked = [
            np.minimum(np.arange(n) * f + f // 2, size - 1)
            for n, f, size in zip(self.geometry.shape, self.factors, turned.shape, strict=True)
        ]
        return np.ascontiguousarray(turned[np.ix_(*picked)])

    @property
    def tilt_degrees(self) -> float:
        """Largest angle between an axis of the display and its body axis."""
        cosine = np.clip(np.diag(self.geometry.direction), -1.0, 1.0)
        return float(np.degrees(np.arccos(cosine)).max())


def quantise(volumes: Sequence[Float32Array]) -> tuple[list[NDArray[np.uint8]], Float32Array]:
    """Round volumes to the 256 values of one table.

    Half of the table is spread evenly over the range, half where the voxels are, so that a narrow window still has
    many greys. Return the codes of each volume, and the value of each code, ascending.
    """
    values = np.concatenate([v.ravel() for v in volumes])
    few: Float32Array = np.unique(values[:: max(1, values.size // 10_000)])
    few = np.unique(values) if few.size <= LEVELS else few
    if few.size <= LEVELS:
        table = np.pad(few, (0, LEVELS - few.size), mode="edge").astype(np.float32)
    else:
        counts, edges = np.histogram(values, bins=BINS, range=(float(values.min()), float(values.max())))
        mass = np.minimum(counts, values.size / LEVELS)  # one value of many voxels, such as air, needs one code only
        place = np.concatenate([[0.0], np.cumsum(mass / mass.sum() + 1.0 / BINS)])
        table = np.interp(np.linspace(0.0, place[-1], LEVELS), place, edges).astype(np.float32)
    between = table[1:] / 2 + table[:-1] / 2  # the sum of two large values is no float32
    return [np.searchsorted(between, v).astype(np.uint8) for v in volumes], table


def packed(codes: NDArray[Any], *, smooth: bool = False, **facts: Any) -> dict[str, Any]:
    """Pack an array for the page: first axis fastest, little-endian, as base64 of a zlib stream, with more ``facts``.

    With ``smooth`` these are the differences of neighbours: where values change slowly they take half the room.
    """
    if smooth:
        flat = codes.ravel(order="F")
        codes, facts = np.diff(flat, prepend=flat.dtype.type(0)), {"differences": True, **facts}
    raw = codes.astype(codes.dtype.newbyteorder("<"), copy=False).tobytes(order="F")
    return {"type": codes.dtype.str[1:], "data": base64.b64encode(zlib.compress(raw, 6)).decode("ascii"), **facts}


def windows(
    fixed: Float32Array, moving: Float32Array, modality: Mapping[str, str], content: NDArray[np.bool_]
) -> list[dict[str, Any]]:
    """Return the windows to choose from, the one with the best contrast in the ``content`` first.

    A CT has the usual windows, another image the range of its tissue.
    """
    auto, whole = {}, {}
    for name, data in (("fixed", fixed), ("moving", moving)):
        whole[name] = (least, _) = float(data.min()), float(data.max())
        inside = data[data > least]  # the background is taken to be the smallest value
        low, high = (float(v) for v in np.percentile(inside, AUTO_PERCENTILES)) if inside.size else (least, least + 1.0)
        auto[name] = low, max(high, low + 1e-6)
    ct = [name for name in auto if modality[name] == "ct"]
    named = {name: {**auto, **dict.fromkeys(ct, w)} for name, w in CT_WINDOWS.items()} if ct else {"auto": auto}
    if ct:
        first = ct_window((fixed if "fixed" in ct else moving)[content])
        named = {first: named[first], **named}
    return [{"name": name, **window} for name, window in {**named, "whole range": whole}.items()]


def ct_window(values: Float32Array) -> str:
    """Return the name of the window with the best contrast for some Hounsfield units."""
    if values.size == 0:
        return "soft tissue"
    low, middle, high = (float(v) for v in np.percentile(values, (5, 50, 95)))
    if middle < LUNG_BELOW_HU or middle > BONE_ABOVE_HU:
        return "lung" if middle < LUNG_BELOW_HU else "bone"
    return "brain" if BRAIN_HU[0] <= low and high <= BRAIN_HU[1] else "soft tissue"


def content_box(geometry: Geometry, images: Iterable[Float32Array], labels: Iterable[LabelArray]) -> Box:
    """Return the bounding box of bodies and structures along the axes of the page, with a margin.

    The body is segmented in every n-th voxel of each image.
    """
    coarse, whole = Display.of(geometry, COARSE), Display.of(geometry, math.prod(geometry.shape))
    steps = tuple(slice(None, None, coarse.factors[coarse.axes.index(axis)]) for axis in range(3))
    few = (Volume(coarse.turn(image[steps]), coarse.geometry) for image in images)
    masks = [(body_mask(image), coarse.factors, NOISE) for image in few]
    masks += [(whole.turn(data) != 0, (1, 1, 1), 0.0) for data in labels if data.any()]
    box = []
    for axis, n in enumerate(whole.geometry.shape):
        ends = []
        for mask, factors, least in masks:
            there = np.flatnonzero(mask.mean(axis=tuple({0, 1, 2} - {axis})) > least)
            first, last = (there[0], there[-1] + 1) if there.size else (0, mask.shape[axis])
            ends.append((int(first) * factors[axis], int(last) * factors[axis]))
        low, high = min(end[0] for end in ends), max(end[1] for end in ends)
        margin = round(MARGIN * (high - low)) + 1
        box.append((max(0, low - margin), min(n, high + margin)))
    x, y, z = box
    return x, y, z


def structures(
    labels: Mapping[str, LabelArray], names: Mapping[int, str], display: Display
) -> tuple[dict[str, NDArray[Any]], list[dict[str, Any]]]:
    """Return the code of the structure at each voxel of the page, 0 for none, for each label map; and the structures.

    A structure has its code, label, name, colour, and centre: the voxel of the page that is nearest to its mean in the
    first map that shows it, None if none does.
    """
    maps = {name: display.labels(data) for name, data in labels.items()}
    values = sorted({int(v) for data in labels.values() for v in np.unique(data)} - {0})
    known = np.array([0, *values])
    kind = np.uint8 if len(values) <= 255 else np.uint16
    codes = {name: np.searchsorted(known, data).astype(kind) for name, data in maps.items()}
    places = {name: ndimage.find_objects(data, len(values)) for name, data in codes.items()}
    rows = []
    for n, v in enumerate(values, start=1):
        centre = None
        if (name := next((name for name in codes if places[name][n - 1] is not None), None)) is not None:
            box = places[name][n - 1]
            where = np.argwhere(codes[name][box] == n)
            nearest = where[int(((where - where.mean(axis=0)) ** 2).sum(axis=1).argmin())]
            centre = [int(i) + part.start for i, part in zip(nearest, box, strict=True)]
        colour = COLOURS[(n - 1) % len(COLOURS)]
        rows.append({"code": n, "label": v, "name": names.get(v, str(v)), "colour": colour, "centre": centre})
    return codes, rows


Coded = tuple[NDArray[np.uint8], float, float]
"""One byte for each voxel of the page, and ``first`` and ``step``: code c means ``first + step · c``."""


def jacobian_map(jacobian: Float32Array, display: Display) -> Coded:
    """Code log2 of the Jacobian determinant.

    Code 0 means a fold, in any of the voxels that were merged; 1 and 255 mean values beyond the scale.
    """
    folded = display.image((jacobian <= 0).astype(np.float32)) > 0
    limit = float(np.log2(JACOBIAN_RANGE))
    shown = display.image(jacobian)
    log = np.log2(np.clip(shown, 1.0 / JACOBIAN_RANGE, JACOBIAN_RANGE))
    step = 2 * limit / 252
    codes = np.rint((log + limit) / step).astype(np.uint8) + np.uint8(2)
    codes[shown < 1.0 / JACOBIAN_RANGE], codes[shown > JACOBIAN_RANGE] = 1, 255
    codes[folded] = 0
    return codes, -limit - 2 * step, step


def by_label(volume: Float32Array, labels: LabelArray | None) -> dict[int, tuple[float, float, float]]:
    """Return the least, mean and largest value inside each structure of a label map."""
    if labels is None:
        return {}
    values = [int(v) for v in np.unique(labels) if v != 0]
    low, mean, high = (f(volume, labels, values) for f in (ndimage.minimum, ndimage.mean, ndimage.maximum))
    return {v: (float(low[i]), float(mean[i]), float(high[i])) for i, v in enumerate(values)}


def confidence_map(nodes: NodeEvidence, display: Display) -> Coded:
    """Code the gap between the best and the second label; the upper end of the scale is a high percentile."""
    values = on_image(nodes.confidence, nodes.geometry, display.geometry)
    high = float(np.percentile(nodes.confidence, CONFIDENCE_PERCENTILE)) or 1.0
    return np.rint(255 * np.clip(values / high, 0, 1)).astype(np.uint8), 0.0, high / 255


def limit_map(limit: Float32Array, display: Display) -> Coded:
    """Code the limit of the error; 0 means unknown, in any of the merged voxels."""
    shown, known = display.image(limit), display.image((limit < 0).astype(np.float32)) == 0
    high = float(np.percentile(limit[limit >= 0], CONFIDENCE_PERCENTILE)) if (limit >= 0).any() else 1.0
    step = (high or 1.0) / 254
    codes = 1 + np.rint(np.clip(shown, 0, high) / step)
    return np.where(known, codes, 0).astype(np.uint8), -step, step


def metric_map(nodes: NodeEvidence, display: Display) -> tuple[NDArray[np.uint8], NDArray[np.uint8], list[float]]:
    """Return for each voxel the number of the member with the largest influence, and its share in percent.

    Numbers begin at 1; 0 means that all labels cost the same. The last value is the part of the other voxels that each
    member decides.
    """
    best = np.zeros(display.geometry.shape, dtype=np.float32)
    total, who = np.zeros_like(best), np.zeros(best.shape, dtype=np.uint8)
    for number, values in enumerate(nodes.influence, start=1):
        here = on_image(values, nodes.geometry, display.geometry)
        total += here
        who[here > best] = number
        np.maximum(best, here, out=best)
    share = np.divide(best, total, out=np.zeros_like(best), where=total > 0)
    counts = np.bincount(who.ravel(), minlength=len(nodes.members) + 1)[1:]
    parts = [float(c) / max(int(counts.sum()), 1) for c in counts]
    return who, np.rint(100 * share).astype(np.uint8), parts


def grid_field(field: Field, display: Display) -> tuple[NDArray[np.int16], int]:
    """Sample the displacement along the display axes for drawing a grid, (3, I, J, K), in hundredths of a page voxel.

    The second value is the distance of the samples in voxels of the page; the first sample is voxel 0.
    """
    shape = display.geometry.shape
    step = max(1, -(-max(shape) // GRID_LINES))
    parts = np.stack([display.image(component)[::step, ::step, ::step] for component in field.data])
    to_voxels = np.linalg.inv(display.geometry.affine[:3, :3])
    moved: Float32Array = np.tensordot(to_voxels, parts, axes=1).astype(np.float32)
    return np.clip(np.rint(moved / GRID_UNIT), -32767, 32767).astype(np.int16), step


def on_image(values: Float32Array, nodes: Geometry, image: Geometry) -> Float32Array:
    """Interpolate values at the nodes linearly on an image grid; beyond the nodes take the nearest."""
    step = np.asarray(np.linalg.solve(nodes.affine, image.affine), dtype=np.float64)
    out: Float32Array = ndimage.affine_transform(
        values.astype(np.float32), step[:3, :3], step[:3, 3], output_shape=image.shape, order=1, mode="nearest"
    )
    return out


class Viewer:
    """Volumes of a result on the grid of the page: cropped to the bodies in them, the rest reduced to a budget.

    Images in memory are taken from there; a saved result reads them here. The folder is read for a structure set alone.
    """

    def __init__(self, result: Result, folder: Path, budget: int = BUDGET) -> None:
        images, clinic, modality = result.images, result.clinic, result.provenance.modality
        volumes = {"fixed": images.fixed, "moving": images.before, "warped": images.warped}
        grid = volumes["fixed"].geometry
        # A file keeps float32: a page made again from files has the same numbers.
        self.result, self.geometry = result, Geometry(grid.shape, grid.affine.astype(np.float32).astype(np.float64))
        grids = {f"the {name} image": of.geometry for name, of in volumes.items()}
        grids["the transform"] = images.transform.field.geometry
        drawn, maps = None, {}
        set_file = "" if clinic is None or not clinic.slices_mm else clinic.files.get(STRUCTURE_SET, "")
        if is_file(folder / set_file):  # a copy of the result may lack it
            drawn = read_drawn(folder / set_file)
        if drawn is None:
            labels = {"fixed": images.fixed_labels, "before": images.labels_before, "after": images.warped_labels}
            maps = {name: of.data for name, of in labels.items() if of is not None}
            grids |= {f"the label map '{name}'": of.geometry for name, of in labels.items() if of is not None}
        for name, other in grids.items():
            check_same_grid(self.geometry, other, name)
        box = content_box(self.geometry, [of.data for of in volumes.values()], maps.values())
        if drawn is not None:
            whole = Display.of(self.geometry, math.prod(self.geometry.shape)).geometry
            needed = extent(drawn, whole) or box
            x, y, z = ((min(a, c), max(b, d)) for (a, b), (c, d) in zip(box, needed, strict=True))
            box = x, y, z
        self.display = Display.of(self.geometry, budget, box)
        small = {name: self.display.image(of.data) for name, of in volumes.items()}
        (fixed,), fixed_table = quantise([small["fixed"]])
        (moving, warped), moving_table = quantise([small["moving"], small["warped"]])
        self.codes = {"fixed": fixed, "moving": moving, "warped": warped}
        self.tables = {"fixed": fixed_table, "moving": moving_table}
        """Value of each code; that of the moving image is also that of the warped one."""
        self.rounding = float(np.abs(fixed_table[fixed] - small["fixed"]).mean())
        self.labels, self.structures = structures(maps, images.names, self.display)
        self.contours: Contours | None = None
        if drawn is not None and clinic is not None:
            numbers = {row.number: row.number if row.label is None else row.label for row in clinic.structures}
            slices_mm = np.array(clinic.slices_mm)
            self.contours, self.structures = placed(
                drawn, numbers, slices_mm, self.geometry, self.display.geometry, self.display.axes.index(2)
            )
        self.reference = maps.get("fixed", maps.get("after"))
        masks = [data != 0 for data in self.labels.values() if data.any()]
        content = masks[0] if masks else body_mask(Volume(small["fixed"], self.display.geometry))
        sides = {"fixed": modality.fixed, "moving": modality.moving}
        self.windows = windows(small["fixed"], small["moving"], sides, content)
        self.unit = "HU" if modality.fixed == "ct" else ""
        near = [maps[name] for name in ("fixed", "before") if name in maps][:1]
        inner = np.array(content_box(self.geometry, [volumes["fixed"].data], near)).T
        low, high = ((end - [first for first, _ in box]) / self.display.factors for end in inner)
        self.view = [(low - 0.5).tolist(), (np.minimum(high, self.display.geometry.shape) - 0.5).tolist()]
        if self.contours is not None and self.contours.rings:
            low, high = self.contours.corners(self.contours.rings)
            ends = np.minimum(self.view[0], low), np.maximum(self.view[1], high)
            self.view = [corner.round(4).tolist() for corner in ends]
        self.start = self._start()

    def _start(self) -> list[float]:
        """Return the cross-hair at first: the middle of structures, on a slice of today for contours, or of all."""
        centres, contours = [row["centre"] for row in self.structures if row["centre"]], self.contours
        if contours is not None and centres:
            place = [float(p) for p in np.rint(np.mean(centres, axis=0))]
            nearest = np.abs(contours.slices - place[contours.axis]).argmin()
            place[contours.axis] = round(float(contours.slices[nearest]), 6)
            return place
        for data in self.labels.values():
            if data.any():
                return [int(v) for v in np.rint(ndimage.center_of_mass(data > 0))]
        return [n // 2 for n in self.display.geometry.shape]

    def data(self, jacobian: Float32Array) -> dict[str, Any]:
        """Return the JSON values that the script of the viewer reads."""
        result, geometry, contours = self.result, self.display.geometry, self.contours
        images, start = result.images, result.provenance.start
        moved, step = grid_field(images.transform.field, self.display)
        moved = np.moveaxis(moved, 0, -1)  # packed arrays run along their first axis fastest: each component is a block
        to_voxels = np.linalg.inv(geometry.affine)
        # The fixed landmark, and its partner before and after, in voxels of the page.
        places = {"fixed": "fixed_mm", "before": "start_mm", "after": "warped_mm"}
        landmarks = [
            {"name": point.name}
            | {key: (to_voxels @ [*getattr(point, name), 1.0])[:3].tolist() for key, name in places.items()}
            for point in (() if result.landmarks is None else result.landmarks.points)
        ]
        data: dict[str, Any] = {
            "shape": list(geometry.shape), "affine": geometry.affine.tolist(),
            "spacing": geometry.spacing_mm.tolist(), "view": self.view, "unit": self.unit,
            "words": FIXED_AND_MOVING if result.clinic is None else TODAY_AND_PLAN,
            "tile": float(max(np.array(geometry.shape) * geometry.spacing_mm)) / TILES,
            "images": {name: packed(codes, smooth=True) for name, codes in self.codes.items()},
            "tables": {name: [float(f"{v:.6g}") for v in table] for name, table in self.tables.items()},
            "windows": self.windows, "labels": {name: packed(codes) for name, codes in self.labels.items()},
            "structures": self.structures, "landmarks": landmarks, "start": self.start,
            "initial": None if start.field else [list(row) for row in start.matrix], "markups": MARKUPS_SCHEMA,
            "grid": packed(moved, shape=list(moved.shape[:3]), step=step, unit=GRID_UNIT),
        }  # fmt: skip
        maps = {"jacobian": jacobian_map(jacobian, self.display)}
        if images.limit is not None:
            maps["limit"] = limit_map(images.limit.data, self.display)
        if contours is not None:
            a, b = (axis for axis in range(3) if axis != contours.axis)
            rings = contours.rings
            head = np.array([(r.code, r.slice, len(r.points)) for r in rings], dtype=np.int32).reshape(-1, 3)
            points = np.concatenate([r.points for r in rings]) if rings else np.zeros((0, 2))
            units = np.rint(points * geometry.spacing_mm[[a, b]] / UNIT_MM).astype(np.int32)
            data["contours"] = {
                "axis": contours.axis, "slices": [round(float(s), 6) for s in contours.slices],
                "edges": [round(float(s), 6) for s in contours.edges], "unit": UNIT_MM, "rings": packed(head.ravel()),
                "points": packed(units, smooth=True),
            }  # fmt: skip
        if (nodes := images.nodes) is not None:
            who, share, parts = metric_map(nodes, self.display)
            data["metric"] = packed(who, share=packed(share, smooth=True), members=list(nodes.members), parts=parts)
            maps["confidence"] = confidence_map(nodes, self.display)
        coded = {key: packed(codes, smooth=True, first=first, step=step) for key, (codes, first, step) in maps.items()}
        return data | coded
