"""Learning of columns from some pairs of a list: reading, memory, threads, and the method asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from regweave.config.settings import Schedule
from regweave.datasets.manifest import PairFiles
from regweave.io.modality import BankName
from regweave.jobs.scoring import mean_over_pairs
from regweave.kernels.threads import in_this_call, kernel_threads
from regweave.learning.columns import Columns, Mapper, Trainer
from regweave.learning.lssvm import Hyper
from regweave.learning.search import search
from regweave.pipeline.memory import forecast
from regweave.pipeline.prepare import start_pair
from regweave.pipeline.reading import read_inputs
from regweave.training.candidates import Trials
from regweave.training.options import TrainOptions
from regweave.training.predictors_by_fold import within
from regweave.training.scan import Survey
from regweave.types import Field, Float64Array, ImagePair, WeightTable


@dataclass(frozen=True)
class LearningStage:
    """Learns columns by the method of the options.

    Parameters
    ----------
    options : TrainOptions
        Method and limits.
    modality : "ct", "mr" or "multi"
        BankName to learn.
    survey : Survey
        Grids of the images, by pair.
    trials : Trials
        Registers for a search; its settings and effort are used by every method.
    workers : int
        Threads.
    """

    options: TrainOptions
    modality: BankName
    survey: Survey
    trials: Trials
    workers: int
    _starts: dict[str, tuple[Float64Array, Field | None]] = field(default_factory=dict)

    @property
    def schedule(self) -> Schedule:
        """Levels and bank."""
        return self.trials.settings.schedule(self.modality)

    def learn(self, w0: WeightTable, pairs: Sequence[PairFiles], hyper: Hyper) -> Columns:
        """Learn from pairs that `sampled` chose; columns keep the start's balance with the smoothness."""
        if self.options.method == "search":
            return self._search(w0, pairs)
        schedule = self.schedule.model_copy(update={"bank": self.schedule.discrete})
        start = w0.select(tuple(m.name for m in schedule.bank))
        with self._parallel() as mapper:
            named = [(p.id, partial(self._load, p)) for p in pairs]
            trainer = Trainer(named, schedule, start, hyper, self.options.levels == "finest", mapper)
            ways = {"lssvm": trainer.per_class, "lssvm-joint": trainer.joint, "global": trainer.whole}
            found = ways[self.options.method]()
        self.trials.effort.registrations += found.n_registrations
        self.trials.effort.inferences += found.n_inferences
        return replace(found, weights=w0.embed(start.balance(found.weights)))

    def sampled(self, pairs: Sequence[PairFiles]) -> list[PairFiles]:
        """Take some pairs at random, as the paper does, where a limit is given or the memory sets one."""
        ordered = sorted(pairs, key=lambda p: p.id)
        limit = np.inf if self.options.method == "search" else self.options.max_memory_mb
        rng = np.random.default_rng(self.options.seed)
        chosen = within([self._sample_mb(p) for p in ordered], limit, rng, self.options.max_pairs)
        if len(chosen) < min(len(ordered), self.options.max_pairs or len(ordered)):
            text = f"{len(chosen)} of {len(ordered)} pairs are learned from: the samples of all exceed {limit:g} MB"
            self.trials.effort.tell("note", text)
        return [ordered[i] for i in chosen]

    def _sample_mb(self, pair: PairFiles) -> float:
        """Memory that the samples of a pair take: float32 costs, loss and shares."""
        seen = self.survey.seen[pair.id]
        sizes = forecast(seen.fixed, seen.moving, self.trials.settings, self.modality, probe=False).sizes
        used = sizes[-1:] if self.options.levels == "finest" else sizes
        columns = 1 + len(self.survey.structures()) if self.options.method == "lssvm-joint" else 1
        displaced = self.schedule.class_at == "displaced" and columns > 1
        per_label = len(self.schedule.discrete) + 1 + (columns if displaced else 0)
        return 4.0 * sum(s.n_nodes * (s.n_labels * per_label + columns) for s in used) / 2**20

    def _search(self, w0: WeightTable, pairs: Sequence[PairFiles]) -> Columns:
        def score(candidates: Sequence[WeightTable]) -> list[float]:
            found = self.trials([(w, pairs) for w in candidates])
            return [mean_over_pairs(scores.values()) for scores in found]

        found = search(score, w0, self.options.budget // len(pairs), self.options.seed)
        curve = [{"number": i, "mean_dice": v} for i, v in enumerate(found.history)]
        return Columns(found.weights, {"search": curve})

    def _load(self, pair: PairFiles) -> ImagePair:
        """Read a pair at its start; images are not kept, but the start is."""
        reading = self.trials.run.reading
        data = read_inputs(pair.fixed, pair.moving, pair.fixed_labels, pair.moving_labels, reading)
        if pair.id not in self._starts:
            found = start_pair(data, self.trials.settings.initial)
            self._starts[pair.id] = (found.initial, found.initial_field)
        affine, start = self._starts[pair.id]
        return ImagePair(data.fixed, data.moving, affine, start)

    @contextmanager
    def _parallel(self) -> Iterator[Mapper]:
        """Threads over pairs and samples, one kernel thread each: the kernels leave Python free."""
        with kernel_threads(1), ThreadPoolExecutor(self.workers) as pool:

            def mapper(function: Callable[..., Any], *values: Iterable[Any]) -> Iterable[Any]:
                return pool.map(in_this_call(function), *values)

            yield mapper
