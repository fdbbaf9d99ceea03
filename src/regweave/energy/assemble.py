"""Energy assembly and minimisation: weights and loss folded into unary costs.

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

from collections.abc import Callable

import numpy as np

from regweave._core import weighted_unaries
from regweave.types import Energy, Float64Array, Solution, Terms, WeightTable

TIE_BREAK = 1e-4  # Cost of moving by one control spacing: flat patches tie between all labels and would drift otherwise


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
    # eq. (1): w(c)·U, the class taken per node or per label; eqs. (9), (11): Δ is a sum over nodes, so one more unary
    unary = weighted_unaries(
        np.ascontiguousarray(terms.costs, dtype=np.float32),
        np.ascontiguousarray(terms.shares, dtype=np.float32).reshape(-1, terms.shares.shape[-1]),
        np.ascontiguousarray(weights.matrix, dtype=np.float64),
        tie_break * _length(terms),
        None if loss_coefficient == 0 else np.ascontiguousarray(terms.loss, dtype=np.float32),
        loss_coefficient,
    )
    return Energy(unary, terms.shape, terms.offsets, weights.pairwise, terms.base)


def _length(terms: Terms) -> Float64Array:
    x, y, z = (np.abs(o) for o in terms.offsets)
    return np.asarray((x[:, None, None] + y[:, None] + z).ravel(), dtype=np.float64)
