"""Control grid of nodes: where they are, which voxels each one looks at, and which classes these give it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from regweave import _core
from regweave.types import Float32Array, Float64Array, Geometry, IntArray, LabelArray

SLACK = 1e-4  # Parts of a voxel or of a control spacing that rounding in a header explains; they decide nothing


def nearest_whole(values: Float64Array) -> Float64Array:
    """Round to whole numbers; a half stays one, and goes to the even side, if a header has rounded it."""
    return np.asarray(np.rint(np.rint(values / SLACK) / (1 / SLACK)), dtype=np.float64)


@dataclass(frozen=True)
class ControlGrid:
    """Control points of a free-form deformation on an image grid, with the support of each.

    ``origin`` is the position of control point (0, 0, 0) and ``spacing`` the distance of neighbours, both in voxels.
    ``support`` is the size of the box of voxels that belongs to a node. Boxes of nodes near the border are moved inside
    the image, so that all supports hold the same number of voxels.
    """

    image_shape: tuple[int, int, int]
    nodes: tuple[int, int, int]
    origin: Float64Array
    spacing: Float64Array
    support: tuple[int, int, int]

    @classmethod
    def cover(cls, geometry: Geometry, spacing_mm: float, support: int | None = None) -> ControlGrid:
        """Return a centred grid over an image so that it covers every voxel.

        ``support`` is the edge of the box in voxels; None means one control spacing.
        """
        spacing = spacing_mm / geometry.spacing_mm
        extent = np.array(geometry.shape) - 1.0
        intervals = np.ceil(extent / spacing - SLACK)
        x, y, z = (int(n) + 1 for n in intervals)  # Python's integers: a fine grid has more nodes than int64 counts
        origin = (extent - intervals * spacing) / 2
        edge = nearest_whole(spacing) if support is None else np.full(3, float(support))
        grid = cls(geometry.shape, (x, y, z), origin, spacing, (1, 1, 1))
        return grid.with_support(tuple(int(e) for e in edge))

    def with_support(self, edge: tuple[int, ...]) -> ControlGrid:
        """Return the same grid with another support, cut to the size of the image."""
        x, y, z = (max(1, min(int(e), n)) for e, n in zip(edge, self.image_shape, strict=True))
        return ControlGrid(self.image_shape, self.nodes, self.origin, self.spacing, (x, y, z))

    @classmethod
    def every(cls, image_shape: tuple[int, int, int], spacing_voxels: float) -> ControlGrid:
        """Return a centred grid with the same spacing in voxels along each axis; its supports are single voxels."""
        extent = np.array(image_shape) - 1.0
        x, y, z = (int(n) for n in np.ceil(extent / spacing_voxels - SLACK) + 1)
        spacing = np.full(3, float(spacing_voxels))
        origin = (extent - (np.array([x, y, z]) - 1) * spacing) / 2
        return cls(image_shape, (x, y, z), origin, spacing, (1, 1, 1))

    @property
    def n_nodes(self) -> int:
        """Number of control points."""
        return prod(self.nodes)

    @cached_property
    def starts(self) -> tuple[IntArray, IntArray, IntArray]:
        """First voxel of the supports along each axis; the support of a node is the product of three intervals."""
        x, y, z = (
            np.clip(
                nearest_whole(self.origin[axis] + np.arange(self.nodes[axis]) * self.spacing[axis] - (size - 1) / 2),
                0,
                self.image_shape[axis] - size,
            ).astype(np.int32)
            for axis, size in enumerate(self.support)
        )
        return x, y, z

    def pool(self, values: Float32Array) -> Float32Array:
        """Mean over the support of each node: (..., X, Y, Z) to (..., N)."""
        out = values.astype(np.float64)
        for axis, (start, size) in enumerate(zip(self.starts, self.support, strict=True)):
            windows = np.lib.stride_tricks.sliding_window_view(out, size, axis=axis - 3)
            out = windows.mean(axis=-1).take(start, axis=axis - 3)
        return out.reshape(*values.shape[:-3], -1).astype(np.float32)

    def shares(self, numbers: IntArray, n: int) -> Float32Array:
        """Count numbers from 0 to n - 1 in the support of each node: (X, Y, Z) to shares (N, n)."""
        return _core.support_shares(np.ascontiguousarray(numbers, dtype=np.int32), *self.support_arguments, n)

    def patches(self, values: Float32Array) -> Float32Array:
        """Voxels in the support of each node: (X, Y, Z) to (N, *support)."""
        windows = np.lib.stride_tricks.sliding_window_view(values, self.support)
        return np.asarray(windows[np.ix_(*self.starts)].reshape(self.n_nodes, *self.support))

    @property
    def support_arguments(self) -> tuple[IntArray, IntArray, IntArray, tuple[int, int, int]]:
        """The supports as the compiled kernels take them."""
        return (*self.starts, self.support)


@dataclass(frozen=True)
class LabelSet:
    """All combinations of three lists of displacements, in voxels; label (a, b, c) in C order."""

    offsets: tuple[Float64Array, Float64Array, Float64Array]

    @classmethod
    def cube(cls, per_axis: int, step: Float64Array) -> LabelSet:
        """Displacements {−k … k} · step along each axis, ``per_axis`` = 2k + 1 of them."""
        multiples = np.arange(per_axis, dtype=np.float64) - (per_axis - 1) / 2
        x, y, z = (multiples * s for s in step)
        return cls((x, y, z))

    @property
    def n_labels(self) -> int:
        """Number of labels L."""
        return prod(len(o) for o in self.offsets)

    @property
    def vectors(self) -> Float64Array:
        """Displacement of each label, shape (L, 3)."""
        return np.stack(np.meshgrid(*self.offsets, indexing="ij"), axis=-1).reshape(-1, 3)

    def in_units_of(self, spacing: Float64Array) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Offsets divided by the control spacing along each axis."""
        x, y, z = (o / s for o, s in zip(self.offsets, spacing, strict=True))
        return x, y, z


