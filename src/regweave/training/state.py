"""State of a training, which its stages fill in, and its log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from regweave.config.settings import Settings
from regweave.errors import RegweaveError
from regweave.io.modality import BankName
from regweave.jobs.table import Fold, PairFiles, split_groups
from regweave.model.record import Candidate, PredictorChoice, SmoothnessRecord, StageCount
from regweave.progress import TrainProgress
from regweave.run.memory import Cache
from regweave.training.options import TrainOptions

if TYPE_CHECKING:
    from regweave.jobs.runner import Runner
    from regweave.learning.columns import FittedColumns
    from regweave.predictors import Predictor
    from regweave.training.candidates import CandidateRunner, PairScores
    from regweave.training.columns import ColumnSelection
    from regweave.training.refinement import RefinementWeights
    from regweave.training.run import DatasetScan
    from regweave.types import WeightTable

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
