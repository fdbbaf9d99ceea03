"""Quantised volumes in the order of the body's axes, few voxels, one byte each."""

from __future__ import annotations

import base64
import itertools
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave.measures.body import body_mask
from regweave.spatial.pyramid import Factors, shrink, shrink_geometry
from regweave.types import PALETTE, Float32Array, Float64Array, Geometry, LabelArray, Volume

BUDGETS = {"small": 600_000, "normal": 4_000_000, "full": 64_000_000}
"""Voxels of a volume on the page, by how much detail is asked for; a browser holds no more than the last."""
BUDGET = BUDGETS["normal"]
BINS = 4096
LEVELS = 256
TILTED_DEGREES = 2.0
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
        axes, flipped = body_axes(geometry.direction)
        shown = _cropped(_turned(geometry, axes, flipped), box)
        factors = _factors(shown, budget)
        return cls(axes, flipped, factors, shrink_geometry(shown, factors), box)

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

    def inner(self, box: Box) -> list[list[float]]:
        """Return a box of the image's voxels, along the display axes, in voxels of the page: its two corners."""
        start = [0, 0, 0] if self.box is None else [low for low, _ in self.box]
        ends = [
            [(low - s) / f - 0.5, min((high - s) / f, n) - 0.5]
            for (low, high), s, f, n in zip(box, start, self.factors, self.geometry.shape, strict=True)
        ]
        return [[low for low, _ in ends], [high for _, high in ends]]

    @property
    def tilted(self) -> bool:
        """True if planes along the grid are visibly oblique to the body."""
        return self.tilt_degrees > TILTED_DEGREES

    @property
    def tilt_degrees(self) -> float:
        """Largest angle between an axis of the display and its body axis."""
        cosine = np.clip(np.diag(self.geometry.direction), -1.0, 1.0)
        return float(np.degrees(np.arccos(cosine)).max())


def body_axes(direction: Float64Array) -> tuple[tuple[int, int, int], tuple[bool, bool, bool]]:
    """Return the image axis nearest to each of left, posterior, superior, and whether it runs the other way."""
    best = max(itertools.permutations(range(3)), key=lambda axes: sum(abs(direction[a, axes[a]]) for a in range(3)))
    i, j, k = best
    x, y, z = (bool(direction[a, best[a]] < 0) for a in range(3))
    return (i, j, k), (x, y, z)


def quantise(volumes: Sequence[Float32Array]) -> tuple[list[NDArray[np.uint8]], Float32Array]:
    """Round volumes to the 256 values of one table.

    Half of the table is spread evenly over the range, half where the voxels are, so that a narrow window still has
    many greys. Return the codes of each volume, and the value of each code, ascending.

    Examples
    --------
    >>> (codes,), table = quantise([np.float32([[[0, 5, 7]]])])
    >>> table[codes].ravel().tolist()
    [0.0, 5.0, 7.0]
    """
    table = _table(volumes)
    between = (table[1:] + table[:-1]) / 2
    return [np.searchsorted(between, v).astype(np.uint8) for v in volumes], table


def packed(data: NDArray[Any]) -> str:
    """Bytes of an array, first axis fastest, little-endian, as base64 of a zlib stream."""
    raw = data.astype(data.dtype.newbyteorder("<"), copy=False).tobytes(order="F")
    return base64.b64encode(zlib.compress(raw, 6)).decode("ascii")


