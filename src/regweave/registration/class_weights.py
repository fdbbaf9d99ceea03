"""Class-dependent weights of the refinement: data terms, structure maps, stiffness.

A column of W says how far a class trusts each member. A member that compares images has, at each voxel, the weight of
the class that the moving mask has there. A member that compares structure maps has one weight for the map of each
structure, wherever it differs: its force lives on both sides of the border, where the class at a voxel says little.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import ndimage

from regweave.config.member import Member
from regweave.registration.scene import Scene
from regweave.spatial.node_classes import numbers_of
from regweave.types import Float32Array, Float64Array, Geometry, IntArray, WeightTable


@dataclass(frozen=True)
class ClassWeights:
    """Columns of W laid over the voxels of a scene.

    Parameters
    ----------
    scene : Scene
        The pair at the resolution of the refinement.
    u : float32 array of shape (3, X, Y, Z)
        Displacement under which the moving labels are looked up.
    table : WeightTable
        Rows of the members of the refinement.
    reach : float
        Distance beyond a structure at which its column still acts, in voxels as `stretch` has them.
    """

    scene: Scene
    u: Float32Array
    table: WeightTable
    reach: float

    @cached_property
    def numbers(self) -> IntArray:
        """Column of each voxel, (X, Y, Z)."""
        found = numbers_of(self.scene.moved_labels(self.u), self.table.classes)
        return spread(found, self.reach, stretch(self.scene.geometry))

    def of_voxels(self, member: Member) -> Float32Array:
        """Weight of a member that compares images at each voxel, (X, Y, Z)."""
        return self._laid(self.table.matrix[self.table.members.index(member.name)])

    def of_structures(self, member: Member) -> Float32Array:
        """Weight of the map of each structure, (K,), for a member that compares structure maps."""
        maps, columns = self.scene.pair.fixed.maps, self.table.classes
        assert maps is not None
        row = _single(self.table.matrix[self.table.members.index(member.name)])
        return row[[columns.index(c) if c in columns else 0 for c in maps.classes]]

    def stiffness(self) -> Float32Array | None:
        """Factor of the smoothness at each voxel, (X, Y, Z); None where it is 1 everywhere."""
        return None if self.table.stiffness is None else self._laid(self.table.stiffness)

    def _laid(self, columns: Float64Array) -> Float32Array:
        """Value of the column of each voxel; that of the first where no labels choose, or all are the same."""
        values = _single(columns)
        if self.scene.pair.moving_labels is None or (values == values[0]).all():
            return np.full(self.scene.geometry.shape, values[0], dtype=np.float32)
        return values[self.numbers]


def spread(numbers: IntArray, reach: float, voxel: Float64Array) -> IntArray:
    """Give background within a reach of a structure the number of the nearest one.

    Parameters
    ----------
    numbers : int array of shape (X, Y, Z)
        0 for background.
    reach : float
        Largest distance, in the unit of ``voxel``.
    voxel : float array of shape (3,)
        Edges of a voxel.

    Examples
    --------
    >>> spread(np.array([[[0, 0, 0, 2, 0, 1, 0]]]), 1.0, np.ones(3)).ravel().tolist()
    [0, 0, 2, 2, 2, 1, 1]
    """
    if reach == 0 or not numbers.any():
        return numbers
    away, nearest = ndimage.distance_transform_edt(numbers == 0, sampling=voxel, return_indices=True)
    return np.where(away <= reach, numbers[tuple(nearest)], 0)


def stretch(geometry: Geometry) -> Float64Array:
    """Voxel size along each axis relative to its geometric mean."""
    return np.asarray(geometry.spacing_mm / np.exp(np.log(geometry.spacing_mm).mean()))


def _single(values: Float64Array) -> Float32Array:
    return values.astype(np.float32)
