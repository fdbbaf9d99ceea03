"""Cost volumes of a bank of metrics, on one scale.

Metrics come in their own units; every cost is divided by a scale of its member and level, so that weights compare.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regweave.config.settings import Member
from regweave.spatial.control_grid import ControlGrid, LabelSet
from regweave.types import Float32Array, Float64Array

QUIET_NODE = 0.05  # Nodes whose cost varies less than this share of the most varied one do not count in the scale


@dataclass(frozen=True)
class Comparison:
    """Features of both images for one member, (C, X, Y, Z), on the fixed grid."""

    member: Member
    fixed: Float32Array
    moved: Float32Array


def cost_volume(comparisons: Sequence[Comparison], grid: ControlGrid, labels: LabelSet) -> Float32Array:
    """Raw cost of each member at each node for each label, (M, N, L)."""
    out = np.empty((len(comparisons), grid.n_nodes, labels.n_labels), dtype=np.float32)
    for m, c in enumerate(comparisons):
        supported = grid if c.member.support is None else grid.with_support((c.member.support,) * 3)
        out[m] = c.member.implementation.volume(c.fixed, c.moved, supported, labels.offsets, c.member.metric_options)
    return out


def fit_scales(costs: Float32Array) -> Float64Array:
    """Scale of each member: the root mean square, over nodes that see something, of the spread over labels."""
    spread = costs.std(axis=2, dtype=np.float64)
    seen = spread > QUIET_NODE * spread.max(axis=1, keepdims=True)
    squares = (spread**2 * seen).sum(axis=1) / np.maximum(seen.sum(axis=1), 1)
    return np.asarray(np.maximum(np.sqrt(squares), 1e-9))
