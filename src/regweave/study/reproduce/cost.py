"""Processor time of the experiments, added up over all calls that a run took."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regweave.io import owned_path

COST = "cost.json"
"""File for it; not in the record of numbers, which is the same for every call."""


def cpu_seconds() -> float:
    """Processor time of this process and of its workers that have ended."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


@contextmanager
def counted(folder: Path, experiment: str) -> Iterator[None]:
    """Add what an experiment uses to the file of the folder, also where it is stopped; a kill -9 is not counted.

    Parameters
    ----------
    folder : path
        Folder of the run.
    experiment : str
        Name of the experiment.
    """
    before = cpu_seconds()
    try:
        yield
    finally:
        path = folder / COST
        found: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))["cpu_seconds"] if path.is_file() else {}
        found[experiment] = round(found.get(experiment, 0.0) + cpu_seconds() - before, 1)
        with owned_path(path) as part:
            part.write_text(json.dumps({"cpu_seconds": found}, indent=1) + "\n", encoding="utf-8")


def told(folder: Path) -> str:
    """Say what a run has used, in one line; nothing where other machines did the work."""
    path = folder / COST
    if not path.is_file():
        return ""
    found: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))["cpu_seconds"]
    total = sum(found.values())
    return f"{total:,.0f} CPU-seconds: " + ", ".join(f"{name} {used:,.0f}" for name, used in found.items())
