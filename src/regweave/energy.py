"""Energies of a Markov random field: cost volumes, the place where weights and loss meet them, and the feature map Ψ.

Prediction, latent imputation and the search for the most violated constraint are the same minimisation with other
unaries: `solve`. The loop over levels in `regweave.registration.align` calls it to predict, the learner in
`regweave.learning.samples.infer` for all three:

============================== ==================== ======================
problem                        minimise over D      loss_coefficient
============================== ==================== ======================
register, eq. (2)              w·Ψ(x, D)            0
impute, eq. (9)                w·Ψ(x, D) + η·Δ      +η
most violated, eq. (11)        w·Ψ(x, D) − Δ        −1
============================== ==================== ======================
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from regweave._core import weighted_unaries
from regweave.config.settings import Member
from regweave.spatial.control_grid import ControlGrid, LabelSet
from regweave.types import Energy, Float32Array, Float64Array, IntArray, Solution, Terms, WeightTable

QUIET_NODE = 0.05  # Nodes whose cost varies less than this share of the most varied one do not count in the scale
TIE_BREAK = 1e-4  # Cost of moving by one control spacing: flat patches tie between all labels and would drift otherwise


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
    """Scale of each member: the root mean square, over nodes that see something, of the spread over labels.

    Metrics come in their own units; every cost is divided by a scale of its member and level, so that weights compare.
    """
    spread = costs.std(axis=2, dtype=np.float64)
    seen = spread > QUIET_NODE * spread.max(axis=1, keepdims=True)
    squares = (spread**2 * seen).sum(axis=1) / np.maximum(seen.sum(axis=1), 1)
    return np.asarray(np.maximum(np.sqrt(squares), 1e-9))


def solve(
    terms: Terms, weights: WeightTable, minimise: Callable[[Energy], Solution], loss_coefficient: float = 0.0, *,
    tie_break: float = TIE_BREAK,
) -> Solution:  # fmt: skip
    """Minimise w·Ψ(x, D) + coefficient·Δ over labellings D by an engine: predict (0), impute (+η) or violate (−1)."""
    return minimise(assemble(terms, weights, loss_coefficient, tie_break=tie_break))


def assemble(
    terms: Terms, weights: WeightTable, loss_coefficient: float = 0.0, *, tie_break: float = TIE_BREAK
) -> Energy:
    """Fold weights and loss into the unaries of one energy, w·Ψ + coefficient·Δ.

    ``terms`` hold the loss where the coefficient is not zero. ``tie_break``, the cost of moving by one control spacing,
    is added; 0 makes the energy exact.
    """
    if loss_coefficient != 0 and terms.loss is None:
        raise ValueError(f"loss_coefficient is {loss_coefficient} but the terms hold no loss; give both label maps")
    x, y, z = (np.abs(o) for o in terms.offsets)
    length: Float64Array = (x[:, None, None] + y[:, None] + z).ravel()
    # eq. (1): w(c)·U, the class taken per node or per label; eqs. (9), (11): Δ is a sum over nodes, so one more unary
    unary = weighted_unaries(
        np.ascontiguousarray(terms.costs, dtype=np.float32),
        np.ascontiguousarray(terms.shares, dtype=np.float32).reshape(-1, terms.shares.shape[-1]),
        np.ascontiguousarray(weights.matrix, dtype=np.float64),
        tie_break * length,
        None if loss_coefficient == 0 else np.ascontiguousarray(terms.loss, dtype=np.float32),
        loss_coefficient,
    )
    return Energy(unary, terms.shape, terms.offsets, weights.pairwise, terms.base)


def joint_features(terms: Terms, labels: IntArray) -> Float64Array:
    """Ψ of a labelling (N,) for all classes at once, (M·C + 1,), in the order of `WeightTable.as_vector`.

    Its product with that is the energy, up to the tie-break. The cost of each member is summed over the nodes of each
    class; the sum over edges comes last. Summed over classes, this is the paper's Ψ for one class.
    """
    n = np.arange(len(labels))
    chosen = terms.costs[:, n, labels].astype(np.float64)
    shares = terms.shares if terms.shares.ndim == 2 else terms.shares[n, labels]
    # einsum, not BLAS: the order of the sums must not depend on the number of threads.
    unary = np.einsum("mn,nc->mc", chosen, shares.astype(np.float64))
    # The pairwise sum asks only for nodes, offsets and base; no unary is assembled for it.
    grid = Energy(np.empty((0, 0)), terms.shape, terms.offsets, 1.0, terms.base)
    return np.append(unary.ravel(), grid.pairwise(labels))


def loss_of(terms: Terms, labels: IntArray) -> float:
    """Δ of a labelling: the sum of its node losses."""
    if terms.loss is None:
        raise ValueError("these terms hold no loss; give both label maps")
    return float(terms.loss[np.arange(len(labels)), labels].sum(dtype=np.float64))
