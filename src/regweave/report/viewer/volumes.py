"""Quantised volumes in the order of the body's axes, few voxels, one byte each."""

from __future__ import annotations

import base64
import itertools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.spatial.pyramid import Factors, shrink, shrink_geometry
from regweave.types import Float32Array, Float64Array, Geometry, LabelArray

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

    Parameters
    ----------
    axes : tuple of three ints
        Image axis that runs most nearly to the left, to posterior, to superior.
    flipped : tuple of three bools
        Whether it runs the other way.
    factors : tuple of three ints
        Voxels merged into one, along the display axes.
    geometry : Geometry
        The grid on the page.
    box : Box, optional
        Voxels that are shown, along the display axes and before shrinking; all of them by default.
    """

    axes: tuple[int, int, int]
    flipped: tuple[bool, bool, bool]
    factors: Factors
    geometry: Geometry
    box: Box | None = None

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
        """Largest angle between an axis of the display and the body axis it stands for."""
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
    many greys.

    Parameters
    ----------
    volumes : sequence of float arrays
        Volumes that share their unit.

    Returns
    -------
    tuple of a list of uint8 arrays and a float32 array of shape (256,)
        Codes, and the value of each code, ascending.

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
