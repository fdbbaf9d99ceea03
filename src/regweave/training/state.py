"""State of a training, which its stages fill in, its log, and registrations of candidate weights.

A candidate is accepted by the gain of left-out patients.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from regweave.config.settings import Settings
from regweave.errors import RegweaveError
from regweave.io.modality import BankName
from regweave.jobs.runner import Method, Runner, mean_over_pairs, pair_score
from regweave.jobs.table import Fold, PairFiles, split_groups
from regweave.jobs.workers import content_hash
from regweave.measures.scores import PairScore
from regweave.measures.statistics import error_by_patient, paired_bootstrap
from regweave.model.model import Model
from regweave.model.record import Gain, GateRecord, StageCount, Tuning
from regweave.progress import TrainProgress
from regweave.registration.initial import STRUCTURES
from regweave.run.memory import Cache
from regweave.training.options import TrainOptions
from regweave.types import WeightTable

if TYPE_CHECKING:
    from regweave.learning.columns import FittedColumns
    from regweave.model.record import Candidate, Levels, PredictorChoice, SmoothnessRecord
    from regweave.predictors import Predictor
    from regweave.training.columns import ColumnSelection
    from regweave.training.predictor_fits import Predictors
    from regweave.training.refinement import RefinementWeights
    from regweave.training.run import DatasetScan

LATER: Any = None  # value of a part that a later stage sets


@dataclass
class TrainingLog:
    """Messages, counts of work by stage, which do not depend on the machine, and seconds by stage, which do.

    Work that was taken from a cache counts too.
    """

    on_progress: Callable[[TrainProgress], None]
    registrations: int = 0
    inferences: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    counts: dict[str, StageCount] = field(default_factory=dict)

    def count(self, registrations: int = 0, inferences: int = 0) -> None:
        """Add work."""
        self.registrations += registrations
        self.inferences += inferences

    def report(self, stage: str, message: str) -> None:
        """Send a message."""
        self.on_progress(TrainProgress(stage, message))

    def finish(self) -> None:
        """Send the last message, with the cost of each stage."""
        stages = {name: {**dict(self.counts[name]), "seconds": seconds} for name, seconds in self.seconds.items()}
        self.on_progress(TrainProgress("done", self.text(), stages))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time and the counts of the block to a stage."""
        start, registrations, inferences = time.perf_counter(), self.registrations, self.inferences
        try:
            yield
        finally:
            before = self.counts.get(name, StageCount())
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
            self.counts[name] = StageCount(
                registrations=(before.registrations or 0) + self.registrations - registrations,
                inferences=(before.inferences or 0) + self.inferences - inferences,
            )

    def text(self) -> str:
        """Summary in one line."""
        stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items())
        return f"{self.registrations} registrations, {self.inferences} inferences; {stages}"


