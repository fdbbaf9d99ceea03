"""Counters and timers of the training stages, and progress events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from regweave.config.settings import Settings
from regweave.errors import RegweaveError
from regweave.io.modality import BankName
from regweave.jobs.folds import Fold, split_groups
from regweave.jobs.table import PairFiles
from regweave.progress import TrainProgress
from regweave.run.memory import Cache
from regweave.training.options import TrainOptions

if TYPE_CHECKING:
    from regweave.jobs.runner import Runner
    from regweave.learning.columns import FittedColumns
    from regweave.predictors import Predictor
    from regweave.training.candidates import CandidateRunner, PairScores
    from regweave.training.columns import ColumnSelection
    from regweave.training.refinement_weights import RefinementWeights
    from regweave.training.scan import DatasetScan
    from regweave.types import WeightTable


@dataclass
class TrainingLog:
    """Counters, the same wherever a training runs, and timers, which are not.

    Parameters
    ----------
    tell_progress : callable
        Takes a `TrainProgress`.
    registrations, inferences : int
        Work so far; finished work that was taken from disk or from memory counts.
    seconds, counts : mappings
        By stage.
    """

    tell_progress: Callable[[TrainProgress], None]
    registrations: int = 0
    inferences: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)

    def count(self, registrations: int = 0, inferences: int = 0) -> None:
        """Add work."""
        self.registrations += registrations
        self.inferences += inferences

    def tell(self, stage: str, message: str) -> None:
        """Say where training is."""
        self.tell_progress(TrainProgress(stage, message))

    def finish(self) -> None:
        """Say that training is done, and what each stage has cost."""
        stages = {name: {**self.counts[name], "seconds": seconds} for name, seconds in self.seconds.items()}
        self.tell_progress(TrainProgress("done", self.text(), stages))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time and the counts of the block to a stage."""
        start = time.perf_counter()
        before = {"registrations": self.registrations, "inferences": self.inferences}
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
            known = self.counts.get(name, {})
            self.counts[name] = {key: known.get(key, 0) + getattr(self, key) - n for key, n in before.items()}

    def text(self) -> str:
        """One line for a person.

        Examples
        --------
        >>> TrainingLog(print, 12, 340, {"tune": 1.25, "learn": 3.0}).text()
        '12 registrations, 340 inferences; tune 1.2 s, learn 3.0 s'
        """
        stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items())
        return f"{self.registrations} registrations, {self.inferences} inferences; {stages}"


S = TypeVar("S", bound="Listed")
C = TypeVar("C", bound="Scanned")


@dataclass(frozen=True)
class TrainingContext:
    """Options, log, memory for samples, and threads for learning: what no stage changes."""

    options: TrainOptions
    log: TrainingLog
    kept: Cache
    workers: int = 1

    def folds(self, pairs: Sequence[PairFiles]) -> list[Fold]:
        """Split by patient into as many folds as asked for, or as the patients allow, at least two."""
        if not self.options.gate:
            return []
        for k in range(self.options.folds, 2, -1):
            with suppress(RegweaveError):
                return split_groups(pairs, k, self.options.seed)
        return split_groups(pairs, 2, self.options.seed)


@dataclass(frozen=True)
class Listed:
    """Pairs to train on, settings, and the runner of registrations with its rules of reading.

    Parameters
    ----------
    pairs : tuple of PairFiles
        In the order of their ids.
    settings : Settings
        Settings of the registrations; each stage leaves what it has tuned in them.
    run : Runner
        Runs registrations and keeps them.
    failed : mapping
        Code of the error of each pair that was left out.
    """

    pairs: tuple[PairFiles, ...]
    settings: Settings
    run: Runner
    failed: Mapping[str, str]

    def leave_out(self: S, failed: Mapping[str, str], log: TrainingLog) -> S:
        """Take pairs off the list and say so; the others go on."""
        for name, error in failed.items():
            log.tell("failed", f"pair {name} is left out: {error}")
        # The code alone: messages name files, and a model travels.
        known = {**self.failed, **{name: error.split(":")[0] for name, error in failed.items()}}
        pairs = tuple(p for p in self.pairs if p.id not in known)
        if not pairs:
            raise RegweaveError("E135", f"all {len(known)} training pairs failed", next(iter(failed.values())))
        return replace(self, pairs=pairs, failed=known)

    def then(self, kind: type[S], **more: Any) -> S:
        """Return the next state: all of this one and what a stage has found."""
        return kind(**{**{f.name: getattr(self, f.name) for f in fields(self)}, **more})


@dataclass(frozen=True)
class Scanned(Listed):
    """Contents of the files are known: structures, grids, modality; and which pairs are registered.

    ``judged`` are those that weights are tried, judged and learned with, ``tuning`` those of them that smoothness is
    tuned with, both in the order of their ids. The class predictor learns from all pairs.
    """

    judged: tuple[PairFiles, ...]
    tuning: tuple[PairFiles, ...]
    scan: DatasetScan
    classes: tuple[int, ...]
    skipped: Mapping[str, list[int]]
    modality: BankName

    def leave_out(self: C, failed: Mapping[str, str], log: TrainingLog) -> C:
        """Take pairs off all lists and say so; the others go on."""
        left = super().leave_out(failed, log)
        judged, tuning = (tuple(p for p in of if p.id not in failed) for of in (left.judged, left.tuning))
        if not tuning:
            raise RegweaveError("E135", f"all {len(failed)} training pairs failed", next(iter(failed.values())))
        return replace(left, judged=judged, tuning=tuning)


@dataclass(frozen=True)
class Tuned(Scanned):
    """Both smoothnesses of the uniform bank are tuned.

    ``uniform`` are the scores with them, ``smoothness`` is the record, ``least_smoothness`` the smallest one tried.
    """

    uniform: PairScores
    smoothness: Mapping[str, Any]
    least_smoothness: float


@dataclass(frozen=True)
class Predicted(Tuned):
    """Class predictors are fitted, and candidates can be registered; ``start`` is the uniform bank.

    ``predictor_choice`` is the record of what left-out patients said of the kinds, where they were asked.
    """

    start: WeightTable
    predictor: Predictor | None
    predictor_choice: Mapping[str, Any] | None
    candidates: CandidateRunner


@dataclass(frozen=True)
class Weighed(Predicted):
    """Members of the refinement have their weights."""

    refinement: RefinementWeights


@dataclass(frozen=True)
class Selected(Weighed):
    """Columns are selected by left-out patients; ``trail`` is the record of what was tried."""

    selection: ColumnSelection
    by_fold: Sequence[FittedColumns]
    trail: Sequence[Mapping[str, Any]]
