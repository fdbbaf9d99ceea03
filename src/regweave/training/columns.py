"""Columns of the discrete levels: learned by the latent SVM, and selected by left-out patients.

`select_columns` learns columns on each fold and registers its left-out pairs with them. It selects hyper-parameters,
the share of the way from the uniform bank to the columns, the classes that gain (their gates), less smoothness, and a
factor on each column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from regweave.config.settings import Settings
from regweave.jobs.table import Fold, PairFiles
from regweave.learning.columns import FittedColumns, Trainer
from regweave.learning.lssvm import LssvmOptions
from regweave.model.record import Candidate, Gain, GateRecord
from regweave.registration.initial import STRUCTURES
from regweave.registration.landmarks import started_from_structures
from regweave.run.memory import forecast
from regweave.run.read import read_inputs
from regweave.run.resolve import with_structure_maps
from regweave.run.start import start_pair
from regweave.threads import in_this_call, kernel_threads
from regweave.training.options import TrainOptions
from regweave.training.predictor_fits import within
from regweave.training.state import (
    CHOSEN_ERRORS,
    PairScores,
    TrainingState,
    choose,
    gain_interval,
    gains_over,
    judge_pairs,
    overall,
)
from regweave.types import ImagePair, WeightTable

SHARES = (0.5, 1.0)
"""Shares of the way from the uniform bank to the learned columns that are tried on left-out patients."""
BALANCES = (0.3, 0.1, 0.03)
"""Factors on the smoothness that are tried with the selected columns: better costs need less smoothness."""
STRENGTHS = (0.3, 3.0)
"""Factors on the whole column of a class that are tried: its costs relative to the smoothness there."""
NEAR = 0.9  # a smoothness within this factor of one that was tried counts as tried


def select_columns(state: TrainingState) -> TrainingState:
    """Learn on each fold, register its left-out pairs, and select hyper-parameters, share, classes and factors."""
    grid, w0 = state.options.grid(), state.refinement.weights
    if not state.options.gate:
        return replace(state, selection=ColumnSelection(grid[0], 1.0, w0.classes, {}), by_fold=(), trail=())
    learner, folds = ColumnLearner.of(state), state.folds()
    shown = {name: contents.in_both for name, contents in state.scan.contents.items()}
    register, smoke = partial(state.candidates.left_out, folds), state.options.effort == "smoke"
    attempts, trials = list[Attempt](), dict[LssvmOptions, Trial]()
    for options in grid:
        columns = []
        for i, fold in enumerate(folds, start=1):
            state.log.report("gate", f"fold {i} of {len(folds)}, {options.words()}")
            columns.append(learner.learn(w0, learner.sampled(fold.train), options))
        trials[options] = Trial(w0, columns, state.refinement.scores, folds, register, smoke)
        attempts += try_columns(options, trials[options], shown)
    best = _best(attempts)
    attempts += rebalance(best, trials[best.options], least=state.least_smoothness)
    best = _best(attempts)
    best = best if best.value > 0 else best.unused()
    strong = strengthen(best, trials[best.options])
    chosen = max((best, *(selection for selection, _ in strong)), key=lambda selection: selection.value)
    trail = [line for _, line in (*attempts, *strong)]
    return replace(state, selection=chosen, by_fold=trials[chosen.options].columns, trail=trail)


def _best(attempts: Sequence[Attempt]) -> ColumnSelection:
    return max((selection for selection, _ in attempts), key=lambda selection: selection.value)


@dataclass(frozen=True)
class ColumnLearner:
    """Learner of columns by the method of the options."""

    state: TrainingState
    """Files, candidates, log, threads, and the cache of samples: those along the trajectory of the start serve every
    fold and all hyper-parameters."""
    options: TrainOptions  # method and limits
    schedule: Settings  # levels and bank
    load: Callable[[PairFiles], ImagePair] | None = None
    """Returns a pair with its initial alignment; by default that of the settings."""
    mark: str = ""  # part of the cache keys of pairs that `load` returns

    @classmethod
    def of(cls, state: TrainingState) -> ColumnLearner:
        """Return the learner of a training."""
        return cls(state, state.options, state.settings.for_bank(state.modality))

    def learn(self, w0: WeightTable, pairs: Sequence[PairFiles], options: LssvmOptions) -> FittedColumns:
        """Learn from pairs that `sampled` chose; columns keep the balance of the start with the smoothness."""
        schedule = self.schedule.for_levels()
        start = w0.select(tuple(m.name for m in schedule.bank))
        # Threads over pairs and samples, one kernel thread each: the kernels leave Python free.
        with kernel_threads(1), ThreadPoolExecutor(self.state.workers) as pool:

            def mapper(function: Callable[..., Any], *values: Iterable[Any]) -> Iterable[Any]:
                return pool.map(in_this_call(function), *values)

            mark = self.mark + ("/laid" if self.state.settings.initial == STRUCTURES else "")
            named = [(p.id + mark, partial(self.load or self._load, p)) for p in pairs]
            finest, device = self.options.levels == "finest", self.state.run.placement.word
            trainer = Trainer(named, schedule, start, options, finest, mapper, self.state.kept, device)
            ways = {"lssvm": trainer.per_class, "lssvm-joint": trainer.joint, "global": trainer.fit_global}
            found = ways[self.options.method]()
        self.state.log.count(found.n_registrations, found.n_inferences)
        return replace(found, weights=w0.embed(start.balance(found.weights)))

    def sampled(self, pairs: Sequence[PairFiles]) -> list[PairFiles]:
        """Draw pairs at random, as the paper does, within the limits of their number and of memory."""
        ordered = sorted(pairs, key=lambda p: p.id)
        limit = self.options.max_memory_mb
        rng = np.random.default_rng(self.options.seed)
        chosen = within([self._sample_mb(p) for p in ordered], limit, rng, self.options.max_pairs)
        if len(chosen) < min(len(ordered), self.options.max_pairs or len(ordered)):
            text = f"{len(chosen)} of {len(ordered)} pairs are learned from: the samples of all exceed {limit:g} MB"
            self.state.log.report("note", text)
        return [ordered[i] for i in chosen]

    def _sample_mb(self, pair: PairFiles) -> float:
        """Memory that the samples of a pair take: float32 costs, loss and shares."""
        grids = self.state.scan.contents[pair.id]
        sizes = forecast(grids.fixed, grids.moving, self.state.settings, self.schedule.bank_name, probe=False).sizes
        used = sizes[-1:] if self.options.levels == "finest" else sizes
        columns = 1 + len(self.state.scan.structures()) if self.options.method == "lssvm-joint" else 1
        displaced = self.schedule.class_at == "displaced" and columns > 1
        per_label = len(self.schedule.for_levels().bank) + 1 + (columns if displaced else 0)
        return 4.0 * sum(s.n_nodes * (s.n_labels * per_label + columns) for s in used) / 2**20

    def _load(self, pair: PairFiles) -> ImagePair:
        candidates, initial = self.state.candidates, self.state.settings.initial
        data = read_inputs(**pair.files, reading=candidates.run.reading)
        started = start_pair(data, initial)
        if initial != STRUCTURES:
            return started
        predictor = candidates.predictors.without(pair)
        assert predictor is not None  # that start was judged with it
        laid = started_from_structures(with_structure_maps(started, predictor))
        return replace(started, initial=laid.initial, initial_field=laid.initial_field)


@dataclass(frozen=True)
class ColumnSelection:
    """One way to use learned columns, and its gain on left-out patients."""

    options: LssvmOptions
    share: float  # share of the way from the uniform bank to the learned columns
    classes: tuple[int, ...]  # classes whose learned columns are used
    gates: Mapping[int, GateRecord]  # gain of each class by its column
    gain: Gain | None = None  # gain in mean Dice with these classes; None where nothing is used
    balance: float = 1.0  # factor on the smoothness of the uniform bank
    strengths: Mapping[int, float] = field(default_factory=dict)
    """Factors on whole columns, 1 where a class is not named."""

    def apply(self, w0: WeightTable, learned: WeightTable) -> WeightTable:
        """Return the weights of this selection from learned ones."""
        w = w0.blend(learned, self.share, self.classes)
        factors = np.array([self.strengths.get(c, 1.0) for c in w.classes])
        return replace(w, matrix=w.matrix * factors, pairwise=w0.pairwise * self.balance)

    @property
    def value(self) -> float:
        """Mean gain on left-out patients; 0 where nothing is used."""
        return (self.gain.mean or 0.0) if self.gain is not None else 0.0

    def where_learned(self, w0: WeightTable, learned: WeightTable) -> ColumnSelection:
        """Drop classes whose final column equals the start; their cross-validated gain does not apply."""
        changed = dict(zip(w0.classes, (w0.matrix != learned.matrix).any(axis=0), strict=True))
        kept = tuple(c for c in self.classes if changed[c])
        return replace(self, classes=kept) if kept or self.strengths else self.unused()

    def unused(self) -> ColumnSelection:
        """Return the selection that uses no learned column."""
        return replace(self, classes=(), gain=None, balance=1.0)

    def record(self) -> dict[str, Any]:
        """Return its parts of a `TrainingRecord`."""
        return {
            "hyper": self.options.record(),
            "share": self.share,
            "balance": self.balance,
            "strengths": {str(c): f for c, f in self.strengths.items()},
            "gates": {str(c): g.model_copy(update={"used": c in self.classes}) for c, g in self.gates.items()},
            "left_out_gain": self.gain,
        }


Attempt = tuple[ColumnSelection, Candidate]  # selection that was tried, and its record


@dataclass(frozen=True)
class Trial:
    """Learned columns of all folds, and the left-out pairs to try them on."""

    w0: WeightTable
    columns: Sequence[FittedColumns]  # learned columns, one for each fold
    uniform: PairScores  # scores of the uniform bank
    folds: Sequence[Fold]
    register: Callable[[Sequence[Sequence[WeightTable]]], Sequence[PairScores]]
    """Registers the left-out pairs: for each set of weights, one for each fold, the scores of all pairs."""
    smoke: bool = False  # try one value of everything

    def run(self, selections: Sequence[ColumnSelection]) -> list[PairScores]:
        """Register the left-out pairs with each selection."""
        return list(self.register([[s.apply(self.w0, c.weights) for c in self.columns] for s in selections]))

    def judged(self, selection: ColumnSelection, scores: PairScores) -> ColumnSelection:
        """Return the selection with its gain."""
        return replace(selection, gain=gain_interval(self.uniform, scores, self.folds))

    def attempt(
        self, selection: ColumnSelection, gated: PairScores, learned: PairScores | None = None, *, fitted: bool = True
    ) -> Attempt:
        """Record the surrogate loss beside the Dice of warped masks, each before and after learning."""
        left_out, options = gated if learned is None else learned, selection.options
        found = [s for c in self.columns if (s := c.surrogate()) is not None] if fitted else []
        before, after = np.mean(found, axis=0).tolist() if found else (None, None)
        line = Candidate(
            C=options.C, alpha=options.alpha, eta=options.eta, share=selection.share, balance=selection.balance,
            strengths={str(c): f for c, f in selection.strengths.items()},
            surrogate_uniform=before, surrogate_learned=after, dice_uniform=overall(self.uniform, left_out),
            dice_learned=None if learned is None else overall(learned, left_out), dice_gated=overall(gated, left_out),
            gated_classes=selection.classes,
        )  # fmt: skip
        return selection, line


def try_columns(options: LssvmOptions, trial: Trial, shown: Mapping[str, frozenset[int]]) -> list[Attempt]:
    """Register left-out pairs with the columns of the folds, first of all classes, then of those with an open gate.

    ``shown`` has by id the structures of both label maps of a pair. There is an attempt for each of `SHARES`.
    """
    classes, shares = trial.w0.classes, SHARES[-1:] if trial.smoke else SHARES
    learned = trial.run([ColumnSelection(options, share, classes, {}) for share in shares])
    selections = []
    for share, scores in zip(shares, learned, strict=True):
        gates = {c: judge_pairs(g) for c, g in gains(trial.uniform, scores, shown, classes).items()}
        selections.append(ColumnSelection(options, share, tuple(c for c, g in gates.items() if g.used), gates))
    gated = iter(trial.run([s for s in selections if s.classes]))
    out = []
    for selection, scores in zip(selections, learned, strict=True):
        after = next(gated) if selection.classes else trial.uniform
        judged = trial.judged(selection, after) if selection.classes else selection
        out.append(trial.attempt(judged, after, scores))
    return out


def rebalance(selection: ColumnSelection, trial: Trial, *, least: float) -> list[Attempt]:
    """Try less smoothness with the selected columns: the smoothness was tuned for the uniform bank.

    No value is below ``least``, the smallest smoothness that was tried with the uniform bank: a gain there could come
    from the smoothness alone.
    """
    factors = [] if trial.smoke else [f for f in BALANCES if trial.w0.pairwise * f >= NEAR * least]
    if not selection.classes or not factors:
        return []
    candidates = [replace(selection, balance=factor) for factor in factors]
    return [trial.attempt(trial.judged(c, s), s) for c, s in zip(candidates, trial.run(candidates), strict=True)]


def strengthen(selection: ColumnSelection, trial: Trial) -> list[Attempt]:
    """Search a multiplier for each class column greedily: the data term against the smoothness.

    A factor that raises the mean Dice of left-out pairs by `CHOSEN_ERRORS` standard errors is kept while the next
    classes are tried.
    """
    left_out = [p for fold in trial.folds for p in fold.test]
    best, out = selection, []
    current = trial.uniform if selection.gain is None else trial.run([selection])[0]
    for k in trial.w0.classes:
        factors = STRENGTHS[-1:] if trial.smoke else STRENGTHS
        candidates = {f: replace(best, strengths={**best.strengths, k: f}) for f in factors}
        tried = dict(zip(candidates, trial.run(list(candidates.values())), strict=True))

        def judge(factor: float, tried: Mapping[float, PairScores] = tried, now: PairScores = current) -> GateRecord:
            return judge_pairs(gains_over(now, tried[factor], left_out), CHOSEN_ERRORS)

        used, _ = choose(tried, judge, 1.0)
        for factor, candidate in candidates.items():
            scores = tried[factor]
            judged = trial.judged(candidate, scores) if factor == used else replace(candidate, gain=None)
            out.append(trial.attempt(judged, scores, fitted=False))
            if factor == used:
                best, current = judged, scores
    return out


def gains(
    uniform: PairScores, scores: PairScores, shown: Mapping[str, frozenset[int]], classes: Sequence[int]
) -> dict[int, list[float]]:
    """Gain of each class on each left-out pair that shows it; the background's is the mean over the structures."""
    out: dict[int, list[float]] = {c: [] for c in classes}
    for name, after in scores.items():
        before = uniform[name]
        out[0].append(after.mean() - before.mean())
        for c in classes[1:]:
            if c in shown[name]:
                b, a = ({s.label: s.dice_after for s in of.counted} for of in (before, after))
                out[c].append(a[c] - b[c])
    return out
