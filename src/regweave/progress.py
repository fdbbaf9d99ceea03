"""Progress of registrations, batches and trainings: the events, and the bars that show them on standard error."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from regweave.run.memory import Plan


STAGES = {
    "read": "reading",
    "initial": "initial alignment",
    "classes": "structures",
    "levels": "levels",
    "refine": "refinement",
    "outputs": "inverse and warped images",
    "measure": "measurements",
    "check": "check",
}
"""Stages of a registration, in their order, and their names for users."""


@dataclass(frozen=True)
class Progress:
    """Position of a run in its stages.

    Parameters
    ----------
    stage : str
        One of `STAGES`; ``begin`` once, when it is known what runs.
    done, total : int
        Steps of the levels and of the refinement; the total is 0 before it is known.
    message : str
        The stage that begins, or what the last step was.
    fraction : float
        Share of the forecast work that is done, 0 to 1.
    """

    stage: str
    done: int
    total: int
    message: str
    fraction: float = 0.0


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class BatchProgress:
    """Progress of a batch, the task that ended last, and the seconds until all are done, NaN before the first."""

    done: int
    total: int
    failed: int
    key: str
    seconds_left: float


OnBatchProgress = Callable[[BatchProgress], None]


@dataclass(frozen=True)
class TrainProgress:
    """Message of a training in progress; the last one brings what each stage has cost."""

    stage: str
    message: str
    stages: Mapping[str, Mapping[str, float]] | None = None


class ProgressReporter:
    """Progress of one registration: its stages with their seconds, its steps weighted by the forecast of their work.

    Time between two stages counts for the later one, so that ``seconds`` add up to the time of the run.
    """

    def __init__(self, on_progress: OnProgress | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._on_progress, self._since = on_progress, time.perf_counter()
        self._done, self._total = 0, 0
        self._shares: list[float] = []
        self._stage = ""

    def forecast(self, plan: Plan) -> None:
        """Take the number of the steps, and the work of each of them and of what follows."""
        steps = [size.work / size.steps for size in plan.sizes for _ in range(size.steps)]
        steps += [plan.refine_work / max(plan.refine_steps, 1)] * plan.refine_steps
        self._total = len(steps)
        self._shares = [*steps, plan.outputs_work / 3, 2 * plan.outputs_work / 3]

    def report(self, message: str, stage: str | None = None) -> None:
        """Report a message; ``begin`` is the stage of the line that names the run."""
        counted = self._done + (self._stage == "measure")
        fraction = sum(self._shares[:counted]) / (sum(self._shares) or 1.0)
        if self._on_progress is not None:
            self._on_progress(Progress(stage or self._stage, self._done, self._total, message, fraction))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Report a stage, and time it."""
        self._stage = name
        self.report(STAGES[name])
        yield
        now = time.perf_counter()
        self.seconds[name], self._since = now - self._since, now

    def step(self, message: str) -> None:
        """Report a step of the levels or of the refinement."""
        self._done += 1
        self.report(message)


BAR = 20  # characters of the bar
WIDTH = 79
BEFORE_FILES = 0.8  # share of a command's time that the registration takes; the rest goes to files and page
LEAST_S = 0.05  # seconds of a stage that a log mentions
EVERY = 20  # registrations of a training between two lines of a log
EVERY_S = 0.1  # seconds between two drawings


