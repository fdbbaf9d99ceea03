"""Stages of a propagation, and the share of the work that is done."""

from __future__ import annotations

import time
from collections.abc import Callable

from regweave.progress import Progress

STAGES = {
    "series": ("reading the series", 0.05),
    "start": ("patient and start", 0.28),
    "register": ("registration", 0.37),
    "contours": ("contours and their numbers", 0.18),
    "files": ("files and page", 0.12),
}
"""Stages of a propagation, their names for users and their shares of the time."""
OnStage = Callable[[str, str, float], None]
"""Told the stage, what is being done, and the share of the work that is done."""


class Teller:
    """Progress of a propagation: its stages and the registration's own steps as one fraction."""

    def __init__(self, on_stage: OnStage | None) -> None:
        self._tell, self._stage, self._words = on_stage, "", ""
        self.part, self.parts = 0, 1
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def _before(self, stage: str) -> float:
        names = list(STAGES)
        return sum(STAGES[name][1] for name in names[: names.index(stage)])

    def begin(self, stage: str) -> None:
        """Say that a stage begins."""
        self.end()
        self._stage, self._words = stage, STAGES[stage][0]
        self.inside("", 0.0)

    def end(self) -> None:
        """Add the seconds of the present stage, which ends."""
        if self._stage:
            now = time.perf_counter()
            self.seconds[self._stage], self._since = now - self._since, now

    def inside(self, detail: str, share: float) -> None:
        """Say how much of the present stage is done."""
        if self._tell is not None:
            text = f"{self._words}: {detail}" if detail else self._words
            self._tell(self._stage, text, self._before(self._stage) + share * STAGES[self._stage][1])

    def step(self, progress: Progress) -> None:
        """Take a step of the registration."""
        if progress.stage != "begin":
            counted = f"{progress.done}/{progress.total}" if progress.total else progress.message
            words = f"{counted} of {self.part + 1}/{self.parts}" if self.parts > 1 else counted
            self.inside(words, (self.part + progress.fraction) / self.parts)
