"""Registrations of candidate weights, and the rule that accepts a candidate by the gain of left-out patients."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from regweave.config.settings import Settings
from regweave.errors import RegweaveError
from regweave.jobs.runner import Method, Runner, mean_over_pairs, pair_score
from regweave.jobs.store import content_hash
from regweave.jobs.table import Fold, PairFiles
from regweave.measures.scores import PairScore
from regweave.measures.statistics import error_by_patient, paired_bootstrap
from regweave.model.model import Model
from regweave.model.record import Gain, GateRecord, Levels, Tuning
from regweave.registration.initial import STRUCTURES
from regweave.training.predictor_fits import Predictors
from regweave.training.state import TrainingLog
from regweave.types import WeightTable

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
