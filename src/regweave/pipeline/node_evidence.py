"""Deciding metric and confidence of each node in the last discrete step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave.config.settings import Schedule
from regweave.registration.align import Step
from regweave.types import Float32Array, Float64Array, Geometry, Terms, WeightTable


@dataclass(frozen=True)
class NodeMaps:
    """Evidence on the control grid.

    Parameters
    ----------
    geometry : Geometry
        The nodes as a grid of voxels: their number, and where they lie.
    members : tuple of str
        Members of the bank that the discrete levels use.
    influence : float32 array of shape (M, *nodes)
        Spread (standard deviation over the labels) of each member's weighted, scaled cost. What is the same for all
        labels decides nothing, so it does not count.
    confidence : float32 array of shape nodes
        Second smallest minus smallest of the node's unaries, in units of the energy: 0 means a tie.
    """

    geometry: Geometry
    members: tuple[str, ...]
    influence: Float32Array
    confidence: Float32Array


class Witness:
    """Follows the steps of `align`, measures the last one, and passes each of them on.

    Parameters
    ----------
    weights : WeightTable
        Weights of the run, all members.
    schedule : Schedule
        What says which step is the last.
    then : callable
        Called with every step.
    """

    def __init__(self, weights: WeightTable, schedule: Schedule, then: Callable[[Step], None]) -> None:
        self._weights = weights
        self._members = tuple(member.name for member in schedule.discrete)
        self._last = (len(schedule.levels) - 1, schedule.levels[-1].steps - 1) if schedule.levels else None
        self._then = then
        self.nodes: NodeMaps | None = None

    def __call__(self, step: Step) -> None:
        """Take a step."""
        if (step.level, step.step) == self._last:
            self.nodes = node_maps(step, self._weights, self._members)
        self._then(step)


def node_maps(step: Step, weights: WeightTable, members: tuple[str, ...]) -> NodeMaps:
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
    return NodeMaps(
        geometry=_node_geometry(step),
        members=members,
        influence=costs.std(axis=2).reshape(-1, *nodes).astype(np.float32),
        confidence=confidence.reshape(nodes).astype(np.float32),
    )


def on_image(values: Float32Array, nodes: Geometry, image: Geometry) -> Float32Array:
    """Interpolate values at the nodes linearly on an image grid; beyond the nodes the nearest holds.

    Parameters
    ----------
    values : float array of shape ``nodes.shape``
        One number for each node.
    nodes, image : Geometry
        Grids of the nodes and of the result.

    Returns
    -------
    float32 array of shape ``image.shape``

    Examples
    --------
    >>> nodes = Geometry((2, 1, 1), np.diag([2.0, 1.0, 1.0, 1.0]))
    >>> on_image(np.float32([[[0.0]], [[4.0]]]), nodes, Geometry((3, 1, 1), np.eye(4))).ravel().tolist()
    [0.0, 2.0, 4.0]
    """
    step = np.asarray(np.linalg.solve(nodes.affine, image.affine), dtype=np.float64)
    out: Float32Array = ndimage.affine_transform(
        values.astype(np.float32), step[:3, :3], step[:3, 3], output_shape=image.shape, order=1, mode="nearest"
    )
    return out


def deciding_member(maps: NodeMaps, image: Geometry) -> tuple[NDArray[np.uint8], Float32Array]:
    """Return for each voxel the member with the largest influence and its share of the sum of all.

    Parameters
    ----------
    maps : NodeMaps
        Evidence on the control grid.
    image : Geometry
        Grid of the result.

    Returns
    -------
    tuple of a uint8 and a float32 array of shape ``image.shape``
        Number of the member, from 1, and 0 where no member tells the labels apart; its share, 0 to 1.
    """
    best = np.zeros(image.shape, dtype=np.float32)
    total = np.zeros(image.shape, dtype=np.float32)
    who = np.zeros(image.shape, dtype=np.uint8)
    for number, values in enumerate(maps.influence, start=1):
        here = on_image(values, maps.geometry, image)
        total += here
        who[here > best] = number
        np.maximum(best, here, out=best)
    return who, np.divide(best, total, out=np.zeros_like(best), where=total > 0)


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
