"""Joint feature map Ψ, eq. (6): the energy of a labelling is linear in the weights."""

from dataclasses import dataclass

import numpy as np

from regweave.types import Energy, Float64Array, IntArray, Terms, WeightTable


@dataclass(frozen=True)
class JointFeatures:
    """Ψ(x, D) for all classes at once.

    ``unary`` (M, C) sums the cost of each member over the nodes of each class; ``pairwise`` is the sum over edges.
    The sum of ``unary`` over classes, with ``pairwise`` appended, is the paper's Ψ for one class.
    """

    unary: Float64Array
    pairwise: float

    def dot(self, weights: WeightTable) -> float:
        """w·Ψ: the energy of the labelling, up to the tie-break."""
        return float((self.unary * weights.matrix).sum() + weights.pairwise * self.pairwise)


def joint_features(terms: Terms, labels: IntArray) -> JointFeatures:
    """Ψ of a labelling (N,)."""
    n = np.arange(len(labels))
    chosen = terms.costs[:, n, labels].astype(np.float64)
    shares = terms.shares if terms.shares.ndim == 2 else terms.shares[n, labels]
    # einsum, not BLAS: the order of the sums must not depend on the number of threads.
    unary = np.einsum("mn,nc->mc", chosen, shares.astype(np.float64))
    # The pairwise sum asks only for nodes, offsets and base; no unary is assembled for it.
    grid = Energy(np.empty((0, 0)), terms.shape, terms.offsets, 1.0, terms.base)
    return JointFeatures(unary, grid.pairwise(labels))


def loss_of(terms: Terms, labels: IntArray) -> float:
    """Δ of a labelling: the sum of its node losses."""
    if terms.loss is None:
        raise ValueError("these terms hold no loss; give both label maps")
    return float(terms.loss[np.arange(len(labels)), labels].sum(dtype=np.float64))
