"""Cutting-plane algorithm with n slacks for eq. (10), with certificates (Joachims, Finley and Yu 2009, Alg. 1).

Each labelling D of a sample gives a constraint with the value Δ(D) − w·Ψ(D). The value does not depend on the imputed
D̂, so all constraints that were ever found stay valid in all outer iterations.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.engines import Solver
from regweave.learning.qp import Cuts, QPSolution, Regulariser, solve
from regweave.learning.samples import Labelling, Sample, Task, infer
from regweave.types import Float64Array, IntArray

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
