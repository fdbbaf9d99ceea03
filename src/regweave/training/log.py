"""Progress messages and effort counters of a training."""

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
class Effort:
    """Counters and timers of the training stages; also emits progress messages."""

    tell_progress: Callable[[TrainProgress], None]
    registrations: int = 0
    inferences: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)

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
        >>> Effort(print, 12, 340, {"tune": 1.25, "learn": 3.0}).text()
        '12 registrations, 340 inferences; tune 1.2 s, learn 3.0 s'
        """
        stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items())
        return f"{self.registrations} registrations, {self.inferences} inferences; {stages}"
