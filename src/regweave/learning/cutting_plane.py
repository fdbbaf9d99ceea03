"""Cutting-plane algorithm with n slacks for eq. (10), with certificates (Joachims, Finley and Yu 2009, Alg. 1).

Each labelling D of a sample gives a constraint with the value Δ(D) − w·Ψ(D). The value does not depend on the imputed
D̂, so all constraints that were ever found stay valid in all outer iterations. The quadratic programme on finite working
sets is solved exactly: its slacks have no curvature, so the solver adds proximal terms to them; what it returns is then
judged here, by the optimality conditions of the programme itself.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave import extras
from regweave.engines import Solver
from regweave.learning.samples import Labelling, Sample, Task, infer
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


Mapper = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
REACHABLE = 0.9  # share of ε: with a larger inference gap, more constraints cannot certify ε
ROUNDING = 1e-12
QUICK_ITERATIONS = 2
"""Engine iterations of a quick separation: any labelling is a valid constraint, only the end needs a proof."""


class Constraints:
    """Constraints of one sample: all that were found, and which of them are in the working set."""

    def __init__(self, n_features: int) -> None:
        self.psi: Float64Array = np.zeros((0, n_features))
        self.delta: Float64Array = np.zeros(0)
        self.working: NDArray[np.bool_] = np.zeros(0, dtype=bool)
        self.multipliers: Float64Array = np.zeros(0)

    def values(self, w: Float64Array) -> Float64Array:
        """Δ − w·Ψ of each constraint, (K,)."""
        return np.asarray(self.delta - (self.psi * w).sum(axis=1))

    def insert(self, found: Labelling) -> None:
        """Add a constraint, unless the same one is known."""
        if ((self.delta == found.delta) & (self.psi == found.psi).all(axis=1)).any():
            return
        self.psi = np.vstack([self.psi, found.psi])
        self.delta = np.append(self.delta, found.delta)
        self.working = np.append(self.working, False)
        self.multipliers = np.append(self.multipliers, 0.0)

    def restart(self, w: Float64Array) -> None:
        """Reduce the working set to the active constraints of the last solution, and the one of highest value at w."""
        self.working = self.multipliers > 0
        self.working[self.values(w).argmax()] = True


class Oracle:
    """Separation oracle: all inference of a fit, the constraints it has found, and their number.

    Arrays of the fit have the order of the samples. ``mapper`` is ``map`` or its like: independent tasks may run at the
    same time, and their results come in order.
    """

    def __init__(self, samples: Sequence[Sample], engine: str | Solver, mapper: Mapper = map) -> None:
        self.samples, self.engine, self._map = tuple(samples), engine, mapper
        m, c = self.samples[0].shape
        self.constraints = [Constraints(m * c + 1) for _ in self.samples]
        self.n_inferences = self.n_discarded = 0
        self._upper_bounds: dict[tuple[int, bytes], float] = {}

    def run(
        self, w: Float64Array, coefficient: float, which: Iterable[int] | None = None,
        init: Sequence[IntArray] | None = None, max_iter: int | None = None, *, proof: bool = True,
    ) -> list[Labelling]:  # fmt: skip
        """Minimise w·Ψ + coefficient·Δ on some samples, or on all; without ``proof`` bounds may be loose."""
        chosen = range(len(self.samples)) if which is None else which
        tasks = [
            Task(self.samples[i], w, coefficient, self.engine, None if init is None else init[i], max_iter, proof)
            for i in chosen
        ]
        self.n_inferences += len(tasks)
        return list(self._map(infer, tasks))

    def separate_quickly(self, w: Float64Array, which: Sequence[int]) -> None:
        """Search constraints of high value at w for some samples, eq. (11), in few iterations and without a proof."""
        for i, found in zip(which, self.run(w, -1.0, which, max_iter=QUICK_ITERATIONS, proof=False), strict=True):
            if -found.value > self.constraints[i].values(w).max(initial=-np.inf):
                self.constraints[i].insert(found)

    def separate(self, w: Float64Array, which: Iterable[int]) -> None:
        """Find the most violated constraint of some samples at w, eq. (11), and an upper bound of all values.

        A constraint of lower value than a known one shows that inference was not exact: it is counted, not added.
        """
        missing = [i for i in which if (i, w.tobytes()) not in self._upper_bounds]
        for i, found in zip(missing, self.run(w, -1.0, missing), strict=True):
            self._upper_bounds[i, w.tobytes()] = -found.lower_bound
            if -found.value < self.constraints[i].values(w).max(initial=-np.inf) - ROUNDING:
                self.n_discarded += 1
            else:
                self.constraints[i].insert(found)

    def upper_bounds(self, w: Float64Array) -> Float64Array:
        """Upper bounds of the values of all labellings at w, (N,); infinite where the engine proves nothing."""
        self.separate(w, range(len(self.samples)))
        bounds = np.array([self._upper_bounds[i, w.tobytes()] for i in range(len(self.samples))])
        return np.asarray(np.maximum(bounds, self.values(w)))

    def restart(self, w: Float64Array) -> None:
        """Begin new working sets at w."""
        self.separate(w, range(len(self.samples)))
        for known in self.constraints:
            known.restart(w)

    def gap(self, w: Float64Array, i: int) -> float:
        """Inference gap of a sample at w: from the highest known value to the upper bound."""
        return max(self._upper_bounds[i, w.tobytes()] - float(self.constraints[i].values(w).max()), 0.0)

    def values(self, w: Float64Array) -> Float64Array:
        """Highest known value of each sample at w, (N,)."""
        return np.array([known.values(w).max(initial=-np.inf) for known in self.constraints])


@dataclass(frozen=True)
class Convex:
    """Eq. (10) for fixed D̂: the regulariser, C, and Ψ(D̂), (N, d)."""

    regulariser: Regulariser
    C: float
    imputed: Float64Array

    def slacks(self, w: Float64Array, values: Float64Array) -> Float64Array:
        """w·Ψ(D̂) − w·Ψ(D) + Δ(D) for constraints of these values, (N,)."""
        return np.asarray((self.imputed * w).sum(axis=1) + values)

    def value(self, w: Float64Array, values: Float64Array) -> float:
        """Objective at w where the highest values of the samples are these, (N,)."""
        return self.regulariser(w) + self.C * float(np.maximum(self.slacks(w, values), 0.0).mean())


@dataclass(frozen=True)
class Round:
    """One round: objective of the programme, largest violation found at its solution, and the work so far."""

    objective: float
    violation: float
    n_inferences: int
    n_cuts: int


@dataclass(frozen=True)
class Minimum:
    """Result of the cutting-plane algorithm.

    ``objective`` is that of the programme on the working sets, a lower bound of eq. (10). No constraint of any
    sample is violated by more than ``epsilon`` at w and the slacks (infinite where the engine proves nothing);
    ``converged`` says that inference found none to add.
    """

    w: Float64Array
    slacks: Float64Array
    objective: float
    epsilon: float
    converged: bool
    rounds: tuple[Round, ...]


def minimise(oracle: Oracle, convex: Convex, epsilon: float, max_rounds: int) -> Minimum:
    """Minimise eq. (10) with constraints that are found when they are needed.

    Known constraints are evaluated before any inference; a sample is inferred only if none of them is violated by more
    than ε. The algorithm ends when violation plus inference gap is at most ε for every sample, when inference finds no
    further constraint, or after ``max_rounds`` programmes. The working sets of the oracle are the start, and grow.
    """
    rounds: list[Round] = []
    for _ in range(max_rounds):
        solution = _programme(oracle, convex)  # line 10
        n_cuts = sum(int(known.working.sum()) for known in oracle.constraints)
        added, violation = _extend(oracle, convex, solution, epsilon)  # lines 8, 9
        rounds.append(Round(solution.objective, violation, oracle.n_inferences, n_cuts))
        if added == 0:  # line 11
            break
    left = convex.slacks(solution.w, oracle.upper_bounds(solution.w)) - solution.slacks
    certified = max(float(left.max()), 0.0)
    return Minimum(solution.w, solution.slacks, solution.objective, certified, added == 0, tuple(rounds))


def _programme(oracle: Oracle, convex: Convex) -> QPSolution:
    """Solve eq. (10) on the working sets, and store the multipliers of the constraints."""
    constraints, r = oracle.constraints, convex.regulariser
    sample = np.repeat(np.arange(len(constraints), dtype=np.int32), [int(known.working.sum()) for known in constraints])
    psi = np.concatenate([known.psi[known.working] for known in constraints])
    delta = np.concatenate([known.delta[known.working] for known in constraints])
    cuts = Cuts(sample, convex.imputed[sample] - psi, delta)
    solution = solve(cuts, len(constraints), r.w0, convex.C, r.alpha, r.lower)
    for i, known in enumerate(constraints):
        known.multipliers[:] = 0
        known.multipliers[known.working] = solution.multipliers[sample == i]
    return solution


def _extend(oracle: Oracle, convex: Convex, solution: QPSolution, epsilon: float) -> tuple[int, float]:
    """Add the most violated constraint of each sample; return their number, and the largest violation."""
    w, everyone = solution.w, list(range(len(oracle.constraints)))
    needed = convex.slacks(w, np.zeros(len(everyone))) - solution.slacks  # violation = value + needed
    tolerances = np.full(len(everyone), epsilon)
    settled = _add_highest(oracle, w, everyone, needed, tolerances)
    oracle.separate_quickly(w, settled)
    settled = _add_highest(oracle, w, settled, needed, tolerances)
    oracle.separate(w, settled)
    for i in settled:
        gap = oracle.gap(w, i)
        tolerances[i] -= gap if gap <= REACHABLE * epsilon else 0.0
    settled = _add_highest(oracle, w, settled, needed, tolerances)
    return len(everyone) - len(settled), max(float((needed + oracle.values(w)).max()), 0.0)


def _add_highest(
    oracle: Oracle, w: Float64Array, which: Sequence[int], needed: Float64Array, tolerances: Float64Array
) -> list[int]:
    """Add the most violated known constraint of each sample to its working set; return the samples without one."""
    settled = []
    for i in which:
        known = oracle.constraints[i]
        values = np.where(known.working, -np.inf, known.values(w))
        if values.max() + needed[i] > tolerances[i]:
            known.working[values.argmax()] = True
        else:
            settled.append(i)
    return settled