@dataclass(frozen=True)
class TrainingState:
    """All results of a training so far; each stage returns a copy in which its own parts are set."""

    options: TrainOptions
    log: TrainingLog
    kept: Cache
    workers: int  # options, log, cache of samples and fits, and threads for learning
    pairs: tuple[PairFiles, ...]  # training pairs in the order of their ids; those that fail are removed
    settings: Settings  # settings of the registrations, with the smoothness that was tuned last
    run: Runner  # runs registrations and caches their scores
    failed: Mapping[str, str] = field(default_factory=dict)  # error code of each pair that was removed
    # scan
    tuning: tuple[PairFiles, ...] = ()
    judged: tuple[PairFiles, ...] = ()
    """Pairs that smoothness is tuned with, and pairs that weights are tried, judged and learned with. The class
    predictor learns from all pairs."""
    scan: DatasetScan = LATER
    classes: tuple[int, ...] = ()
    skipped: Mapping[str, list[int]] = field(default_factory=dict)
    modality: BankName = LATER
    """Contents of the files, structures to learn, structures that a pair does not show, and bank of the settings."""
    # tune
    uniform: PairScores = LATER  # scores of the uniform bank with the tuned smoothness
    smoothness: SmoothnessRecord = LATER
    least_smoothness: float = 0.0  # record of the tuning, and the smallest smoothness of the levels that was tried
    # predict_classes
    start: WeightTable = LATER
    predictor: Predictor | None = None
    predictor_choice: PredictorChoice | None = None
    """Class predictor of the model, and the scores of its kind on left-out patients."""
    candidates: CandidateRunner = LATER  # registers pairs with candidate weights
    # weigh_refinement
    refinement: RefinementWeights = LATER  # weights with those of the refinement
    # select_columns
    selection: ColumnSelection = LATER
    by_fold: Sequence[FittedColumns] = ()
    trail: Sequence[Candidate] = ()
    """Use of the learned columns, the columns of each fold, and all selections that were tried."""

    def leave_out(self, failed: Mapping[str, str]) -> TrainingState:
        """Remove pairs that failed, and report them."""
        if not failed:
            return self
        for name, error in failed.items():
            self.log.report("failed", f"pair {name} is left out: {error}")
        # The code alone: messages contain file names, which a model must not.
        known = {**self.failed, **{name: error.split(":")[0] for name, error in failed.items()}}
        pairs, judged, tuning = (
            tuple(p for p in of if p.id not in known) for of in (self.pairs, self.judged, self.tuning)
        )
        if not pairs or (self.tuning and not tuning):
            raise RegweaveError("E135", f"all {len(known)} training pairs failed", next(iter(failed.values())))
        return replace(self, pairs=pairs, judged=judged, tuning=tuning, failed=known)

    def with_settings(self, settings: Settings) -> TrainingState:
        """Return the state with other settings of its registrations."""
        return replace(self, settings=settings, candidates=replace(self.candidates, settings=settings))

    def folds(self) -> list[Fold]:
        """Split the judged pairs by patient: as many folds as wished, or as the patients allow, at least two."""
        if not self.options.gate:
            return []
        for k in range(self.options.folds, 2, -1):
            with suppress(RegweaveError):
                return split_groups(self.judged, k, self.options.seed)
        return split_groups(self.judged, 2, self.options.seed)


T = TypeVar("T", bound=Hashable)
PairScores = Mapping[str, PairScore]  # scores by pair id
STANDARD_ERRORS = 1.0  # standard errors of its mean gain that a learned candidate must exceed
CHOSEN_ERRORS = 2.0
"""Standard errors that the best of several candidates must exceed: the best is chosen by the same pairs."""


def judge_pairs(gains: Sequence[float], wanted: float = STANDARD_ERRORS) -> GateRecord:
    """Accept a candidate by its mean gain in Dice over pairs; gains that are not finite do not count.

    The gain must exceed ``wanted`` of its standard errors, with each pair as an independent observation.
    """
    x = np.asarray(gains, dtype=np.float64)
    x = x[np.isfinite(x)]
    error = float(x.std(ddof=1) / np.sqrt(len(x))) if len(x) > 1 else math.inf
    return _gate(float(x.mean()) if len(x) else math.nan, error, len(x), wanted)


def judge_patients(gains: Sequence[float], pairs: Sequence[PairFiles], wanted: float = STANDARD_ERRORS) -> GateRecord:
    """Accept a candidate as `judge_pairs` does, with each patient as an independent observation."""
    error = error_by_patient(gains, [p.patients for p in pairs])
    return _gate(float(np.mean(gains)), error, len(gains), wanted)


def _gate(gain: float, error: float, n: int, wanted: float) -> GateRecord:
    return GateRecord(gain=gain, standard_error=error, n=n, used=n > 1 and gain > wanted * error)


def choose(tried: Mapping[T, PairScores], judge: Callable[[T], GateRecord], current: T) -> tuple[T, GateRecord]:
    """Take the candidate with the largest mean Dice if its gate is open, else the current one; of equals the first.

    ``tried`` has the scores of left-out pairs by candidate, ``judge`` returns the gate of a candidate. The current one
    wins a tie, and need not be among those that were tried.
    """
    best = max(tried, key=lambda c: (overall(tried[c]), c == current))
    gate = judge(best)
    return (best if gate.used else current), gate


def overall(scores: PairScores, pairs: Iterable[str] | None = None) -> float:
    """Mean Dice over pairs, by default all that have scores."""
    return mean_over_pairs(scores[name] for name in (scores if pairs is None else pairs))


