"""Similarity metrics, one file each; the file name is the metric's name everywhere.

A metric is three pure functions and a model of its options:

``features(image, options)``
    What the metric compares, (C, X, Y, Z), from an image whose intensities were mapped to [0, 1].
``cost(fixed, moved, grid, options)``
    The readable definition: the cost of each node, (N,), ≥ 0 and 0 at a perfect match.
``volume(fixed, moved, grid, offsets, options)``
    The same for all labels in one compiled pass, (N, L); equal to ``cost`` of the shifted features.

A metric may also offer ``prepare(image)``, a map of intensities fixed once per volume (such as bin edges), and
a metric whose features may be compared voxel by voxel names in ``PENALTY`` how the continuous refinement does it.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from regweave.registry import Options, Registry
from regweave.spatial.control_grid import ControlGrid, LabelSet, shift
from regweave.types import Float32Array, Float64Array

__all__ = ["Cost", "Metric", "Offsets", "Options", "add", "available", "get", "registry"]

PENALTIES = ("absolute", "correlation", "tensor")  # What ``PENALTY`` may name
Offsets = tuple[Float64Array, Float64Array, Float64Array]


class Cost(Protocol):
    """Interface of a cost of nodes, such as a loss between label maps."""

    Options: type[Options]

    def cost(self, fixed: Float32Array, moved: Float32Array, grid: ControlGrid, options: Any) -> Float32Array:
        """Cost of each node, (N,)."""

    def volume(
        self, fixed: Float32Array, moved: Float32Array, grid: ControlGrid, offsets: Offsets, options: Any
    ) -> Float32Array:
        """Cost of each node for each label, (N, L)."""


class Metric(Cost, Protocol):
    """Interface of a similarity metric."""

    def features(self, image: Float32Array, options: Any) -> Float32Array:
        """Return what is compared, (C, X, Y, Z)."""


def _cost_function(cost: Callable[..., Float32Array]) -> Metric:
    """Make a metric of intensities from a bare ``cost(fixed, moved, grid)``, by a loop over the labels."""

    class CostFunction:
        """Metric of intensities from one function."""

        Options = Options

        def features(self, image: Float32Array, options: Any) -> Float32Array:
            return image[None]

        def cost(self, fixed: Float32Array, moved: Float32Array, grid: ControlGrid, options: Any) -> Float32Array:
            return np.asarray(cost(fixed, moved, grid), dtype=np.float32)

        def volume(
            self, fixed: Float32Array, moved: Float32Array, grid: ControlGrid, offsets: Offsets, options: Any
        ) -> Float32Array:
            shifted = (shift(moved, d) for d in LabelSet(offsets).vectors)
            return np.stack([self.cost(fixed, m, grid, options) for m in shifted], axis=1)

    return CostFunction()


registry = Registry[Metric](
    "metrics", "metric", "E181", ("Options", "features", "cost", "volume"), _cost_function, {"PENALTY": PENALTIES}
)
available, add, get = registry.available, registry.add, registry.get
