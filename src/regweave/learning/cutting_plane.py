"""The n-slack cutting-plane algorithm for eq. (10), with certificates (Joachims, Finley and Yu 2009, Alg. 1).

A labelling D of a sample is a plane over the weights, of height Δ(D) − w·Ψ(D). Planes do not depend on the imputed
D̂, so every labelling ever found serves all outer iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.learning.qp import Cuts, QPSolution, Regulariser, solve
from regweave.learning.samples import Found, Sample, Task, infer
from regweave.types import Float64Array, IntArray

Mapper = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
REACHABLE = 0.9
"""Where inference leaves a gap above this share of ε, more constraints cannot certify ε."""


class Pool:
    """Planes of one sample: all labellings found so far, and which of them are in the working set."""

    def __init__(self, n_features: int) -> None:
        self.psi: Float64Array = np.zeros((0, n_features))
        self.delta: Float64Array = np.zeros(0)
        self.working: NDArray[np.bool_] = np.zeros(0, dtype=bool)

    def heights(self, w: Float64Array) -> Float64Array:
        """Δ − w·Ψ of each plane, (K,)."""
        return np.asarray(self.delta - (self.psi * w).sum(axis=1))

    def add(self, found: Found, w: Float64Array) -> bool:
        """Keep a plane, unless one that is no lower at w is there already."""
        height = float(found.delta - (found.psi * w).sum())
        if len(self.delta) and height <= self.heights(w).max():
            return False
        self.insert(found)
        return True

    def insert(self, found: Found) -> None:
        """Keep a plane, unless the very same is there already."""
        if ((self.delta == found.delta) & (self.psi == found.psi).all(axis=1)).any():
            return
        self.psi = np.vstack([self.psi, found.psi])
        self.delta = np.append(self.delta, found.delta)
        self.working = np.append(self.working, False)


class Oracle:
    """All inference of a fit: it runs tasks, keeps the planes, and counts.

    Parameters
    ----------
    samples : sequence of Sample
        In the order that every array of the fit has.
    engine : str
        Name of the inference engine.
    mapper : callable
        ``map`` or its like: independent tasks may run at the same time; their results come in order.
    """

    def __init__(self, samples: Sequence[Sample], engine: str, mapper: Mapper = map) -> None:
        self.samples, self.engine, self._map = tuple(samples), engine, mapper
        m, c = self.samples[0].shape
        self.pools = [Pool(m * c + 1) for _ in self.samples]
        self.n_inferences = self.n_discarded = 0
        self._ceilings: dict[tuple[int, bytes], float] = {}

    def run(
        self, w: Float64Array, coefficient: float, which: Iterable[int], init: Sequence[IntArray | None] | None = None
    ) -> list[Found]:
        """Minimise w·Ψ + coefficient·Δ on some samples."""
        chosen = list(which)
        tasks = [Task(self.samples[i], w, coefficient, self.engine, init[i] if init else None) for i in chosen]
        found = list(self._map(infer, tasks))
        self.n_inferences += len(tasks)
        return found

    def separate(self, w: Float64Array, which: Iterable[int]) -> None:
        """Find the highest plane of some samples at w, eq. (11), and a ceiling above all planes."""
        missing = [i for i in which if (i, w.tobytes()) not in self._ceilings]
        for i, found in zip(missing, self.run(w, -1.0, missing), strict=True):
            self.n_discarded += not self.pools[i].add(found, w)
            self._ceilings[i, w.tobytes()] = -found.lower_bound

    def ceilings(self, w: Float64Array) -> Float64Array:
        """No labelling of a sample has a plane above this at w, (N,); infinite where the engine proves nothing."""
        self.separate(w, range(len(self.samples)))
        bounds = np.array([self._ceilings[i, w.tobytes()] for i in range(len(self.samples))])
        return np.asarray(np.maximum(bounds, self.heights(w)))

    def heights(self, w: Float64Array) -> Float64Array:
        """Height of the highest plane known of each sample at w, (N,)."""
        return np.array([pool.heights(w).max(initial=-np.inf) for pool in self.pools])


@dataclass(frozen=True)
class Round:
    """One round of the algorithm: objective of the programme, largest violation found, and the work so far."""

    objective: float
    violation: float
    n_inferences: int
    n_cuts: int


@dataclass(frozen=True)
class Convex:
    """Eq. (10) for fixed D̂: the regulariser, C, and Ψ(D̂), (N, d)."""

    regulariser: Regulariser
    C: float
    imputed: Float64Array

    def value(self, w: Float64Array, planes: Float64Array) -> float:
        """Objective of w where the highest planes of the samples have these heights, (N,)."""
        return self.regulariser(w) + self.C * float(np.maximum(self.slacks(w, planes), 0.0).mean())

    def slacks(self, w: Float64Array, planes: Float64Array) -> Float64Array:
        """w·Ψ(D̂) − w·Ψ(D) + Δ(D) for planes of these heights, (N,)."""
        return np.asarray((self.imputed * w).sum(axis=1) + planes)


@dataclass(frozen=True)
class Minimum:
    """Result of the cutting-plane algorithm.

    ``objective`` is that of the programme on the working sets, a lower bound of eq. (10) up to its duality gap. No
    constraint of any sample is violated by more than ``epsilon``; it is infinite where the engine proves nothing.
    ``converged`` says that no constraint found is violated by more than the tolerance.
    """

    w: Float64Array
    slacks: Float64Array
    objective: float
    epsilon: float
    converged: bool
    rounds: tuple[Round, ...]


def minimise(oracle: Oracle, convex: Convex, w: Float64Array, epsilon: float, max_rounds: int) -> Minimum:
    """Minimise eq. (10) by constraints that are found as they are needed.

    Planes of earlier rounds and iterations are scored before any inference; a sample is inferred only where none of
    them is violated by more than ε. The end comes when violation plus inference gap is at most ε in every sample, or
    when inference finds nothing more.

    Parameters
    ----------
    oracle : Oracle
        Inference and planes; its working sets are the start and are extended.
    convex : Convex
        The problem.
    w : float array of shape (d,)
        Weights to start from.
    epsilon : float
        Largest violation that is left.
    max_rounds : int
        Largest number of programmes.
    """
    rounds: list[Round] = []
    solution: QPSolution | None = None
    slacks = np.zeros(len(oracle.samples))
    for number in range(max_rounds + 1):
        added, violation = _extend(oracle, convex, w, slacks, epsilon)  # lines 8, 9
        if solution is not None:
            rounds.append(Round(solution.objective, violation, oracle.n_inferences, _count(oracle)))
        if (added == 0 and solution is not None) or number == max_rounds:
            break
        solution = _programme(oracle, convex)  # line 10
        w, slacks = solution.w, solution.slacks
    assert solution is not None
    worst = float((convex.slacks(w, oracle.ceilings(w)) - slacks).max())
    return Minimum(w, slacks, solution.objective, max(worst, 0.0), added == 0, tuple(rounds))


def restart(oracle: Oracle, convex: Convex, w: Float64Array) -> None:
    """Reduce the working sets to the planes that hold w for the new D̂; the others stay in the pools."""
    solution = _programme(oracle, convex)
    end = np.cumsum([pool.working.sum() for pool in oracle.pools])
    for pool, multipliers in zip(oracle.pools, np.split(solution.multipliers, end[:-1]), strict=True):
        pool.working[np.flatnonzero(pool.working)[multipliers == 0]] = False
