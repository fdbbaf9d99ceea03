"""Terms, weights, pairwise energies on a grid of nodes, and their minimisers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from regweave.types.images import Float32Array, Float64Array, Geometry, IntArray


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

    def pairwise(self, labels: IntArray) -> float:
        """Sum over edges of the L1 distance of the positions of two nodes, without the weight."""
        position = np.stack(np.meshgrid(*self.offsets, indexing="ij"), axis=-1).reshape(-1, 3)[labels]
        if self.base is not None:
            position = position + self.base
        grid = position.reshape(*self.shape, 3)
        return float(sum(np.abs(np.diff(grid, axis=axis)).sum() for axis in range(3)))

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


@dataclass(frozen=True)
class WeightTable:
    """The matrix W of eq. (1): the weight of each member of the bank in each class.

    Only the ratio of a column to the pairwise weight matters, so every operation states which sums it keeps.
    """

    matrix: Float64Array  # row m belongs to `members[m]`, column c to `classes[c]`, (M, C)
    members: tuple[str, ...]  # names of the bank's members
    classes: tuple[int, ...]
    """Label values; 0, the background, is always there and also serves labels that have no column."""
    pairwise: float  # weight w_p of the smoothness term, eq. (4).
    stiffness: Float64Array | None = None
    """Factor of the refinement's smoothness in each class; None means 1 in all, (C,)."""

    def __post_init__(self) -> None:
        """Drop a stiffness of 1 in all classes, so that equal tables compare equal."""
        if self.stiffness is not None and (self.stiffness == 1).all():
            object.__setattr__(self, "stiffness", None)

    @classmethod
    def constant(cls, weights: Mapping[str, float], pairwise: float, classes: tuple[int, ...] = (0,)) -> WeightTable:
        """Return the same column for every class, in proportion to weights of members, adding up to one.

        Examples
        --------
        >>> WeightTable.constant({"sad": 1, "ncc": 3}, 0.1, (0, 7)).matrix
        array([[0.25, 0.25],
               [0.75, 0.75]])
        """
        given = np.array(list(weights.values()), dtype=np.float64)
        matrix = np.repeat((given / given.sum())[:, None], len(classes), axis=1)
        return cls(matrix, tuple(weights), classes, pairwise)

    @classmethod
    def from_vector(cls, w: Float64Array, members: tuple[str, ...], classes: tuple[int, ...]) -> WeightTable:
        """Return the table of a vector (M·C + 1,), as `as_vector` gives it.

        Examples
        --------
        >>> WeightTable.from_vector(np.array([1.0, 2.0, 3.0, 4.0, 0.5]), ("sad", "ncc"), (0, 7)).matrix
        array([[1., 2.],
               [3., 4.]])
        """
        return cls(w[:-1].reshape(len(members), len(classes)), members, classes, float(w[-1]))

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> WeightTable:
        """Inverse of `to_json`."""
        matrix = np.array(content["matrix"], dtype=np.float64)
        stiffness = np.array(content["stiffness"], dtype=np.float64) if "stiffness" in content else None
        return cls(matrix, tuple(content["members"]), tuple(content["classes"]), float(content["pairwise"]), stiffness)

    def to_json(self) -> dict[str, Any]:
        """Return the table as plain values."""
        return {
            "members": list(self.members),
            "classes": list(self.classes),
            "matrix": self.matrix.tolist(),
            "pairwise": self.pairwise,
            **({} if self.stiffness is None else {"stiffness": self.stiffness.tolist()}),
        }

    def as_vector(self) -> Float64Array:
        """Return w = (W row by row, w_p), (M·C + 1,)."""
        return np.append(np.asarray(self.matrix, dtype=np.float64).ravel(), self.pairwise)

    def rows(self, members: Sequence[str]) -> list[int]:
        """Row numbers of members."""
        return [self.members.index(m) for m in members]

    def select(self, members: tuple[str, ...]) -> WeightTable:
        """Return the rows of some members, scaled to the column sums of all."""
        rows = self.matrix[self.rows(members)]
        return replace(self, matrix=_summing_to(rows, self.matrix.sum(axis=0)), members=members)

    def scale(self, factors: Float64Array) -> WeightTable:
        """Multiply by factors (M, C) or (M, 1), then bring columns back to their sums."""
        return replace(self, matrix=_summing_to(self.matrix * factors, self.matrix.sum(axis=0)))

    def share_out(self, shares: Mapping[str, float]) -> WeightTable:
        """Divide the sum of some rows among them in proportion to shares, the same in every class."""
        matrix, index = self.matrix.copy(), self.rows(list(shares))
        parts = np.array(list(shares.values())) / sum(shares.values())
        matrix[index] = parts[:, None] * self.matrix[index].sum(axis=0)
        return replace(self, matrix=matrix)

    def without(self, members: Sequence[str], heirs: Sequence[str]) -> WeightTable:
        """Give the weight of members to others; the table itself where some class leaves these nothing to scale."""
        matrix, index = self.matrix.copy(), self.rows(heirs)
        matrix[self.rows(members)] = 0
        total, rest = self.matrix[index].sum(axis=0), matrix[index].sum(axis=0)
        if not rest.all():
            return self
        matrix[index] *= total / rest
        return replace(self, matrix=matrix)

    def lacking(self, member: str) -> WeightTable:
        """Return the table without a row, if it has it; the others stay as they are."""
        kept = tuple(m for m in self.members if m != member)
        return replace(self, matrix=self.matrix[self.rows(kept)], members=kept)

    def embed(self, part: WeightTable) -> WeightTable:
        """Put the rows of some members into the table; the absolute sums of these rows stay.

        Examples
        --------
        >>> whole = WeightTable.constant(dict.fromkeys(("sad", "ncc", "mind", "fine"), 1), 0.1)
        >>> whole.embed(WeightTable(np.array([[0.75], [0.25]]), ("sad", "ncc"), (0,), 0.1)).matrix.ravel()
        array([0.375, 0.125, 0.25 , 0.25 ])
        """
        matrix, index = self.matrix.copy(), self.rows(part.members)
        matrix[index] = _sized_as(part.matrix, matrix[index])
        return replace(self, matrix=matrix)

    def balance(self, learned: WeightTable) -> WeightTable:
        """Return the directions of learned columns with the sizes and the pairwise weight of this table.

        The learned pairwise weight is the noisiest number of all: a patch loss has no reason to keep fields smooth. A
        column whose sum is not above zero rewards mismatch, and is replaced by that of this table.
        """
        return replace(self, matrix=_sized_as(learned.matrix, self.matrix))

    def blend(self, learned: WeightTable, share: float, classes: Collection[int]) -> WeightTable:
        """Go a share of the way to learned columns, in some classes only."""
        matrix = self.matrix.copy()
        for k, c in enumerate(self.classes):
            if c in classes:
                matrix[:, k] += share * (learned.matrix[:, k] - self.matrix[:, k])
        return replace(self, matrix=matrix)

    def background(self) -> WeightTable:
        """Return the first column alone."""
        stiffness = None if self.stiffness is None else self.stiffness[:1].copy()
        return WeightTable(self.matrix[:, :1].copy(), self.members, (0,), self.pairwise, stiffness)

    def repeat(self, classes: tuple[int, ...]) -> WeightTable:
        """Return a table of one column with that column for several classes."""
        stiffness = None if self.stiffness is None else np.repeat(self.stiffness, len(classes))
        return replace(self, matrix=np.repeat(self.matrix, len(classes), axis=1), classes=classes, stiffness=stiffness)


def _summing_to(columns: Float64Array, total: Float64Array) -> Float64Array:
    """Columns scaled to given sums; a column that sums to zero becomes zero."""
    kept = columns.sum(axis=0)
    return np.asarray(columns * np.divide(total, kept, out=np.zeros_like(total), where=kept != 0))


def _sized_as(columns: Float64Array, like: Float64Array) -> Float64Array:
    """Columns with the absolute sums of others: the plain sum of a signed column may be near zero."""
    size, wanted = np.abs(columns).sum(axis=0), np.abs(like).sum(axis=0)
    usable = columns.sum(axis=0) > 0
    scale = np.divide(wanted, size, out=np.zeros_like(size), where=usable)
    return np.asarray(np.where(usable, columns * scale, like))
