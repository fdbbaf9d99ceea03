"""Displacement labels: the dense set around the current estimate that a node chooses from."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from regweave.types import Float32Array, Float64Array


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
    """Move an image (..., X, Y, Z) so that voxel v shows what lay at v + displacement.

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