def gains_over(before: PairScores, after: PairScores, pairs: Iterable[PairFiles]) -> list[float]:
    """Gain in mean Dice of each of some pairs."""
    return [after[p.id].mean() - before[p.id].mean() for p in pairs]


def gain_interval(before: PairScores, after: PairScores, folds: Sequence[Fold]) -> Gain:
    """Gain in mean Dice over all left-out pairs, with a 95 % interval by patient."""
    left_out = [pair for fold in folds for pair in fold.test]
    differences = gains_over(before, after, left_out)
    interval = paired_bootstrap(differences, [p.group for p in left_out])
    return Gain(mean=interval.mean, low=interval.low, high=interval.high, n=len(differences))


def tuning_record(best: float, curve: Mapping[float, float]) -> Tuning:
    """Return the record of a line search: the value taken, and the mean Dice of each value."""
    points = tuple({"smoothness": value, "mean_dice": dice} for value, dice in curve.items())
    return Tuning(smoothness=best, curve=points, mean_dice=curve[best])


@dataclass(frozen=True)
class CandidateRunner:
    """Registrations of pairs with candidate weights; each combination is registered once.

    ``predictors`` segment the images of a pair, for weights that need it, without training on its patients.
    """

    run: Runner
    settings: Settings
    levels: Levels
    log: TrainingLog
    predictors: Predictors
    drawn: tuple[float, int] | None = None  # error in mm and seed of contours that guide; None for no guides
    _known: dict[str, PairScore] = field(default_factory=dict, compare=False)

    def __call__(
        self,
        work: Sequence[tuple[WeightTable, Sequence[PairFiles]]],
        *,
        predicted: bool = False,
        any_fail: bool = False,
    ) -> list[PairScores]:
        """Register pairs with weights; with ``predicted`` their moving labels are not used.

        Raises E135 with the pairs that failed; with ``any_fail`` they are reported, and have no scores.
        """
        keyed: list[list[tuple[str, Method, PairFiles]]] = []
        for weights, pairs in work:
            keyed.append([])
            for p in pairs:
                model = self.model(weights, p)
                key = f"try/{content_hash(model)}/{p.id}" + "/predicted" * predicted + "/guided" * bool(self.drawn)
                method = Method("try", self.settings, tried=model, predicted=predicted, drawn=self.drawn)
                keyed[-1].append((key, method, p))
        todo = {key: (key, m, p) for row in keyed for key, m, p in row if key not in self._known}
        outcomes = self.run(list(todo.values()), dice_only=True) if todo else []
        self.log.count(registrations=len(todo))
        failed = {todo[o.key][2].id: o.error for o in outcomes if o.error is not None}
        listed = "; ".join(f"{name}: {error}" for name, error in sorted(failed.items()))
        if failed and not any_fail:
            raise RegweaveError("E135", f"training pairs failed: {listed}", "repair them or take them off the list")
        if failed:
            self.log.report("note", f"pairs are left out here: {listed}")
        self._known.update({o.key: pair_score(o.value) for o in outcomes if o.error is None})
        return [{p.id: self._known[key] for key, _, p in row if key in self._known} for row in keyed]

    def left_out(
        self, folds: Sequence[Fold], models: Sequence[Sequence[WeightTable]], *, predicted: bool = False
    ) -> list[PairScores]:
        """Register the left-out pairs of each fold with its own weights; one set of scores for each set of models."""
        work = [(w, fold.test) for of_folds in models for w, fold in zip(of_folds, folds, strict=True)]
        found = iter(self(work, predicted=predicted))
        return [{name: score for _ in folds for name, score in next(found).items()} for _ in models]

    def model(self, weights: WeightTable, pair: PairFiles) -> Model:
        """Return the model that registers a pair: the weights, with the predictor that they need for it."""
        schedule = self.settings.for_bank(self.settings.modality)  # type: ignore[arg-type]
        needed = schedule.compares_maps(weights) or self.settings.initial == STRUCTURES
        predictor = self.predictors.without(pair) if needed else None
        return Model(
            weights, self.settings, self.settings.modality,  # type: ignore[arg-type]
            levels=self.levels, predictor=predictor,
        )  # fmt: skip