class Bar:
    """One line that is drawn again and again, and wiped at the end.

    With ``lines``, each message that has a line for a log is printed where standard error is neither a terminal nor a
    notebook; otherwise nothing is shown there.
    """

    def __init__(self, *, lines: bool = False, shown: bool = True) -> None:
        stream = sys.stderr
        self._in_notebook = shown and in_notebook()
        self._drawn = shown and (self._in_notebook or (stream is not None and stream.isatty()))
        self._cell: Any = None
        self._said = ""
        self._lines = shown and lines and not self._drawn
        self._began, self._last = time.monotonic(), -math.inf
        self._wide = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._put(f"{self._said}{duration(time.monotonic() - self._began)}" if self._in_notebook else "")

    def draw(self, fraction: float, text: str, *, line: str | None = None) -> None:
        """Show how far the work is, 0 to 1 or NaN, and what is being done; ``line`` is for a log."""
        if self._lines and line is not None:
            self.say(line)
        now = time.monotonic()
        if not self._drawn or (now - self._last < EVERY_S and fraction < 1):
            return
        self._last = now
        share = 0.0 if math.isnan(fraction) else min(max(fraction, 0.0), 1.0)
        filled = round(BAR * share)
        head = f"{'━' * filled}{'╌' * (BAR - filled)} {share:4.0%} {duration(now - self._began)} "
        room = min(WIDTH, shutil.get_terminal_size().columns - 1) - len(head)
        self._put(self._said * self._in_notebook + head + text[: max(room, 0)])

    def say(self, text: str) -> None:
        """Print a separate line above the bar, in a terminal and in a log; in a notebook, before the bar."""
        if self._in_notebook:
            self._said = f"{text} · "
        elif self._drawn or self._lines:
            self._put("")
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def _put(self, text: str) -> None:
        if self._in_notebook:  # one output of the cell, replaced each time: a saved notebook keeps the last
            content = {"text/plain": text}
            if self._cell is None:
                self._cell = import_module("IPython.display").display(content, raw=True, display_id=True)
            else:
                self._cell.update(content, raw=True)
            return
        if text or self._wide:  # no text wipes the line
            sys.stderr.write(f"\r{text:<{self._wide}}" + ("" if text else "\r"))
            sys.stderr.flush()
            self._wide = len(text)


class BatchBar(Bar):
    """Progress of many registrations, with failures and the time that is left."""

    def __call__(self, progress: BatchProgress) -> None:
        """Take the end of a task."""
        left = "" if math.isnan(progress.seconds_left) else f", {duration(progress.seconds_left)} left"
        failed = f", {progress.failed} failed" if progress.failed else ""
        key = progress.key or "taken from the earlier run"
        counted = f"{progress.done}/{progress.total}"
        fraction = progress.done / max(progress.total, 1)
        self.draw(fraction, f"{counted}{failed}{left}  {key}", line=f"[{counted}] {key}{failed}{left}")


class TrainingBar(Bar):
    """Progress of a training: its stages, and how many registrations of the stage are done.

    At the end ``stages`` has the work and the seconds of each stage.
    """

    def __init__(self, *, lines: bool = False, shown: bool = True) -> None:
        super().__init__(lines=lines, shown=shown)
        self._stage = ""
        self.stages: Mapping[str, Mapping[str, float]] = {}

    def __call__(self, progress: TrainProgress | BatchProgress) -> None:
        """Take the begin of a stage, or the end of a registration."""
        if isinstance(progress, TrainProgress):
            self.stages = progress.stages or self.stages
            self._stage = progress.stage
            self.say(f"{progress.stage}: {progress.message}")
            return
        left = "" if math.isnan(progress.seconds_left) else f", {progress.seconds_left:.0f} s left"
        text = f"{progress.done}/{progress.total} registrations{left}"
        due = progress.done == progress.total or progress.done % EVERY == 0
        fraction = progress.done / max(progress.total, 1)
        self.draw(fraction, f"{self._stage} {text}", line=f"  {text}" if due else None)


def duration(seconds: float) -> str:
    """Return seconds as minutes and seconds, with hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class StagedBar(Bar):
    """Progress of a work in stages, each with its seconds, such as a registration.

    Where a registration ``writes`` files, it is a part of the bar.
    """

    def __init__(self, *, lines: bool = False, shown: bool = True, writes: bool = False) -> None:
        super().__init__(lines=lines, shown=shown)
        self._stage, self._words, self._since = "", "", time.monotonic()
        self._part = BEFORE_FILES if writes else 1.0

    def __call__(self, progress: Progress) -> None:
        """Take a step of a registration."""
        if progress.stage == "begin":
            self.say(progress.message)
            return
        inside = progress.stage == self._stage
        words = f"{STAGES[progress.stage]} {progress.done}/{progress.total}" if inside else progress.message
        self.stage(progress.stage, words, self._part * progress.fraction)

    def stage(self, name: str, words: str, fraction: float) -> None:
        """Draw a stage, or begin it; a log has the seconds of the one before."""
        if name != self._stage:
            seconds = time.monotonic() - self._since
            if self._stage and self._lines and seconds >= LEAST_S:
                self.say(f"{self._words:<27}{seconds:6.1f} s")
            self._stage, self._words, self._since = name, words, time.monotonic()
        self.draw(fraction, words)

    def __exit__(self, *raised: object) -> None:
        if raised[0] is None:
            self.stage("", "", 1.0)
        super().__exit__(*raised)


def in_notebook() -> bool:
    """Return whether the program runs in a kernel that shows HTML, without loading one."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"
