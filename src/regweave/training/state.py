"""Frozen states that a training passes through, each with all that the ones before it knew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from regweave.config.settings import Settings
from regweave.datasets.folds import Fold, split_groups
from regweave.datasets.manifest import PairFiles
from regweave.errors import RegweaveError
from regweave.io.modality import BankName
from regweave.jobs.kept import Kept
from regweave.jobs.runner import Runner
from regweave.learning.columns import FittedColumns
from regweave.predictors import Predictor
from regweave.training.candidates import CandidateRunner, PairScores
from regweave.training.columns.selection import ColumnSelection
from regweave.training.log import TrainingLog
from regweave.training.options import TrainOptions
from regweave.training.refinement.members import RefinementWeights
from regweave.training.scan import DatasetScan
from regweave.types import WeightTable

S = TypeVar("S", bound="Listed")
C = TypeVar("C", bound="Scanned")


@dataclass(frozen=True)
class TrainingContext:
    """Options, log, memory for samples, and threads for learning: what no stage changes."""

    options: TrainOptions
    log: TrainingLog
    kept: Kept
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
