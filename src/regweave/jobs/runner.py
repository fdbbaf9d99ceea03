"""Registrations of a list of pairs by several methods, on processes or a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regweave.datasets.manifest import FILES, PairFiles
from regweave.io import image_sha256
from regweave.jobs.cluster import Cluster
from regweave.jobs.methods import Method
from regweave.jobs.scoring import score_pair, scoring_task
from regweave.jobs.store import OnBatchProgress, Outcome, run_tasks
from regweave.pipeline.reading import Reading

UNUSED = ("learning", "training", "study")
"""Folders that no registration runs through."""


class Runner:
    """Runs (key, method, pair) triples; hashes each file once."""

    def __init__(
        self,
        reading: Reading,
        workers: int | None,
        scheduler: str | Cluster | None,
        store: Path,
        on_progress: OnBatchProgress | None,
    ) -> None:
        self.reading, self._workers, self._scheduler = reading, workers, scheduler
        self._store, self._on_progress = store, on_progress
        self._known: dict[Path, str] = {}

    def hashes(self, pair: PairFiles) -> dict[str, str]:
        """SHA-256 of each file of a pair, by column."""
        for path in (getattr(pair, name) for name in FILES):
            if path not in self._known:
                self._known[path] = image_sha256(path, follow_links=self.reading.follow_links)
        return {name: self._known[getattr(pair, name)] for name in FILES}

    def __call__(self, plan: Sequence[tuple[str, Method, PairFiles]], *, surfaces: bool = True) -> list[Outcome]:
        """Run each triple; an outcome for each, in order."""
        tasks = []
        for key, method, pair in plan:
            settings = None if method.model is not None else method.settings
            task = scoring_task(
                pair, self.hashes(pair), settings, method.model, self.reading,
                surfaces=surfaces, predict_classes=method.predicted,
            )  # fmt: skip
            tasks.append((key, task))
        return run_tasks(
            tasks, score_pair, workers=self._workers, scheduler=self._scheduler, store=self._store,
            unused=UNUSED, on_progress=self._on_progress,
        )  # fmt: skip
