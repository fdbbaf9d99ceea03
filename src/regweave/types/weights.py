"""Weight tables: members of the bank by anatomical class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regweave.types.arrays import Float64Array


@dataclass(frozen=True)
class Weights:
    """The matrix W of eq. (1): how much each class trusts each member of the bank.

    Parameters
    ----------
    matrix : float array of shape (M, C)
        Row m belongs to ``members[m]``, column c to ``classes[c]``.
    members : tuple of str
        Names of the bank's members.
    classes : tuple of ints
        Label values; 0, the background, is always there and also serves labels that have no column.
    pairwise : float
        Weight w_p of the smoothness term, eq. (4).
    """

    matrix: Float64Array
    members: tuple[str, ...]
    classes: tuple[int, ...]
    pairwise: float

    @classmethod
    def uniform(cls, members: tuple[str, ...], pairwise: float, classes: tuple[int, ...] = (0,)) -> Weights:
        """Give each member the same weight, one in all, in every class."""
        matrix = np.full((len(members), len(classes)), 1.0 / len(members))
        return cls(matrix, members, classes, pairwise)

    def of(self, members: tuple[str, ...]) -> Weights:
        """Return the rows of some members, scaled so that in each class they carry the weight of all."""
        rows = self.matrix[[self.members.index(m) for m in members]]
        total, kept = self.matrix.sum(axis=0), rows.sum(axis=0)
        scale = np.divide(total, kept, out=np.zeros_like(total), where=kept != 0)
        return Weights(rows * scale, members, self.classes, self.pairwise)
