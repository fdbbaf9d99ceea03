"""Threads of a run, by the machine's share for this process."""

from __future__ import annotations

import math
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

from regweave.errors import UsageError
from regweave.io.disk.files import peak_memory, total_memory

MAX_THREADS = 1024
"""More than any machine of today has; a larger number is a slip."""
SPARE_SHARE = 0.25
"""Share of the memory for what need not be kept, all processes together."""


def allowed_threads(wanted: int | None = None) -> int:
    """Threads to use: as asked, else what the scheduler, OpenMP, the affinity mask or the container allow.

    Raises
    ------
    UsageError
        E186 where the number asked for, or the variable that gives it, is none from 1 to `MAX_THREADS`.
    """
    if wanted is not None:
        return _checked_threads("--threads", wanted)
    for variable in ("SLURM_CPUS_PER_TASK", "OMP_NUM_THREADS"):
        value = os.environ.get(variable, "").strip()
        if value:
            # OpenMP allows a list, one number for each level of nesting: ours is the first.
            first = value.split(",")[0].strip()
            return _checked_threads(variable, int(first) if re.fullmatch("[0-9]{1,9}", first) else value)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _container_quota()))


def _checked_threads(name: str, found: int | str) -> int:
    if isinstance(found, int) and 1 <= found <= MAX_THREADS:
        return found
    hint = f"give a whole number from 1 to {MAX_THREADS}" + ("" if name == "--threads" else ", or unset the variable")
    raise UsageError("E186", f"{name} is {str(found)[:40]!r}", hint)


def _container_quota() -> int:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, math.floor(int(quota) / int(period)))
    except (OSError, ValueError):
        return sys.maxsize


def peak_memory_mb() -> float:
    """Most memory that this process has held so far, in megabytes."""
    return peak_memory() / 2**20


def physical_memory_mb() -> float:
    """Memory of the machine, or of the container where that is less, in megabytes."""
    total = total_memory()
    with suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return total / 2**20


_sharing: list[int] = []


def share_memory(processes: int) -> None:
    """Say that this process is one of several that do the same on this machine."""
    _sharing[:] = [processes]


def spare_memory_mb() -> float:
    """Memory that this process may fill with what it could also compute again, in megabytes."""
    return SPARE_SHARE * physical_memory_mb() / (_sharing or [allowed_threads()])[0]
