"""Registrations of a list of pairs by several methods: the task of a worker, and what runs the tasks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from regweave import notices
from regweave.config.settings import Settings
from regweave.io import image_sha256
from regweave.io.disk.files import peak_memory_mb
from regweave.io.disk.records import Measured, RecordPart, Text
from regweave.jobs.store import run_tasks, worker_count
from regweave.jobs.workers import LANES, Cluster, Outcome, Placement, Team
from regweave.measures.deformation import InverseError, Regularity
from regweave.measures.likeness import Likeness
from regweave.measures.scores import PairScore
from regweave.measures.verdict import Rules, Verdict, judge
from regweave.model.model import Model
from regweave.progress import OnBatchProgress
from regweave.run.job import Job
from regweave.run.memory import Cache, spare_memory_mb
from regweave.run.read import Reading
from regweave.run.register import run, score_trial

if TYPE_CHECKING:
    from regweave.jobs.methods import Method
    from regweave.jobs.table import PairFiles


PROCESS = Path("/proc/self")


@dataclass(frozen=True)
class ScoringTask:
    """One pair, one method: the arguments of `score_pair` and `score_dice`."""

    files: Mapping[str, Any]
    sha256: Mapping[str, str]  # hash of each file, by column: a changed file is another task
    reading: Reading
    settings: Settings
    model: tuple[Path, str] | Model | None = None
    """Model file with its hash, or a model that is only tried; its settings are those of the task."""
    predict_classes: bool = False
    """Let the model's class predictor choose the weights; the moving labels are for scoring alone."""
    device: str = "cpu"

    @property
    def cache_key(self) -> str:
        """Content of the pair: tasks with the same key share what they cache."""
        return " ".join(f"{name}={digest}" for name, digest in sorted(self.sha256.items()))


class PairNumbers(RecordPart):
    """Scores of one pair with one method, as ``results.json`` holds them; NaN where nothing could be measured."""

    score: PairScore = Field(alias="structures")
    seconds: Measured = math.nan
    peak_mb: Measured = math.nan
    regularity: Regularity = Field(default_factory=dict, validate_default=True)
    inverse_error: InverseError | None = None
    likeness: Likeness | None = None
    smoothness: Measured = math.nan
    modality: Text = ""
    warnings: tuple[Text, ...] = ()
    device: Text = "cpu"

    def values(self, name: str) -> list[float]:
        """Return a number of the pair, or of each of its structures."""
        if name in self.regularity:
            return [self.regularity[name]]
        own = name in type(self).model_fields
        return [getattr(self, name)] if own else [getattr(s, name) for s in self.score.structures]


def judge_pair(numbers: PairNumbers, rules: Rules) -> Verdict:
    """Apply acceptance criteria to a pair."""
    return judge(
        numbers.score, rules, regularity=numbers.regularity, inverse_error=numbers.inverse_error,
        warnings=numbers.warnings, likeness=numbers.likeness,
    )  # fmt: skip


def score_pair(task: ScoringTask) -> dict[str, Any]:
    """Register one pair with one thread; return all that an evaluation reports, `PairNumbers` as JSON values."""
    forget_peak()
    model = task.model[0] if isinstance(task.model, tuple) else task.model
    with notices.muted():  # they are in the result, and many workers would print at once
        job = Job(
            **task.files, **vars(task.reading), config=None if model is not None else task.settings, model=model,
            predict_classes=task.predict_classes, threads=1, device=task.device,
        )  # fmt: skip
        result = run(job, keep_view=False)
    return PairNumbers(
        structures=result.with_surfaces, seconds=sum(result.seconds.values()), peak_mb=measured_peak_mb(),
        regularity=result.regularity, inverse_error=result.inverse_error, likeness=result.likeness,
        smoothness=result.weights.pairwise, modality=result.provenance.modality.bank, warnings=result.warnings,
        device=result.provenance.device,
    ).content()  # fmt: skip


@cache
def kept() -> Cache:
    """Return what this process keeps of the pairs that it has registered."""
    return Cache(spare_memory_mb())


