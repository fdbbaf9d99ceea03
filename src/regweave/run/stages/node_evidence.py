"""Deciding metric and confidence of each node in the last discrete step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from regweave.config.settings import Settings
from regweave.registration.align import Step
from regweave.types import Float64Array, Geometry, NodeEvidence, Terms, WeightTable


class Witness:
    """Follows the steps of `align`, measures the last one, and passes each of them on.

    Parameters
    ----------
    weights : WeightTable
        Weights of the run, all members.
    schedule : Settings
        Settings of the levels: their members, and which step is the last.
    then : callable
        Called with every step.
    """

    def __init__(self, weights: WeightTable, schedule: Settings, then: Callable[[Step], None]) -> None:
        self._weights = weights
        self._members = tuple(member.name for member in schedule.bank)
        self._last = (len(schedule.levels) - 1, schedule.levels[-1].steps - 1) if schedule.levels else None
        self._then = then
        self.nodes: NodeEvidence | None = None

    def __call__(self, step: Step) -> None:
        """Take a step."""
        if (step.level, step.step) == self._last:
            self.nodes = node_maps(step, self._weights, self._members)
        self._then(step)


def node_maps(step: Step, weights: WeightTable, members: tuple[str, ...]) -> NodeEvidence:
    """Measure a step.

    Parameters
    ----------
    step : Step
        Step of the finest level, from ``on_step`` of `align`.
    weights : WeightTable
        Weights of the run, all members.
    members : tuple of str
        Those that the step used, in the order of its costs.
    """
    used = weights.select(members)
    costs = _weighted_costs(step.terms, used)
    nodes = step.grid.nodes
    unary = np.partition(costs.sum(axis=0), 1, axis=1) if costs.shape[2] > 1 else None
    confidence = np.zeros(costs.shape[1]) if unary is None else unary[:, 1] - unary[:, 0]
    return NodeEvidence(
        geometry=_node_geometry(step),
        members=members,
        influence=costs.std(axis=2).reshape(-1, *nodes).astype(np.float32),
        confidence=confidence.reshape(nodes).astype(np.float32),
    )


def _weighted_costs(terms: Terms, weights: WeightTable) -> Float64Array:
    """Share of each member in the unaries of eq. (1), (M, N, L)."""
    w = terms.shares.astype(np.float64) @ weights.matrix.T  # (N, M) or (N, L, M)
    per_label = w[:, None, :] if w.ndim == 2 else w
    return np.asarray(np.moveaxis(per_label, -1, 0) * terms.costs)


def _node_geometry(step: Step) -> Geometry:
    place = np.eye(4)
    place[:3, :3] = np.diag(step.grid.spacing)
    place[:3, 3] = step.grid.origin
    return Geometry(step.grid.nodes, step.geometry.affine @ place)
