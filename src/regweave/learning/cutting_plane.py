"""Cutting-plane algorithm with n slacks for eq. (10), with certificates (Joachims, Finley and Yu 2009, Alg. 1).

A labelling D of a sample is a plane over the weights, of height Δ(D) − w·Ψ(D). Planes do not depend on the imputed
D̂, so every labelling ever found serves all outer iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.engines import Solver
from regweave.learning.qp import Cuts, QPSolution, Regulariser, solve
from regweave.learning.samples import Found, Sample, Task, infer
from regweave.types import Float64Array, IntArray

Mapper = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
REACHABLE = 0.9
"""Where inference leaves a gap above this share of ε, more constraints cannot certify ε."""
ROUNDING = 1e-12
GLANCE = 2
"""Engine iterations of a first look: any labelling makes a valid constraint, only the end needs a proof."""


class Pool:
    """Planes of one sample: the labellings found so far, and which of them are in the working set."""

    def __init__(self, n_features: int) -> None:
        self.psi: Float64Array = np.zeros((0, n_features))
        self.delta: Float64Array = np.zeros(0)
        self.working: NDArray[np.bool_] = np.zeros(0, dtype=bool)
        self.multipliers: Float64Array = np.zeros(0)

    def heights(self, w: Float64Array) -> Float64Array:
        """Δ − w·Ψ of each plane, (K,)."""
        return np.asarray(self.delta - (self.psi * w).sum(axis=1))

    def insert(self, found: Found) -> None:
        """Keep a plane, unless the very same is there already."""
        if ((self.delta == found.delta) & (self.psi == found.psi).all(axis=1)).any():
            return
        self.psi = np.vstack([self.psi, found.psi])
        self.delta = np.append(self.delta, found.delta)
        self.working = np.append(self.working, False)
        self.multipliers = np.append(self.multipliers, 0.0)

    def restart(self, w: Float64Array) -> None:
        """Reduce the working set to the planes that held the last solution, and the highest at w."""
        self.working = self.multipliers > 0
        self.working[self.heights(w).argmax()] = True


class Oracle:
    """All inference of a fit: it runs tasks, keeps the planes, and counts.

    Parameters
    ----------
    samples : sequence of Sample
        In the order that every array of the fit has.
    engine : str or Solver
        Inference engine; a name stands for its default options.
    mapper : callable
        ``map`` or its like: independent tasks may run at the same time; their results come in order.
    """

    def __init__(self, samples: Sequence[Sample], engine: str | Solver, mapper: Mapper = map) -> None:
        self.samples, self.engine, self._map = tuple(samples), engine, mapper
        m, c = self.samples[0].shape
        self.pools = [Pool(m * c + 1) for _ in self.samples]
        self.n_inferences = self.n_discarded = 0
        self._ceilings: dict[tuple[int, bytes], float] = {}

    def run(
        self,
        w: Float64Array,
        coefficient: float,
        which: Iterable[int] | None = None,
        init: Sequence[IntArray] | None = None,
        max_iter: int | None = None,
        *,
        proof: bool = True,
    ) -> list[Found]:
        """Minimise w·Ψ + coefficient·Δ on some samples, or on all; without ``proof`` bounds may be loose."""
        chosen = range(len(self.samples)) if which is None else which
        tasks = [
            Task(self.samples[i], w, coefficient, self.engine, None if init is None else init[i], max_iter, proof)
            for i in chosen
        ]
        self.n_inferences += len(tasks)
        return list(self._map(infer, tasks))

    def glance(self, w: Float64Array, which: Sequence[int]) -> None:
        """Look for high planes of some samples at w, eq. (11), quickly and without a proof."""
        for i, found in zip(which, self.run(w, -1.0, which, max_iter=GLANCE, proof=False), strict=True):
            if -found.value > self.pools[i].heights(w).max(initial=-np.inf):
                self.pools[i].insert(found)

    def separate(self, w: Float64Array, which: Iterable[int]) -> None:
        """Find the highest plane of some samples at w, eq. (11), and a ceiling above all planes.

        A plane below one that is known already shows that inference was not exact: it is not kept, but counted.
        """
        missing = [i for i in which if (i, w.tobytes()) not in self._ceilings]
        for i, found in zip(missing, self.run(w, -1.0, missing), strict=True):
            self._ceilings[i, w.tobytes()] = -found.lower_bound
            if -found.value < self.pools[i].heights(w).max(initial=-np.inf) - ROUNDING:
                self.n_discarded += 1
            else:
                self.pools[i].insert(found)

    def ceilings(self, w: Float64Array) -> Float64Array:
        """No labelling of a sample has a plane above this at w, (N,); infinite where the engine proves nothing."""
        self.separate(w, range(len(self.samples)))
        bounds = np.array([self._ceilings[i, w.tobytes()] for i in range(len(self.samples))])
        return np.asarray(np.maximum(bounds, self.heights(w)))

    def restart(self, w: Float64Array) -> None:
        """Begin new working sets at w."""
        self.separate(w, range(len(self.samples)))
        for pool in self.pools:
            pool.restart(w)

    def gap(self, w: Float64Array, i: int) -> float:
        """Return what inference at w left open on a sample: from its highest plane to the ceiling."""
        return max(self._ceilings[i, w.tobytes()] - float(self.pools[i].heights(w).max()), 0.0)

    def heights(self, w: Float64Array) -> Float64Array:
        """Height of the highest plane known of each sample at w, (N,)."""
        return np.array([pool.heights(w).max(initial=-np.inf) for pool in self.pools])


@dataclass(frozen=True)
class Convex:
    """Eq. (10) for fixed D̂: the regulariser, C, and Ψ(D̂), (N, d)."""

    regulariser: Regulariser
    C: float
    imputed: Float64Array

    def slacks(self, w: Float64Array, planes: Float64Array) -> Float64Array:
        """w·Ψ(D̂) − w·Ψ(D) + Δ(D) for planes of these heights, (N,)."""
        return np.asarray((self.imputed * w).sum(axis=1) + planes)

    def value(self, w: Float64Array, planes: Float64Array) -> float:
        """Objective at w where the highest planes of the samples have these heights, (N,)."""
        return self.regulariser(w) + self.C * float(np.maximum(self.slacks(w, planes), 0.0).mean())


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
    """Minimise eq. (10) by constraints that are found as they are needed.

    Planes of earlier rounds and iterations are scored before any inference, and a sample is inferred only where none
    of them is violated by more than ε. The end comes when violation plus inference gap is at most ε for every
    sample, or when inference finds nothing more.

    Parameters
    ----------
    oracle : Oracle
        Inference, planes, and the working sets to start from, which grow.
    convex : Convex
        The problem.
    epsilon : float
        Largest violation that is left.
    max_rounds : int
        Largest number of programmes, at least 1.
    """
    rounds: list[Round] = []
    for _ in range(max_rounds):
        solution = _programme(oracle, convex)  # line 10
        n_cuts = sum(int(pool.working.sum()) for pool in oracle.pools)
        added, violation = _extend(oracle, convex, solution, epsilon)  # lines 8, 9
        rounds.append(Round(solution.objective, violation, oracle.n_inferences, n_cuts))
        if added == 0:  # line 11
            break
    left = convex.slacks(solution.w, oracle.ceilings(solution.w)) - solution.slacks
    certified = max(float(left.max()), 0.0)
    return Minimum(solution.w, solution.slacks, solution.objective, certified, added == 0, tuple(rounds))


def _programme(oracle: Oracle, convex: Convex) -> QPSolution:
    """Solve eq. (10) on the working sets, and tell the planes which of them hold the solution."""
    pools, r = oracle.pools, convex.regulariser
    sample = np.repeat(np.arange(len(pools), dtype=np.int32), [int(pool.working.sum()) for pool in pools])
    psi = np.concatenate([pool.psi[pool.working] for pool in pools])
    delta = np.concatenate([pool.delta[pool.working] for pool in pools])
    cuts = Cuts(sample, convex.imputed[sample] - psi, delta)
    solution = solve(cuts, len(pools), r.w0, convex.C, r.alpha, r.lower)
    for i, pool in enumerate(pools):
        pool.multipliers[:] = 0
        pool.multipliers[pool.working] = solution.multipliers[sample == i]
    return solution


def _extend(oracle: Oracle, convex: Convex, solution: QPSolution, epsilon: float) -> tuple[int, float]:
    """Add the highest plane of each sample that violates; return how many, and the largest violation found."""
    w, everyone = solution.w, list(range(len(oracle.pools)))
    needed = convex.slacks(w, np.zeros(len(everyone))) - solution.slacks  # violation = height + needed
    tolerances = np.full(len(everyone), epsilon)
    settled = _add_highest(oracle, w, everyone, needed, tolerances)
    oracle.glance(w, settled)
    settled = _add_highest(oracle, w, settled, needed, tolerances)
    oracle.separate(w, settled)
    for i in settled:
        gap = oracle.gap(w, i)
        tolerances[i] -= gap if gap <= REACHABLE * epsilon else 0.0
    settled = _add_highest(oracle, w, settled, needed, tolerances)
    return len(everyone) - len(settled), max(float((needed + oracle.heights(w)).max()), 0.0)


def _add_highest(
    oracle: Oracle, w: Float64Array, which: Sequence[int], needed: Float64Array, tolerances: Float64Array
) -> list[int]:
    """Put the highest known plane of each sample that violates into its working set; return the other samples."""
    settled = []
    for i in which:
        pool = oracle.pools[i]
        heights = np.where(pool.working, -np.inf, pool.heights(w))
        if heights.max() + needed[i] > tolerances[i]:
            pool.working[heights.argmax()] = True
        else:
            settled.append(i)
    return settled
