"""Learner of columns from pairs on disk: memory, threads, and the method asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from regweave.config.settings import Schedule, Settings
from regweave.datasets.manifest import PairFiles
from regweave.jobs.kept import Kept
from regweave.kernels.threads import in_this_call, kernel_threads
from regweave.learning.columns import FittedColumns, Mapper, Trainer
from regweave.learning.options import LssvmOptions
from regweave.registration.initial import STRUCTURES
from regweave.registration.starts.structures import started_from_structures
from regweave.run.memory import forecast
from regweave.run.prepare import start_pair
from regweave.run.reading import read_inputs
from regweave.run.recipe import with_structure_maps
from regweave.training.candidates import CandidateRunner
from regweave.training.log import TrainingLog
from regweave.training.options import TrainOptions
from regweave.training.predictor_fits import within
from regweave.training.scan import DatasetScan
from regweave.training.state import Predicted, TrainingContext
from regweave.types import ImagePair, WeightTable


@dataclass(frozen=True)
class ColumnLearner:
    """Learner of columns by the method of the options.

    Parameters
    ----------
    options : TrainOptions
        Method and limits.
    schedule : Schedule
        Levels and bank.
    scan : DatasetScan
        Grids of the images, by pair.
    candidates : CandidateRunner
        Its settings, predictors and rules of reading are those of the registrations.
    log : TrainingLog
        Counts the work.
    kept : Kept
        Samples of the pairs: those along the trajectory of the start serve every fold and all hyper-parameters.
    workers : int
        Threads.
    load : callable, optional
        Returns a pair as it is to be learned from; without it pairs are read at their start.
    mark : str
        Tells samples of pairs that are loaded otherwise from those of the start.
    """

    options: TrainOptions
    schedule: Schedule
    scan: DatasetScan
    candidates: CandidateRunner
    log: TrainingLog
    kept: Kept
    workers: int
    load: Callable[[PairFiles], ImagePair] | None = None
    mark: str = ""

    @classmethod
    def of(cls, context: TrainingContext, state: Predicted) -> ColumnLearner:
        """Return the learner of a training."""
        return cls(
            context.options, state.settings.schedule(state.modality), state.scan, state.candidates, context.log,
            context.kept, context.workers,
        )  # fmt: skip

    @property
    def settings(self) -> Settings:
        """Settings of the registrations."""
        return self.candidates.settings

    def learn(self, w0: WeightTable, pairs: Sequence[PairFiles], options: LssvmOptions) -> FittedColumns:
        """Learn from pairs that `sampled` chose; columns keep the start's balance with the smoothness."""
        schedule = self.schedule.for_levels()
        start = w0.select(tuple(m.name for m in schedule.bank))
        with self._parallel() as mapper:
            mark = self.mark + ("/laid" if self.settings.initial == STRUCTURES else "")
            named = [(p.id + mark, partial(self.load or self._load, p)) for p in pairs]
            finest, device = self.options.levels == "finest", self.candidates.run.placement.word
            trainer = Trainer(named, schedule, start, options, finest, mapper, self.kept, device)
            ways = {"lssvm": trainer.per_class, "lssvm-joint": trainer.joint, "global": trainer.fit_global}
            found = ways[self.options.method]()
        self.log.count(found.n_registrations, found.n_inferences)
        return replace(found, weights=w0.embed(start.balance(found.weights)))

    def sampled(self, pairs: Sequence[PairFiles]) -> list[PairFiles]:
        """Take some pairs at random, as the paper does, where a limit is given or the memory sets one."""
        ordered = sorted(pairs, key=lambda p: p.id)
        limit = self.options.max_memory_mb
        rng = np.random.default_rng(self.options.seed)
        chosen = within([self._sample_mb(p) for p in ordered], limit, rng, self.options.max_pairs)
        if len(chosen) < min(len(ordered), self.options.max_pairs or len(ordered)):
            text = f"{len(chosen)} of {len(ordered)} pairs are learned from: the samples of all exceed {limit:g} MB"
            self.log.tell("note", text)
        return [ordered[i] for i in chosen]

    def _sample_mb(self, pair: PairFiles) -> float:
        """Memory that the samples of a pair take: float32 costs, loss and shares."""
        grids = self.scan.contents[pair.id]
        sizes = forecast(grids.fixed, grids.moving, self.settings, self.schedule.modality, probe=False).sizes
        used = sizes[-1:] if self.options.levels == "finest" else sizes
        columns = 1 + len(self.scan.structures()) if self.options.method == "lssvm-joint" else 1
        displaced = self.schedule.class_at == "displaced" and columns > 1
        per_label = len(self.schedule.for_levels().bank) + 1 + (columns if displaced else 0)
        return 4.0 * sum(s.n_nodes * (s.n_labels * per_label + columns) for s in used) / 2**20

    def _load(self, pair: PairFiles) -> ImagePair:
        """Read a pair at its start."""
        reading = self.candidates.run.reading
        data = read_inputs(**pair.files, reading=reading)
        started = start_pair(data, self.settings.initial)
        if self.settings.initial != STRUCTURES:
            return started
        predictor = self.candidates.predictors.without(pair)
        assert predictor is not None  # that start was judged with it
        laid = started_from_structures(with_structure_maps(started, predictor))
        return replace(started, initial=laid.initial, initial_field=laid.initial_field)

    @contextmanager
    def _parallel(self) -> Iterator[Mapper]:
        """Threads over pairs and samples, one kernel thread each: the kernels leave Python free."""
        with kernel_threads(1), ThreadPoolExecutor(self.workers) as pool:

            def mapper(function: Callable[..., Any], *values: Iterable[Any]) -> Iterable[Any]:
                return pool.map(in_this_call(function), *values)

            yield mapper
