"""Latent structured SVM: one class or all classes at once, by the same function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from regweave.engines import Solver
from regweave.learning.cccp import Iteration, learn
from regweave.learning.cutting_plane import Mapper, Oracle
from regweave.learning.options import LssvmOptions
from regweave.learning.qp import Regulariser
from regweave.learning.samples import Sample
from regweave.types import IntArray, WeightTable

FLOOR = 0.25
"""Least pairwise weight, as a share of the start's: the loss has no reason to keep deformations smooth."""


@dataclass(frozen=True)
class Fit:
    """Fitted weights with their evidence.

    Parameters
    ----------
    weights : WeightTable
        Members and classes of the start.
    history : tuple of Iteration
        One record for the start and one for each outer iteration.
    converged : bool
        True if the objective stopped falling before the iterations ran out.
    certified_epsilon : float
        No constraint of eq. (10) is violated by more than this; infinite with an engine that proves nothing.
    slacks : mapping from (pair_id, level) to float
        Upper bounds, up to ``certified_epsilon``, of the losses of the predictions.
    imputed : mapping from (pair_id, level) to int array of shape (N,)
        Labels of the imputed deformations.
    """

    weights: WeightTable
    history: tuple[Iteration, ...]
    converged: bool
    certified_epsilon: float
    slacks: Mapping[tuple[str, int], float]
    imputed: Mapping[tuple[str, int], IntArray]


def fit_lssvm(
    samples: Sequence[Sample],
    w0: WeightTable,
    options: LssvmOptions | None = None,
    *,
    pairwise_floor: float | None = None,
    engine: str | Solver = "trws",
    on_progress: Callable[[Iteration], None] | None = None,
    mapper: Mapper = map,
) -> Fit:
    """Learn weights by Algorithm 1 on cached terms.

    Parameters
    ----------
    samples : sequence of Sample
        In any order; it does not change a bit of the result. Restricted terms learn one class, eqs. (4) to (6);
        whole ones learn all classes jointly.
    w0 : WeightTable
        Start and centre of the proximity term; its members and classes are the rows and columns learned.
    options : LssvmOptions, optional
        Hyper-parameters.
    pairwise_floor : float, optional
        Least pairwise weight; a quarter of the start's where not given.
    engine : str or Solver
        Inference engine; a name stands for its default options.
    on_progress : callable, optional
        Called with each `Iteration`.
    mapper : callable
        ``map`` or its like, to run independent inferences at the same time; it does not change the result.

    Returns
    -------
    Fit
    """
    ordered = sorted(samples, key=lambda s: s.key)
    floor = FLOOR * w0.pairwise if pairwise_floor is None else pairwise_floor
    options = options or LssvmOptions()
    _check(ordered, w0, options, floor)
    start = w0.as_vector()
    lower = np.full(len(start), -np.inf if options.signed else 0.0)
    lower[-1] = floor
    oracle = Oracle(ordered, engine, mapper)
    learned = learn(oracle, Regulariser(start, options.alpha, lower), options, on_progress)
    keys = [s.key for s in ordered]
    return Fit(
        weights=WeightTable.from_vector(learned.w, w0.members, w0.classes),
        history=learned.history,
        converged=learned.converged,
        certified_epsilon=learned.certified_epsilon,
        slacks=dict(zip(keys, learned.slacks.tolist(), strict=True)),
        imputed={key: d.labels for key, d in zip(keys, learned.imputed, strict=True)},
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
