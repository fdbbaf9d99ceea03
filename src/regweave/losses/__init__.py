"""Losses on masks, one file each: the same shape as a metric, so that a loss is one more cost volume.

``volume(fixed, moved, grid, offsets, options)`` takes the masks of the structures, (C, X, Y, Z), and returns the loss
of each node for each label, (N, L), in [0, 1] and additive over nodes; ``cost(fixed, moved, grid, options)`` is its
readable definition.
"""

from regweave.metrics import Cost, Offsets
from regweave.registry import Options, Registry

__all__ = ["Offsets", "Options", "add", "available", "get", "registry"]

registry = Registry[Cost]("losses", "loss", "E182", ("Options", "cost", "volume"))
available, add, get = registry.available, registry.add, registry.get