def shift(features: Float32Array, displacement: Float64Array) -> Float32Array:
    """Move an image (..., X, Y, Z) so that voxel v shows the value at v + displacement.

    Linear interpolation, one axis after the other; edge voxels repeat outside.
    """
    out = features
    for axis, d in enumerate(displacement):
        whole = int(np.floor(d))
        fraction = np.float32(d - whole)
        n = features.shape[axis - 3]
        index = np.arange(n) + whole
        a = out.take(index.clip(0, n - 1), axis=axis - 3)
        b = out.take((index + 1).clip(0, n - 1), axis=axis - 3)
        out = a + fraction * (b - a)
    return np.ascontiguousarray(out, dtype=np.float32)


FOREGROUND_SHARE = 0.05
"""A support with at least this share of foreground belongs to its largest structure under ``foreground``."""


def one_hot(labels: LabelArray, classes: tuple[int, ...]) -> Float32Array:
    """Masks of the classes, (C, X, Y, Z); labels without a column count as the first class, the background."""
    masks = np.stack([labels == c for c in classes]).astype(np.float32)
    masks[0] = 1 - masks[1:].sum(axis=0)
    return masks


def numbers_of(labels: LabelArray, classes: tuple[int, ...]) -> IntArray:
    """Return the place of each label among the classes, 0, the background's, for labels without one."""
    order = np.argsort(classes)
    known = np.array(classes)[order]
    place = np.searchsorted(known, labels).clip(max=len(known) - 1)
    return np.where(known[place] == labels, order[place], 0).astype(np.int32)


def count(shares: Float32Array) -> Float32Array:
    """Give the node to the class with the most voxels, the paper's rule: (..., C) to (..., C)."""
    return _winner(shares)


def foreground(shares: Float32Array) -> Float32Array:
    """Give the node to its largest structure where 5 % of the support is foreground, else to the background."""
    weighted = shares.copy()
    weighted[..., 0] = np.where(shares[..., 1:].sum(axis=-1) >= FOREGROUND_SHARE, -1.0, 2.0)
    return _winner(weighted)


def share(shares: Float32Array) -> Float32Array:
    """Let each class vote with its share of the voxels."""
    total = shares.sum(axis=-1, keepdims=True)
    return np.asarray(shares / np.maximum(total, np.float32(1e-6)), dtype=np.float32)


def _winner(score: Float32Array) -> Float32Array:
    out = np.zeros_like(score)
    np.put_along_axis(out, score.argmax(axis=-1)[..., None], np.float32(1), axis=-1)
    return out


RULES: dict[str, Callable[[Float32Array], Float32Array]] = {"count": count, "foreground": foreground, "share": share}
