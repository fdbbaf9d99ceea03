"""Registrations of a list of pairs by several methods, on processes or a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from pathlib import Path

from regweave.datasets.manifest import PairFiles
from regweave.io import image_sha256
from regweave.jobs.cluster import Cluster
from regweave.jobs.methods import Method
from regweave.jobs.placement import Placement
from regweave.jobs.program import UNUSED
from regweave.jobs.scoring import ScoringTask, score_dice, score_pair
from regweave.jobs.store import OnBatchProgress, Outcome, run_tasks, worker_count
from regweave.jobs.workers import Team
from regweave.run.reading import Reading


class Runner:
    """Executor of (key, method, pair) triples; hashes each file once, and keeps its processes until it is closed.

    ``team`` are the processes, for other tasks on the same pairs; None on a cluster. Where nothing but overlaps is
    measured and a GPU registers, threads of this process share it: they fill it, and little is left for Python to do.
    """

    def __init__(
        self,
        reading: Reading,
        workers: int | None,
        scheduler: str | Cluster | None,
        store: Path,
        on_progress: OnBatchProgress | None,
        placement: Placement | None = None,
    ) -> None:
        self.reading, self._scheduler, self.placement = reading, scheduler, placement or Placement()
        gpus, n = self.placement.gpus, worker_count(workers, scheduler)
        self.team = None if scheduler is not None else Team(n, gpus)
        self._lanes = Team(self.placement.lanes(workers, n), gpus, threads=True) if gpus else self.team
        self._store, self._on_progress = store, on_progress
        self._known: dict[Path, str] = {}

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *error: object) -> None:
        for team in filter(None, (self.team, self._lanes)):
            team.__exit__(*error)

    @property
    def store(self) -> Path:
        """Folder in which finished work is kept."""
        return self._store

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
        tasks = [(key, self._task(method, pair)) for key, method, pair in plan]
        return run_tasks(
            tasks, score_dice if dice_only else score_pair, workers=self._lanes if dice_only else self.team,
            scheduler=self._scheduler, store=self._store, unused=UNUSED, on_progress=self._on_progress,
        )  # fmt: skip

    def _task(self, method: Method, pair: PairFiles) -> ScoringTask:
        files = pair.files
        reading = Reading.from_json(self.reading.to_json())  # its paths absolute: a worker may be anywhere
        return ScoringTask(
            files, self.hashes(pair), reading, method.settings, method.tried or method.model, method.predicted,
            self.placement.word,
        )  # fmt: skip
