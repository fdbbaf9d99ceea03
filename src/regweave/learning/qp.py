"""Quadratic programme of eq. (10) on finite working sets, solved exactly.

The slacks have no curvature, so the solver adds proximal terms to them; what it returns is then judged here, by the
optimality conditions of the programme itself.
"""

from dataclasses import dataclass

import numpy as np

from regweave import extras
from regweave.types import Float64Array, IntArray

TOLERANCE = 1e-8  # largest relative violation of the optimality conditions that a solution may have
SATISFIED = 1e-11  # violation at which no other settings of the solver are tried
UNBOUNDED = 1e30
ATTEMPTS: tuple[dict[str, float], ...] = (
    {"eta_prox": 1e-12},
    {"eps_prox": 1e-3, "eta_prox": 1e-12},
    {"eps_prox": 1e-2, "eta_prox": 1e-12},
    {"eps_prox": 1e-1, "eta_prox": 1e-10},
)
"""Strength of the solver's proximal term and the step at which its outer loop stops. On 1500 random programmes one
of the four met 1e-12 always, the first nearly always; the solver's own stop misses `TOLERANCE` in one of five."""


@dataclass(frozen=True)
class Cuts:
    """Constraints a·w + b ≤ ξ_i, one in each row: i (K,), a (K, d), b (K,)."""

    sample: IntArray
    a: Float64Array
    b: Float64Array

    def heights(self, w: Float64Array) -> Float64Array:
        """a·w + b, (K,): by plain sums, so that the bits of a row do not depend on the other rows."""
        return np.asarray((self.a * w).sum(axis=1) + self.b)

    def slacks(self, w: Float64Array, n_samples: int) -> Float64Array:
        """Smallest feasible slacks, (N,)."""
        out = np.zeros(n_samples)
        np.maximum.at(out, self.sample, self.heights(w))
        return out


@dataclass(frozen=True)
class Regulariser:
    """½‖w‖² + α‖w − w₀‖² on w ≥ lower, eq. (7)."""

    w0: Float64Array
    alpha: float
    lower: Float64Array

    def __call__(self, w: Float64Array) -> float:
        """Value at w."""
        return float(0.5 * (w * w).sum() + self.alpha * ((w - self.w0) ** 2).sum())

    def argmin(self, push: Float64Array) -> Float64Array:
        """Minimise the value plus push·w: each coordinate for itself."""
        return np.asarray(np.maximum((2 * self.alpha * self.w0 - push) / (1 + 2 * self.alpha), self.lower))


@dataclass(frozen=True)
class QPSolution:
    """The minimum, with its evidence."""

    w: Float64Array
    slacks: Float64Array  # smallest feasible slacks of w, (N,)
    objective: float  # value at w and the slacks
    dual: float  # no feasible point has an objective below it
    residual: float  # largest relative violation of the optimality conditions, duality gap included
    multipliers: Float64Array  # one for each cut, 0 or more; positive where the cut holds w, (K,)


def solve(cuts: Cuts, n_samples: int, w0: Float64Array, C: float, alpha: float, lower: Float64Array) -> QPSolution:
    """Minimise ½‖w‖² + α‖w − w₀‖² + (C/N)·Σξ_i over w ≥ lower, ξ ≥ 0 with a·w + b ≤ ξ_i for each cut.

    ``n_samples`` is N; weights of ``lower`` are minus infinity where they are free. The order of samples and cuts does
    not change a bit of w. ArithmeticError is raised if the optimality conditions are not met to `TOLERANCE`.
    """
    regulariser, rows = Regulariser(w0, alpha, lower), _canonical_rows(cuts)
    # Samples are numbered by their first row.
    _, first, renumbered = np.unique(cuts.sample[rows], return_index=True, return_inverse=True)
    order = first.argsort().argsort()[renumbered]
    canonical = Cuts(order.astype(np.int32), cuts.a[rows], cuts.b[rows])
    found = []
    for settings in ATTEMPTS:
        w, multipliers = _run(canonical, regulariser, C / n_samples, settings)
        found.append(_judge(canonical, regulariser, C / n_samples, w, multipliers))
        if found[-1].residual <= SATISFIED:
            break
    best = min(found, key=lambda s: s.residual)
    if best.residual > TOLERANCE:
        raise ArithmeticError(f"quadratic programme solved to {best.residual:.1e}; {TOLERANCE:.0e} is needed")
    multipliers = np.zeros(len(cuts.b))
    multipliers[rows] = best.multipliers
    slacks = cuts.slacks(best.w, n_samples)
    return QPSolution(best.w, slacks, best.objective, best.dual, best.residual, multipliers)


