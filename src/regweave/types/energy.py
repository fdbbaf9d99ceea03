"""Pairwise energies on a grid of nodes, and their minimisers."""

from dataclasses import dataclass

import numpy as np

from regweave.types.geometry import Float32Array, Float64Array, Geometry, IntArray


@dataclass(frozen=True)
class Terms:
    """Terms of an energy, before weights and loss are applied."""

    costs: Float32Array  # Scaled cost of each member at each node for each label, eq. (1), (M, N, L).
    shares: Float32Array
    """How much of each class a node is, per node (anchored, (N, C)) or per label (displaced, (N, L, C))."""
    shape: tuple[int, int, int]  # Nodes along each axis; their product is N
    offsets: tuple[Float64Array, Float64Array, Float64Array]
    """Label displacements along each axis in units of the control spacing; their product set is the label set."""
    loss: Float32Array | None = None  # Loss of each node for each label, eq. (3), (N, L).
    base: Float64Array | None = None
    """Displacement that the nodes already have, same units; given when the pairwise term is elastic, (N, 3)."""


@dataclass(frozen=True)
class Energy:
    """A pairwise energy on a grid of nodes, eq. (2).

    ``E(x) = Σ_i unary[i, x_i] + weight · Σ_(i,j) Σ_axis |p_i(x_i) − p_j(x_j)|`` with
    ``p_i(l) = base[i] + (offsets[0][a], offsets[1][b], offsets[2][c])`` for label ``l = (a, b, c)`` in C order, and
    (i, j) the neighbours on the 6-connected grid.
    """

    unary: Float64Array  # Costs of any sign; nodes in C order of ``shape``, (N, L)
    shape: tuple[int, int, int]  # Nodes along each axis
    offsets: tuple[Float64Array, Float64Array, Float64Array]
    """Label displacements along each axis; L is the product of their lengths."""
    weight: float  # Non-negative weight of the pairwise term
    base: Float64Array | None = None
    """Positions the nodes start from, (N, 3); None means all zero: the pairwise term is then a metric on labels."""

    def positions(self, labels: IntArray) -> Float64Array:
        """Position of each node under a labelling, shape (*shape, 3)."""
        grid = np.stack(np.meshgrid(*self.offsets, indexing="ij"), axis=-1).reshape(-1, 3)
        p = grid[labels]
        if self.base is not None:
            p = p + self.base
        return np.asarray(p.reshape(*self.shape, 3))

    def pairwise(self, labels: IntArray) -> float:
        """Sum over edges of the L1 distance of the two positions, without the weight."""
        p = self.positions(labels)
        return float(sum(np.abs(np.diff(p, axis=axis)).sum() for axis in range(3)))

    def __call__(self, labels: IntArray) -> float:
        """Energy of a labelling (N,), in float64."""
        unary = self.unary[np.arange(len(labels)), labels].sum()
        return float(unary + self.weight * self.pairwise(labels))


@dataclass(frozen=True)
class Solution:
    """A labelling with its evidence.

    ``energy`` is recomputed from the labels by ``Energy.__call__``; no labelling has an energy below
    ``lower_bound`` (minus infinity where the engine gives none).
    """

    labels: IntArray
    energy: float
    lower_bound: float
    iterations: int

    @property
    def gap(self) -> float:
        """Relative distance to the bound, infinite without one: 0 certifies the optimum."""
        if not np.isfinite(self.lower_bound):
            return float("inf")
        return max(0.0, self.energy - self.lower_bound) / max(abs(self.energy), 1e-12)


@dataclass(frozen=True)
class NodeEvidence:
    """Influence of each metric and confidence at each control point."""

    geometry: Geometry  # The nodes as a grid of voxels: their number and place
    members: tuple[str, ...]  # Members of the bank that the discrete levels use
    influence: Float32Array
    """Spread (standard deviation over the labels) of each member's weighted, scaled cost, (M, *nodes): what is the
    same for all labels decides nothing, so it does not count.
    """
    confidence: Float32Array
    """Second smallest minus smallest of the node's unaries, in units of the energy: 0 means a tie."""
