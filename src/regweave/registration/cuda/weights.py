"""Class-dependent weights of the refinement, laid over the voxels of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from regweave.config.member import Member
from regweave.registration.class_weights import ClassWeights, stretch
from regweave.spatial.node_classes import numbers_of
from regweave.spatial.warp import encode, voxel_matrix
from regweave.types import Float32Array, Float64Array, WeightTable

NOWHERE = np.zeros((3, 0, 0, 0), dtype=np.float32)
"""In place of a displacement, for weights that do not depend on it."""


@dataclass(frozen=True)
class LaidWeights:
    """Columns of W laid over the voxels of a scene; see `regweave.registration.class_weights.ClassWeights`."""

    device: Any
    scene: Any
    u: Any
    table: WeightTable
    reach: float

    @cached_property
    def numbers(self) -> Any:
        """Column of each voxel, (X, Y, Z)."""
        pair, upload = self.scene.host.pair, self.device.upload
        codes, table = encode(pair.moving_labels.data)
        known = np.array(self.table.classes if table is None else np.arange(len(table)), dtype=np.int64)
        number = numbers_of(known if table is None else table, self.table.classes)
        fits = np.abs(known) < 2**31
        matrix = voxel_matrix(self.scene.geometry, pair.moving_labels.geometry, pair.initial)
        fill = int(numbers_of(np.zeros(1, dtype=np.int64), self.table.classes)[0])
        columns = (upload(known[fits].astype(np.int32)), upload(number[fits]))
        found = self.device.kernels.warp_numbers(upload(codes), matrix, self.u, *columns, fill)
        return found if self.reach == 0 else self.device.kernels.spread(found, self.reach, stretch(self.scene.geometry))

    def of_voxels(self, member: Member, valid: Any, scale: float) -> Any:
        """Weight of a member that compares images at each voxel, times those of the scene and a scale."""
        values = self._row(member)
        if self._one_value(values):
            return self.constant(values[0], valid, scale)
        return self.device.kernels.lay(self.numbers, self.device.upload(values), valid, scale)

    def constant(self, value: np.float32, valid: Any, scale: float) -> Any:
        """One weight for all voxels, times those of the scene and a scale."""
        return self.device.kernels.lay(None, self.device.upload(np.array([value], dtype=np.float32)), valid, scale)

    def of_structures(self, member: Member) -> Float32Array:
        """Weight of the map of each structure, (K,), for a member that compares structure maps."""
        return ClassWeights(self.scene.host, NOWHERE, self.table, self.reach).of_structures(member)

    def of_channels(self, member: Member, weights: Float32Array) -> list[Float32Array]:
        """Turn weights of structures (K,) into factors of each channel, (1, 1, 1), or of its voxels, (X, Y, Z)."""
        found = self.scene.maps(member.source, self.u).weigh(weights)
        return [np.ascontiguousarray(f) for f in found]

    def stiffness(self) -> Any:
        """Factor of the smoothness at each voxel, (X, Y, Z); None where it is 1 everywhere."""
        if self.table.stiffness is None:
            return None
        values = self.table.stiffness.astype(np.float32)
        if self._one_value(values):
            return self.device.upload(np.full(self.scene.geometry.shape, values[0], dtype=np.float32))
        return self.device.kernels.look_up(self.numbers, self.device.upload(values))

    def _row(self, member: Member) -> Float32Array:
        matrix: Float64Array = self.table.matrix
        return np.ascontiguousarray(matrix[self.table.members.index(member.name)], dtype=np.float32)

    def _one_value(self, values: Float32Array) -> bool:
        return self.scene.host.pair.moving_labels is None or bool((values == values[0]).all())