def _table(volumes: Sequence[Float32Array]) -> Float32Array:
    values = np.concatenate([v.ravel() for v in volumes])
    low, high = float(values.min()), float(values.max())
    few: Float32Array = np.unique(values[:: max(1, values.size // 10_000)])
    if few.size <= LEVELS:
        few = np.unique(values)
    if few.size <= LEVELS:
        return np.asarray(np.pad(few, (0, LEVELS - few.size), mode="edge"), dtype=np.float32)
    counts, edges = np.histogram(values, bins=BINS, range=(low, high))
    mass = np.minimum(counts, values.size / LEVELS)  # one value of many voxels, such as air, needs one code only
    place = np.concatenate([[0.0], np.cumsum(mass / mass.sum() + 1.0 / BINS)])
    even = np.linspace(0.0, place[-1], LEVELS)
    return np.asarray(np.interp(even, place, edges), dtype=np.float32)


def _turned(geometry: Geometry, axes: tuple[int, int, int], flipped: tuple[bool, bool, bool]) -> Geometry:
    x, y, z = (geometry.shape[a] for a in axes)
    turn = np.zeros((4, 4))
    turn[3, 3] = 1.0
    for display, image in enumerate(axes):
        turn[image, display] = -1.0 if flipped[display] else 1.0
        turn[image, 3] = geometry.shape[image] - 1.0 if flipped[display] else 0.0
    return Geometry((x, y, z), geometry.affine @ turn)


def _cropped(geometry: Geometry, box: Box | None) -> Geometry:
    if box is None:
        return geometry
    affine = geometry.affine.copy()
    affine[:3, 3] = geometry.points(np.array([low for low, _ in box], dtype=np.float64))
    x, y, z = (high - low for low, high in box)
    return Geometry((x, y, z), affine)


def _factors(geometry: Geometry, budget: int) -> Factors:
    """Merge voxels along the axis where they are closest, until there are few enough."""
    factors = np.ones(3, dtype=int)
    shape, spacing = np.array(geometry.shape), geometry.spacing_mm
    while np.prod(-(-shape // factors)) > budget:
        step = np.where(shape > factors, spacing * factors, np.inf)
        factors[int(step.argmin())] += 1
    x, y, z = (int(f) for f in factors)
    return x, y, z


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
COARSE = 300_000
"""Voxels in which the body is looked for."""
NOISE = 0.005
"""Share of a plane that must be body for the plane to count: a speck of noise or a wire of the couch is none."""


def windows(
    fixed: Float32Array, moving: Float32Array, modality: Mapping[str, str], content: NDArray[np.bool_]
) -> list[dict[str, Any]]:
    """Return the windows to choose from, the one with the best contrast in the ``content`` first.

    A CT has the usual windows, another image the range of its tissue.
    """
    auto = {"fixed": _auto(fixed), "moving": _auto(moving)}
    whole = {name: (float(data.min()), float(data.max())) for name, data in (("fixed", fixed), ("moving", moving))}
    ct = [name for name in auto if modality[name] == "ct"]
    named = {name: {**auto, **dict.fromkeys(ct, w)} for name, w in CT_WINDOWS.items()} if ct else {"auto": auto}
    if ct:
        first = ct_window((fixed if "fixed" in ct else moving)[content])
        named = {first: named[first], **named}
    return [{"name": name, **window} for name, window in {**named, "whole range": whole}.items()]


def ct_window(values: Float32Array) -> str:
    """Return the name of the window with the best contrast for some Hounsfield units.

    Examples
    --------
    >>> ct_window(np.float32([-850, -800, 40])), ct_window(np.float32([-80, 40, 60])), ct_window(np.float32([30, 35]))
    ('lung', 'soft tissue', 'brain')
    """
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
    coarse, whole = Display.of(geometry, COARSE), Display.of(geometry, int(np.prod(geometry.shape)))
    steps = tuple(slice(None, None, coarse.factors[coarse.axes.index(axis)]) for axis in range(3))
    found = []
    for image in images:
        few = coarse.turn(image[steps])
        found.append(_extent(body_mask(Volume(few, coarse.geometry)), coarse.factors, NOISE))
    found += [_extent(whole.turn(data) != 0) for data in labels if data.any()]
    ends = [(min(e[a][0] for e in found), max(e[a][1] for e in found)) for a in range(3)]
    grown = [(low - round(MARGIN * (high - low)) - 1, high + round(MARGIN * (high - low)) + 1) for low, high in ends]
    x, y, z = ((max(0, low), min(n, high)) for (low, high), n in zip(grown, whole.geometry.shape, strict=True))
    return x, y, z


def _extent(mask: NDArray[np.bool_], factors: tuple[int, int, int] = (1, 1, 1), least: float = 0.0) -> Box:
    """Return the first voxel of a mask along each axis, and the one after the last, in voxels of the image."""
    ends = []
    for axis, factor in enumerate(factors):
        there = np.flatnonzero(mask.mean(axis=tuple({0, 1, 2} - {axis})) > least)
        ends.append(
            (int(there[0]) * factor, int(there[-1] + 1) * factor) if there.size else (0, mask.shape[axis] * factor)
        )
    x, y, z = ends
    return x, y, z


def _auto(data: Float32Array) -> tuple[float, float]:
    """Range of the voxels above the background, which is taken to be the smallest value."""
    inside = data[data > data.min()]
    if inside.size == 0:
        return float(data.min()), float(data.min()) + 1.0
    low, high = (float(v) for v in np.percentile(inside, AUTO_PERCENTILES))
    return low, max(high, low + 1e-6)


COLOURS = tuple(f"#{r:02x}{g:02x}{b:02x}" for r, g, b in PALETTE)


def structures(
    labels: Mapping[str, LabelArray], names: Mapping[int, str], display: Display
) -> tuple[dict[str, NDArray[Any]], list[dict[str, Any]]]:
    """Return the code of the structure at each voxel of the page, 0 for none, for each label map; and the structures.

    A structure has its code, label, name, colour, and centre in voxels of the page, None if no map shows it.
    """
    maps = {name: display.labels(data) for name, data in labels.items()}
    values = sorted({int(v) for data in labels.values() for v in np.unique(data)} - {0})
    known = np.array([0, *values])
    kind = np.uint8 if len(values) <= 255 else np.uint16
    codes = {name: np.searchsorted(known, data).astype(kind) for name, data in maps.items()}
    places = {name: ndimage.find_objects(data, len(values)) for name, data in codes.items()}
    rows = [
        {
            "code": n, "label": v, "name": names.get(v, str(v)), "colour": COLOURS[(n - 1) % len(COLOURS)],
            "centre": _centre(codes, places, n),
        }
        for n, v in enumerate(values, start=1)
    ]  # fmt: skip
    return codes, rows


def _centre(codes: Mapping[str, NDArray[Any]], places: Mapping[str, Any], code: int) -> list[int] | None:
    """Voxel of the structure that is nearest to its mean, in the first label map that shows it."""
    for name, data in codes.items():
        box = places[name][code - 1]
        if box is not None:
            where = np.argwhere(data[box] == code)
            nearest = where[int(((where - where.mean(axis=0)) ** 2).sum(axis=1).argmin())]
            return [int(i) + part.start for i, part in zip(nearest, box, strict=True)]
    return None
