"""Similarity metrics, one file each; the file name is the metric's name everywhere.

A metric is three pure functions and a model of its options:

``features(image, options)``
    What the metric compares, (C, X, Y, Z), from an image whose intensities were mapped to [0, 1].
``cost(fixed, moved, grid, options)``
    The readable definition: the cost of each node, (N,), ≥ 0 and 0 at a perfect match.
``volume(fixed, moved, grid, offsets, options)``
    The same for all labels in one compiled pass, (N, L); equal to ``cost`` of the shifted features.

A metric may also offer ``prepare(image)``, a map of intensities fixed once per volume (bin edges, say), and
a metric whose features may be compared voxel by voxel names in ``PENALTY`` how the continuous refinement does it.
One with ``SEES = "anatomy"`` looks at the structures that a model makes out, (K, X, Y, Z), instead of the image.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Any, Protocol, cast

from pydantic import BaseModel, ConfigDict

from regweave.errors import UsageError
from regweave.spatial.control_grid import ControlGrid
from regweave.types import Float32Array, Float64Array

Offsets = tuple[Float64Array, Float64Array, Float64Array]


class Options(BaseModel):
    """Base of every metric's options: unknown keys and infinite numbers are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Metric(Protocol):
    """What a file in this folder exposes."""

    Options: type[Options]

    def features(self, image: Float32Array, options: Any) -> Float32Array:
        """Return what is compared, (C, X, Y, Z)."""

    def cost(self, fixed: Float32Array, moved: Float32Array, grid: ControlGrid, options: Any) -> Float32Array:
        """Cost of each node, (N,)."""

    def volume(
        self, fixed: Float32Array, moved: Float32Array, grid: ControlGrid, offsets: Offsets, options: Any
    ) -> Float32Array:
        """Cost of each node for each label, (N, L)."""


@cache
def available() -> tuple[str, ...]:
    """Names of the metrics: the files of this folder."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")))


def sees_anatomy(name: str) -> bool:
    """Tell whether a metric looks at the structures which a model makes out."""
    return getattr(get(name), "SEES", "image") == "anatomy"


def get(name: str) -> Metric:
    """Return the metric of that name."""
    if name not in available():
        raise UsageError("E181", f"unknown metric {name!r}", f"available: {', '.join(available())}")
    return cast("Metric", importlib.import_module(f"{__name__}.{name}"))
