"""Vectors of a field as ITK lists them, rounded to few significant bits, which deflate well, within a bound."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.kernels import fields
from regweave.types import Field, Float32Array, Float64Array

FINE_MM, COARSE_MM = 0.0005, 0.0099
"""Largest change of a vector in a field of up to `LARGE` voxels, and in a larger one."""
SMALL, LARGE = 500_000, 3_000_000
"""A field of up to `SMALL` voxels is kept as it is."""
FINE_PER_VOXEL, COARSE_PER_VOXEL = 1 / 1024, 1 / 32
"""The same bounds in units of the smallest spacing, for images of small things."""
SLAB_VOXELS = 2**22
"""Voxels that are listed at a time: beside a large field there is no room for its list."""


@dataclass(frozen=True)
class FieldList:
    """Numbers of a displacement field in ITK's order, x fastest and components together, made when they are asked for.

    Parameters
    ----------
    field : Field
    exact : bool
        Leave the numbers as they are; else they are multiples of a power of two of a millimetre, no vector farther than
        `bound_mm` from where it was.
    """

    field: Field
    exact: bool = False
    dtype = np.dtype(np.float32)

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return 3 * math.prod(self.field.geometry.shape)

    @cached_property
    def _data(self) -> Float32Array:
        return np.ascontiguousarray(self.field.data, dtype=np.float32)

    def pieces(self) -> Iterator[Float32Array]:
        """Give the list, some planes at a time."""
        bound = 0.0 if self.exact else bound_mm(self.field)
        step = 2.0 ** math.floor(math.log2(2 * bound)) if bound > 0 else 0.0
        x, y, z = self.field.geometry.shape
        planes = max(1, SLAB_VOXELS // (x * y))
        for first in range(0, z, planes):
            yield fields.list_vectors(self._data, first, min(planes, z - first), step, bound).ravel()


@dataclass(frozen=True)
class FieldPart:
    """A displacement field among the transforms of a file that is written, where others are a `Part`."""

    type_name: str
    parameters: FieldList
    fixed: Float64Array


def pieces_of(numbers: NDArray[Any] | FieldList) -> Iterator[NDArray[Any]]:
    """Give a list of numbers in pieces, one for an array."""
    yield from numbers.pieces() if isinstance(numbers, FieldList) else [numbers]


def bound_mm(field: Field) -> float:
    """Return the largest change that rounding may make to a vector of this field."""
    spacing = float(field.geometry.spacing_mm.min())
    voxels = math.prod(field.geometry.shape)
    if voxels <= SMALL:
        return 0.0
    if voxels > LARGE:
        return min(COARSE_MM, spacing * COARSE_PER_VOXEL)
    return min(FINE_MM, spacing * FINE_PER_VOXEL)