def score_dice(task: ScoringTask) -> dict[str, Any]:
    """Register one pair and measure the overlap of its structures, with what this process keeps of the pair.

    Return ``structures`` of `score_pair`, without the distances of surfaces.
    """
    model = kept()(task.model, partial(Model.load, task.model[0])) if isinstance(task.model, tuple) else task.model
    job = Job(
        **task.files, **vars(task.reading), config=task.settings, model=model, predict_classes=task.predict_classes,
        device=task.device,
    )  # fmt: skip
    with notices.muted():
        return {"structures": score_trial(job, kept(), task.cache_key).rows()}


def pair_score(scores: Mapping[str, Any]) -> PairScore:
    """Return the scores of the structures that `score_pair` found."""
    return PairScore.model_validate(scores["structures"])


def mean_over_pairs(scores: Iterable[PairScore]) -> float:
    """Return the mean of the mean Dice of pairs, without pairs that share no structure; NaN for none."""
    values = [v for s in scores if not math.isnan(v := s.mean())]
    return float(np.mean(values)) if values else math.nan


def forget_peak() -> None:
    """Start a new peak where the system can (Linux), so that a worker's task does not inherit the one before."""
    with suppress(OSError):
        (PROCESS / "clear_refs").write_text("5", encoding="ascii")


def measured_peak_mb() -> float:
    """Peak of the current program; ``getrusage`` includes that of the process which started it."""
    with suppress(OSError):
        found = re.search(r"^VmHWM:\s*(\d+) kB", (PROCESS / "status").read_text(encoding="ascii"), re.MULTILINE)
        if found:
            return int(found[1]) / 2**10
    return peak_memory_mb()


class Runner:
    """Executor of (key, method, pair) triples; hashes each file once, and keeps its processes until it is closed.

    ``team`` are the processes, for other tasks on the same pairs; None on a cluster. Where nothing but overlaps is
    measured and a GPU registers, threads of this process share it: they fill it, and little is left for Python to do.
    """

    def __init__(
        self, reading: Reading, workers: int | None, scheduler: str | Cluster | None, store: Path,
        on_progress: OnBatchProgress | None, placement: Placement | None = None,
    ) -> None:  # fmt: skip
        self.reading, self._scheduler, self.placement = reading, scheduler, placement or Placement()
        gpus, n = self.placement.gpus, worker_count(workers, scheduler)
        self.team = None if scheduler is not None else Team(n, gpus)
        lanes = workers or max(1, min(n, LANES * len(gpus)))  # threads that register on the GPUs at once
        self._lanes = Team(lanes, gpus, threads=True) if gpus else self.team
        self.store, self._on_progress = store, on_progress  # the folder in which finished work is kept
        self._known: dict[Path, str] = {}

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *error: object) -> None:
        for team in filter(None, (self.team, self._lanes)):
            team.__exit__(*error)

    def reading_by(self, reading: Reading) -> Runner:
        """Return a runner that reads files under other rules, with the same processes and store."""
        other = copy(self)
        other.reading = reading
        return other

    def hashes(self, pair: PairFiles) -> dict[str, str]:
        """SHA-256 of each file of a pair, by column."""
        for path in pair.files.values():
            if path not in self._known:
                self._known[path] = image_sha256(path, follow_links=self.reading.follow_links)
        return {name: self._known[path] for name, path in pair.files.items()}

    def __call__(self, plan: Sequence[tuple[str, Method, PairFiles]], *, dice_only: bool = False) -> list[Outcome]:
        """Run each triple; an outcome for each, in order. With ``dice_only``, nothing but overlaps is measured."""
        # Paths of the reading are absolute: a worker may be anywhere.
        reading, device = Reading.from_json(self.reading.to_json()), self.placement.word
        tasks = [
            (key, ScoringTask(p.files, self.hashes(p), reading, m.settings, m.tried or m.model, m.predicted, device))
            for key, m, p in plan
        ]
        return run_tasks(
            tasks, score_dice if dice_only else score_pair, workers=self._lanes if dice_only else self.team,
            scheduler=self._scheduler, store=self.store, on_progress=self._on_progress,
        )  # fmt: skip
