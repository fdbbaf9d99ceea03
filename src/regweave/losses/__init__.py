"""Losses on masks, one file each: the same shape as a metric, so that a loss is one more cost volume.

``volume(fixed, moved, grid, offsets, options)`` takes the masks of the structures, (C, X, Y, Z), and returns the loss
of each node for each label, (N, L), in [0, 1] and additive over nodes; ``cost(fixed, moved, grid, options)`` is its
readable definition.
"""

from typing import Any, Protocol

from regweave.registry import Options, Registry
from regweave.spatial.control_grid import ControlGrid
from regweave.types import Float32Array, Float64Array

__all__ = ["Loss", "Offsets", "Options", "add", "available", "get", "registry"]

Offsets = tuple[Float64Array, Float64Array, Float64Array]


class Loss(Protocol):
    """Interface of a loss."""

    Options: type[Options]

    def cost(self, fixed: Float32Array, moved: Float32Array, grid: ControlGrid, options: Any) -> Float32Array:
        """Loss of each node, (N,)."""

    def volume(
        self, fixed: Float32Array, moved: Float32Array, grid: ControlGrid, offsets: Offsets, options: Any
    ) -> Float32Array:
        """Loss of each node for each label, (N, L)."""


registry = Registry[Loss]("losses", "loss", "E182", ("Options", "cost", "volume"))
available, add, get = registry.available, registry.add, registry.get