def _canonical_rows(cuts: Cuts) -> IntArray:
    """Rows in an order that follows from their numbers alone, without repetitions, (K',).

    Rows of a sample are sorted by value, and samples by the bytes of their sorted rows: samples that tie are equal.
    """
    numbers = np.column_stack([cuts.b, cuts.a]) + 0.0  # + 0.0: no negative zeros, whose bytes differ
    groups = []
    for i in np.unique(cuts.sample):
        mine = np.flatnonzero(cuts.sample == i)
        values, first = np.unique(numbers[mine], axis=0, return_index=True)
        groups.append((values.tobytes(), mine[first]))
    groups.sort(key=lambda group: group[0])
    return np.concatenate([rows for _, rows in groups], dtype=np.int32) if groups else np.zeros(0, np.int32)


def _run(
    cuts: Cuts, regulariser: Regulariser, price: float, settings: dict[str, float]
) -> tuple[Float64Array, Float64Array]:
    """Weights (d,) and multipliers (K,) as the solver sees them; ``price`` is C/N."""
    k, d = cuts.a.shape
    if k == 0 or price == 0:
        return regulariser.argmin(np.zeros(d)), np.zeros(k)
    n = int(cuts.sample.max()) + 1
    H = np.zeros((d + n, d + n))
    H[range(d), range(d)] = 1 + 2 * regulariser.alpha
    f = np.append(-2 * regulariser.alpha * regulariser.w0, np.full(n, price))
    A = np.zeros((k, d + n))
    A[:, :d] = cuts.a
    A[np.arange(k), d + cuts.sample] = -1
    upper = np.append(np.full(d + n, UNBOUNDED), -cuts.b)
    lower = np.concatenate([np.maximum(regulariser.lower, -UNBOUNDED), np.zeros(n), np.full(k, -UNBOUNDED)])
    daqp = extras.load("daqp", "train", "learning")
    x, _, _, info = daqp.solve(H, f, A, upper, lower, np.zeros(len(upper), np.int32), primal_tol=1e-10, **settings)
    return np.maximum(x[:d], regulariser.lower), np.array(info["lam"][d + n :])


def _judge(
    cuts: Cuts, regulariser: Regulariser, price: float, w: Float64Array, multipliers: Float64Array
) -> QPSolution:
    """Measure how far weights and multipliers are from the optimality conditions."""
    n = int(cuts.sample.max()) + 1 if len(cuts.sample) else 0
    slacks, positive = cuts.slacks(w, n), np.maximum(multipliers, 0.0)
    spent = np.bincount(cuts.sample, positive, n)
    excess = max(float(-multipliers.min(initial=0.0)), float((spent - price).max(initial=0.0)))
    # A feasible dual point: each sample's multipliers sum to C/N at most.
    feasible = positive * (price / np.maximum(spent, price) if price > 0 else np.zeros(n))[cuts.sample]
    push = (feasible[:, None] * cuts.a).sum(axis=0)
    stationary = regulariser.argmin(push)
    dual = regulariser(stationary) + float((feasible * cuts.heights(stationary)).sum())
    objective = regulariser(w) + price * float(slacks.sum())
    size = max(1.0, float(np.abs(w).max()))
    violations = (
        excess / max(price, 1.0),
        float(np.abs(w - stationary).max()) / size,
        (objective - dual) / max(1.0, abs(objective)),
    )
    return QPSolution(w, slacks, objective, dual, max(violations), feasible)
