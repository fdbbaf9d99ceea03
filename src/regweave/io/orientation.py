"""Canonical axis order of a voxel grid: permutation and reflection to the axes nearest L, P and S.

The same physical image can be stored in 48 ways. Everything that depends on the order in which voxels are visited
(block averages, control grids, sweeps of an engine) works on the canonical one, so that all 48 give one answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.kernels import fields
from regweave.types import Float64Array, Geometry, LabelMap, Volume

TIE = 1e-6
"""Sums of cosines that differ by less are equal: single precision in a header explains it."""
DIGITS = 6
"""Digits that a canonical matrix keeps below the leading one of the spacing: storages differ in the last bits."""


@dataclass(frozen=True)
class Orientation:
    """Axis permutation and flips of a stored grid.

    Parameters
    ----------
    stored : Geometry
        The grid as the file has it.
    order : tuple of three ints
        Stored axis that lies along L, P and S.
    steps : tuple of three ints
        1, or -1 where that axis runs the other way; in the order of L, P, S.
    """

    stored: Geometry
    order: tuple[int, int, int]
    steps: tuple[int, int, int]

    @classmethod
    def of(cls, geometry: Geometry) -> Orientation:
        """Find the axes nearest L, P and S.

        Examples
        --------
        >>> Orientation.of(Geometry((4, 5, 6), np.diag([-1.0, -1.0, 1.0, 1.0]))).steps
        (-1, -1, 1)
        """
        order = nearest_axes(geometry.direction)
        x, y, z = (1 if geometry.direction[world, axis] >= 0 else -1 for world, axis in enumerate(order))
        return cls(geometry, order, (x, y, z))

    @cached_property
    def canonical(self) -> Geometry:
        """The same voxels with axes along L, P and S."""
        shape = [self.stored.shape[axis] for axis in self.order]
        place = np.zeros((4, 4))
        place[3, 3] = 1.0
        for new, (axis, step, n) in enumerate(zip(self.order, self.steps, shape, strict=True)):
            place[axis, new] = step
            place[axis, 3] = 0 if step > 0 else n - 1
        unit = 10.0 ** (np.floor(np.log10(self.stored.spacing_mm.min())) - DIGITS)
        affine = np.rint(self.stored.affine @ place / unit) * unit + 0.0
        affine[3] = (0.0, 0.0, 0.0, 1.0)
        return Geometry((shape[0], shape[1], shape[2]), np.asarray(affine, dtype=np.float64))

    def to_canonical(self, values: NDArray[Any]) -> NDArray[Any]:
        """Bring values (..., X, Y, Z) from the stored order to the canonical one."""
        return _arranged(values, self.order, self.steps)

    def to_stored(self, values: NDArray[Any]) -> NDArray[Any]:
        """Bring values (..., X, Y, Z) from the canonical order back to the stored one."""
        x, y, z = (int(axis) for axis in np.argsort(self.order))
        return _arranged(values, (x, y, z), (self.steps[x], self.steps[y], self.steps[z]))

    def volume(self, image: Volume) -> Volume:
        """Return an image of the stored grid in canonical order."""
        return Volume(self.to_canonical(image.data), self.canonical, image.modality)

    def labels(self, labels: LabelMap | None) -> LabelMap | None:
        """Return labels of the stored grid in canonical order."""
        return labels and LabelMap(self.to_canonical(labels.data), self.canonical, labels.names)


def _arranged(values: NDArray[Any], order: tuple[int, int, int], steps: tuple[int, int, int]) -> NDArray[Any]:
    """Values (..., X, Y, Z) whose axes run along others, backwards where the step is -1; float32 by a kernel."""
    still = order == (0, 1, 2) and steps == (1, 1, 1)
    if values.dtype == np.float32 and values.flags.c_contiguous and values.size and not still:
        solid = values.reshape(-1, *values.shape[-3:])
        found = fields.arrange(solid, order, steps)
        return found.reshape(*values.shape[:-3], *found.shape[1:])
    lead = values.ndim - 3
    turned = values.transpose(*range(lead), *(lead + axis for axis in order))
    return np.ascontiguousarray(np.flip(turned, tuple(lead + axis for axis, step in enumerate(steps) if step < 0)))


def nearest_axes(direction: Float64Array) -> tuple[int, int, int]:
    """Image axis for each of L, P and S: the assignment with the largest sum of absolute cosines.

    Between equals, as at a turn of 45°, the one whose matrix of axes comes last in lexicographic order is taken:
    that rule sees the lines in space, not the order in which a file lists them.

    Examples
    --------
    >>> nearest_axes(np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, -1.0, 0.0]]))
    (2, 0, 1)
    """
    best: tuple[float, list[float], tuple[int, int, int]] | None = None
    for order in permutations(range(3)):
        axes = direction[:, order]
        axes = axes * np.where(np.diagonal(axes) < 0, -1.0, 1.0)
        total, matrix = float(np.diagonal(axes).sum()), np.round(axes.ravel(), DIGITS).tolist()
        if best is None or total > best[0] + TIE or (total > best[0] - TIE and matrix > best[1]):
            best = (total, matrix, (order[0], order[1], order[2]))
    assert best is not None
    return best[2]
