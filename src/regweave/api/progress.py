"""Progress bar on standard error: one line in a terminal or notebook, plain lines in a log."""

from __future__ import annotations

import math
import shutil
import sys
import time
from typing import Self

from regweave.io.libraries import in_notebook
from regweave.jobs.store import BatchProgress
from regweave.pipeline.register import Progress

BAR = 20
"""Characters of the bar."""
WIDTH = 79
EVERY_S = 0.1
"""Seconds between two drawings."""


class Bar:
    """One line that is drawn again and again, and wiped at the end.

    Parameters
    ----------
    lines : bool
        Where standard error is neither a terminal nor a notebook, print a line for each message that asks for one;
        otherwise nothing is shown there.
    shown : bool
        False shows nothing anywhere.
    """

    def __init__(self, *, lines: bool = False, shown: bool = True) -> None:
        stream = sys.stderr
        self._drawn = shown and stream is not None and (stream.isatty() or in_notebook())
        self._lines = shown and lines and not self._drawn
        self._began, self._last = time.monotonic(), -math.inf
        self._wide = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._wipe()

    def draw(self, fraction: float, text: str, *, line: str | None = None) -> None:
        """Show how far the work is, 0 to 1 or NaN, and what is being done; ``line`` is for a log."""
        if self._lines and line is not None:
            self._print(line)
        now = time.monotonic()
        if not self._drawn or (now - self._last < EVERY_S and fraction < 1):
            return
        self._last = now
        share = 0.0 if math.isnan(fraction) else min(max(fraction, 0.0), 1.0)
        filled = round(BAR * share)
        head = f"{'━' * filled}{'╌' * (BAR - filled)} {share:4.0%} {duration(now - self._began)} "
        room = min(WIDTH, shutil.get_terminal_size().columns - 1) - len(head)
        self._put(head + text[: max(room, 0)])

    def say(self, text: str) -> None:
        """Print a line of its own above the bar, in a terminal and in a log."""
        if self._drawn or self._lines:
            self._wipe()
            self._print(text)

    def _put(self, text: str) -> None:
        sys.stderr.write(f"\r{text:<{self._wide}}")
        sys.stderr.flush()
        self._wide = len(text)

    def _wipe(self) -> None:
        if self._wide:
            self._put("")
            sys.stderr.write("\r")
            sys.stderr.flush()
            self._wide = 0

    def _print(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


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


def duration(seconds: float) -> str:
    """Return seconds as minutes and seconds, with hours where there are any.

    Examples
    --------
    >>> duration(75), duration(7384)
    ('1:15', '2:03:04')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class RegistrationBar(Bar):
    """Progress of one registration: what runs, its stages, and how far they are."""

    def __call__(self, progress: Progress) -> None:
        """Take a step."""
        if progress.stage == "begin":
            self.say(progress.message)
            return
        counted = f"[{progress.done}/{progress.total}] {progress.message}"
        told = progress.stage == "levels" or progress.done % 10 == 0 or progress.done == progress.total
        self.draw(progress.done / max(progress.total, 1), progress.message, line=counted if told else None)
