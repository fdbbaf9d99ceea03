"""Counters and timers of the training stages, and progress events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TrainProgress:
    """Message of a training in progress; the last one brings what each stage has cost."""

    stage: str
    message: str
    stages: Mapping[str, Mapping[str, float]] | None = None


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
