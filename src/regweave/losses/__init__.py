"""Losses on masks, one file each: the same shape as a metric, so that a loss is one more cost volume.

``volume(fixed, moved, grid, offsets)`` takes the masks of the structures, (C, X, Y, Z), and returns the loss of each
node for each label, (N, L), in [0, 1] and additive over nodes; ``cost(fixed, moved, grid)`` is its readable definition.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Protocol, cast

from regweave.errors import UsageError
from regweave.spatial.control_grid import ControlGrid
from regweave.types import Float32Array, Float64Array

Offsets = tuple[Float64Array, Float64Array, Float64Array]


class Loss(Protocol):
    """What a file in this folder exposes."""

    def cost(self, fixed: Float32Array, moved: Float32Array, grid: ControlGrid) -> Float32Array:
        """Loss of each node, (N,)."""

    def volume(self, fixed: Float32Array, moved: Float32Array, grid: ControlGrid, offsets: Offsets) -> Float32Array:
        """Loss of each node for each label, (N, L)."""


@cache
def available() -> tuple[str, ...]:
    """Names of the losses: the files of this folder."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")))


def get(name: str) -> Loss:
    """Return the loss of that name."""
    if name not in available():
        raise UsageError("E182", f"unknown loss {name!r}", f"available: {', '.join(available())}")
    return cast("Loss", importlib.import_module(f"{__name__}.{name}"))
