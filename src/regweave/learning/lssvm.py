"""Latent structured SVM: weights of one class, or of all classes jointly, by the concave-convex procedure.

The procedure minimises eq. (7): it imputes the deformations, learns the weights by cutting planes, and repeats. The
objective that cannot rise includes the loss of the imputed deformations,
``½‖w‖² + α‖w − w₀‖² + (C/N)·Σ_i [max_D (Δ − w·Ψ) + min_D (w·Ψ + η·Δ)]``: the first bracket is convex in w, the second
concave, and D̂ makes it linear. Inference bounds both brackets from above and below, so the objective is an interval.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from regweave import notices
from regweave.engines import Solver
from regweave.learning.cutting_plane import Convex, Mapper, Minimum, Oracle, Regulariser, Round, minimise
from regweave.learning.samples import Labelling, Sample
from regweave.types import Float64Array, IntArray, WeightTable

ALPHAS = (0.05, 1.0)
"""Weights of the proximity to the start that cross-validation tries if none is given; the last is the default."""
FLOOR = 0.25  # smallest pairwise weight, as a share of the start's: the loss does not require smooth deformations


@dataclass(frozen=True)
class LssvmOptions:
    """Hyper-parameters of Algorithm 1, with their defaults."""

    C: float = 300.0
    alpha: float = ALPHAS[-1]
    eta: float = 10.0  # weights of the slacks, of the proximity to w₀, and of the loss in imputation, eqs. (7) and (9).
    epsilon: float = 1e-2  # tolerance on a slack, in units of the loss per node
    rounds: int = 1  # how often the trajectories are refreshed
    max_outer: int = 6
    signed: bool = False  # let weights of members be negative, as the paper does
    max_inner: int = 50  # largest numbers of imputations and, between two of them, of quadratic programmes

    def record(self) -> dict[str, Any]:
        """Return the record of a model, without the limit of the quadratic programmes, which is hardly ever reached."""
        return {name: value for name, value in asdict(self).items() if name != "max_inner"}

    def words(self) -> str:
        """Describe the three that are searched."""
        return f"C {self.C:g}, alpha {self.alpha:g}, eta {self.eta:g}"


@dataclass(frozen=True)
class Fit:
    """Fitted weights with their certificates."""

    weights: WeightTable
    history: tuple[Iteration, ...]  # one record for the start and one for each outer iteration
    converged: bool  # true if the objective stopped falling before the iterations ran out
    certified_epsilon: float
    """No constraint of eq. (10) is violated by more than this; infinite with an engine that proves nothing."""
    slacks: Mapping[tuple[str, int], float]  # upper bounds, up to `certified_epsilon`, of the losses of the predictions
    imputed: Mapping[tuple[str, int], IntArray]  # labels of the imputed deformations, (N,)


def fit_lssvm(
    samples: Sequence[Sample], w0: WeightTable, options: LssvmOptions | None = None, *,
    pairwise_floor: float | None = None, engine: str | Solver = "trws",
    on_progress: Callable[[Iteration], None] | None = None, mapper: Mapper = map,
) -> Fit:  # fmt: skip
    """Learn weights by Algorithm 1 on cached terms.

    The order of the samples does not change the result. Restricted terms learn one class, eqs. (4) to (6); others learn
    all classes jointly. ``w0`` is the start and the centre of the proximity term; ``pairwise_floor`` is the smallest
    pairwise weight, by default a quarter of the start's. ``mapper``, ``map`` or its like, may run independent
    inferences at the same time; it does not change the result either.
    """
    ordered = sorted(samples, key=lambda s: s.key)
    floor = FLOOR * w0.pairwise if pairwise_floor is None else pairwise_floor
    options = options or LssvmOptions()
    _check(ordered, w0, options, floor)
    start = w0.as_vector()
    lower = np.full(len(start), -np.inf if options.signed else 0.0)
    lower[-1] = floor
    oracle = Oracle(ordered, engine, mapper)
    state, converged, history = learn(oracle, Regulariser(start, options.alpha, lower), options, on_progress)
    keys = [s.key for s in ordered]
    return Fit(
        weights=WeightTable.from_vector(state.w, w0.members, w0.classes),
        history=history,
        converged=converged,
        certified_epsilon=state.epsilon,
        slacks=dict(zip(keys, state.slacks.tolist(), strict=True)),
        imputed={key: d.labels for key, d in zip(keys, state.imputed, strict=True)},
    )


def _check(samples: Sequence[Sample], w0: WeightTable, options: LssvmOptions, floor: float) -> None:
    if not samples:
        raise ValueError("no samples to learn from; give at least one pair with both label maps")
    repeated = sorted({a.key for a, b in pairwise(samples) if a.key == b.key})
    if repeated:
        raise ValueError(f"samples {repeated} come twice; give each pair its own pair_id")
    expected = (len(w0.members), len(w0.classes))
    for s in samples:
        if s.shape != expected:
            raise ValueError(f"sample {s.key} has {s.shape} members and classes, w0 has {expected}; use the same bank")
    numbers = {"C": options.C, "alpha": options.alpha, "eta": options.eta, "pairwise_floor": floor}
    for name, value in numbers.items():
        if not (np.isfinite(value) and value >= 0):
            raise ValueError(f"{name} is {value}; it must be finite and 0 or more")
    if not options.epsilon > 0:
        raise ValueError(f"epsilon is {options.epsilon}; it must be above 0")
    if options.max_outer < 1 or options.max_inner < 1:
        raise ValueError(f"max_outer {options.max_outer}, max_inner {options.max_inner}; both must be 1 or more")


@dataclass(frozen=True)
class Iteration:
    """State after one outer iteration; number 0 is the start."""

    number: int
    objective: float  # full objective as attained by inference, η·Δ(D̂) included
    duality_gap: float  # width of the interval that holds the true objective, `upper − lower`
    upper: float  # no less than the true objective; infinite where the engine proves nothing
    slack_sum: float  # sum of the slacks as attained: the upper bound on the losses of the predictions
    predicted_loss: float
    imputed_loss: float  # mean Δ of the predictions and of the imputed deformations
    certified_epsilon: float  # no constraint of eq. (10), for the D̂ it was solved with, is violated by more than this.
    n_inferences: int
    n_discarded: int
    n_cuts: int  # inferences so far; constraints so far of lower value than known ones; size of the last working sets
    seconds: float
    w: Float64Array
    rounds: tuple[Round, ...] = ()


@dataclass(frozen=True)
class _State:
    """Weights with their slacks, the imputed labellings and the loss at them, and the rounds of cutting planes."""

    w: Float64Array
    slacks: Float64Array
    epsilon: float
    imputed: tuple[Labelling, ...]
    predicted_loss: float
    rounds: tuple[Round, ...] = ()

    @property
    def psi(self) -> Float64Array:
        return np.stack([d.psi for d in self.imputed])


def learn(
    oracle: Oracle, regulariser: Regulariser, options: LssvmOptions,
    on_progress: Callable[[Iteration], None] | None = None,
) -> tuple[_State, bool, tuple[Iteration, ...]]:  # fmt: skip
    """Minimise eq. (7) by Algorithm 1; numbers at the margin are the lines of its detailed version.

    Returns the best state, whether the objective stopped falling before the iterations ran out, and the history.
    """
    history: list[Iteration] = []
    levels, last = [np.inf], time.perf_counter()

    def record(state: _State) -> float:
        """Add to the history; return the decrease of the objective."""
        nonlocal last
        found, level = _iteration(oracle, regulariser, options.C, state, len(history), last)
        last = time.perf_counter()
        history.append(found)
        levels.append(level)
        if on_progress is not None:
            on_progress(found)
        return levels[-2] - level

    state = _start(oracle, np.maximum(regulariser.w0, regulariser.lower), options.eta)  # lines 1 to 3, 5, 6
    record(state)
    converged = False
    while not converged and len(history) <= options.max_outer:  # line 4
        convex = Convex(regulariser, options.C, state.psi)
        found = minimise(oracle, convex, options.epsilon, options.max_inner)  # lines 7 to 11
        if _descends(oracle, convex, state.w, found, options):
            imputed = _impute(oracle, found.w, options.eta, state.imputed)  # lines 12, 13, 5, 6
            oracle.restart(found.w)
            loss = _predict(oracle, found.w)
            state = _State(found.w, found.slacks, found.epsilon, imputed, loss, found.rounds)
        else:
            state = replace(state, rounds=found.rounds)
        # Slacks are known to ε, so the objective is known to C·ε: a smaller step is no progress.
        converged = record(state) <= options.C * options.epsilon and found.converged  # line 14
    return state, converged, tuple(history)


def _start(oracle: Oracle, w: Float64Array, eta: float) -> _State:
    imputed, predicted_loss = _impute(oracle, w, eta, ()), _predict(oracle, w)
    energies = np.array([(w * d.psi).sum() for d in imputed])
    oracle.restart(w)
    upper_bounds = oracle.upper_bounds(w)
    slacks = energies + oracle.values(w)
    return _State(w, slacks, float((energies + upper_bounds - slacks).max()), imputed, predicted_loss)


def _impute(oracle: Oracle, w: Float64Array, eta: float, before: Sequence[Labelling]) -> tuple[Labelling, ...]:
    """Impute by eq. (9); an earlier D̂ of lower value is kept, so the objective cannot rise.

    Inference is not exact, so the new D̂ may be worse than the one before.
    """
    new = oracle.run(w, eta, init=[d.labels for d in before] or None)
    for known, d in zip(oracle.constraints, new, strict=True):
        known.insert(d)
    if not before:
        return tuple(new)
    values = [float((w * d.psi).sum() + eta * d.delta) for d in before]
    kept = (replace(d, value=v) for d, v in zip(before, values, strict=True))
    return tuple(
        replace(old, lower_bound=min(fresh.lower_bound, old.value)) if old.value <= fresh.value else fresh
        for old, fresh in zip(kept, new, strict=True)
    )


def _predict(oracle: Oracle, w: Float64Array) -> float:
    found = oracle.run(w, 0.0, proof=False)
    for known, d in zip(oracle.constraints, found, strict=True):
        known.insert(d)
    return float(np.mean([d.delta for d in found]))


def _descends(oracle: Oracle, convex: Convex, w: Float64Array, found: Minimum, options: LssvmOptions) -> bool:
    """Return whether the proved objective of the new weights is at most that of w, for the same D̂."""
    before, after = (convex.value(x, _proved_values(oracle, x)) for x in (w, found.w))
    at_least = convex.value(found.w, oracle.values(found.w))
    if at_least > before + options.C * options.epsilon:
        notices.warn(
            f"W211: the learning objective would rise from {before:.6g} to {at_least:.6g}, beyond the duality gap, "
            f"after {len(found.rounds)} rounds of cutting planes; the earlier weights are kept; raise max_inner"
        )
    return after <= before


def _proved_values(oracle: Oracle, w: Float64Array) -> Float64Array:
    """Upper bounds of the constraint values, (N,), or the highest known values where the engine proves nothing."""
    upper_bounds = oracle.upper_bounds(w)
    return np.where(np.isfinite(upper_bounds), upper_bounds, oracle.values(w))


def _iteration(
    oracle: Oracle, regulariser: Regulariser, C: float, state: _State, number: int, began: float
) -> tuple[Iteration, float]:
    """Record of an iteration, and the objective whose decrease decides: with the best proved constraint values."""
    values, upper_bounds = oracle.values(state.w), oracle.upper_bounds(state.w)
    attained, least = (np.array([getattr(d, n) for d in state.imputed]) for n in ("value", "lower_bound"))
    brackets = [(values, attained), (upper_bounds, attained), (values, least)]
    brackets.append((_proved_values(oracle, state.w), attained))
    objective, upper, lower, level = (regulariser(state.w) + C * float((a + b).mean()) for a, b in brackets)
    iteration = Iteration(
        number=number,
        objective=objective,
        duality_gap=upper - lower,
        upper=upper,
        slack_sum=float(((state.psi * state.w).sum(axis=1) + values).sum()),
        predicted_loss=state.predicted_loss,
        imputed_loss=float(np.mean([d.delta for d in state.imputed])),
        certified_epsilon=state.epsilon,
        n_inferences=oracle.n_inferences,
        n_discarded=oracle.n_discarded,
        n_cuts=state.rounds[-1].n_cuts if state.rounds else 0,
        seconds=time.perf_counter() - began,
        w=state.w,
        rounds=state.rounds,
    )
    return iteration, level
