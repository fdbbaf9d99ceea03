"""Cost volumes of a bank of metrics, on one scale.

Metrics come in their own units; every cost is divided by a scale of its member and level, so that weights compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from regweave import metrics
from regweave.spatial.control_grid import ControlGrid
from regweave.spatial.label_set import LabelSet
from regweave.types import Float32Array, Float64Array

QUIET_NODE = 0.05
"""Nodes whose cost varies less than this share of the most varied one say nothing about the scale."""


class Configured(Protocol):
    """Protocol of a configured metric: what this module needs to know of a member."""

    name: str
    metric: str
    support: int | None

    def metric_options(self) -> Any:
        """Options of the metric."""


@dataclass(frozen=True)
class Comparison:
    """Features of both images for one member, (C, X, Y, Z), on the fixed grid."""

    member: Configured
    fixed: Float32Array
    moved: Float32Array


def cost_volume(comparisons: Sequence[Comparison], grid: ControlGrid, labels: LabelSet) -> Float32Array:
    """Raw cost of each member at each node for each label, (M, N, L)."""
    out = np.empty((len(comparisons), grid.n_nodes, labels.n_labels), dtype=np.float32)
    for m, c in enumerate(comparisons):
        supported = grid if c.member.support is None else grid.with_support((c.member.support,) * 3)
        metric, options = metrics.get(c.member.metric), c.member.metric_options()
        out[m] = metric.volume(c.fixed, c.moved, supported, labels.offsets, options)
    return out


def fit_scales(costs: Float32Array) -> Float64Array:
    """Scale of each member: the root mean square, over nodes that see something, of the spread over labels."""
    spread = costs.std(axis=2, dtype=np.float64)
    seen = spread > QUIET_NODE * spread.max(axis=1, keepdims=True)
    squares = (spread**2 * seen).sum(axis=1) / np.maximum(seen.sum(axis=1), 1)
    return np.asarray(np.maximum(np.sqrt(squares), 1e-9))
