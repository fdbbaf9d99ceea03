"""What a training says on its way and what it has cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TrainProgress:
    """Where training is, in words."""

    stage: str
    message: str


@dataclass
class Effort:
    """Counts, which are the same wherever a training runs, and seconds, which are not; it also tells progress."""

    tell_progress: Callable[[TrainProgress], None]
    registrations: int = 0
    inferences: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def tell(self, stage: str, message: str) -> None:
        """Say where training is."""
        self.tell_progress(TrainProgress(stage, message))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def text(self) -> str:
        """One line for a person.

        Examples
        --------
        >>> Effort(print, 12, 340, {"tune": 1.25, "learn": 3.0}).text()
        '12 registrations, 340 inferences; tune 1.2 s, learn 3.0 s'
        """
        stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items())
        return f"{self.registrations} registrations, {self.inferences} inferences; {stages}"
