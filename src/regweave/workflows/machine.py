"""The share of the machine that a run may use."""

from __future__ import annotations

import math
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from regweave import _core
from regweave.errors import UsageError


def allowed_threads(wanted: int | None = None) -> int:
    """Threads to use: as asked, else what the scheduler, OpenMP, the affinity mask or the container allow."""
    if wanted is not None:
        if wanted < 1:
            raise UsageError("E186", f"--threads is {wanted}", "give at least 1")
        return wanted
    for variable in ("SLURM_CPUS_PER_TASK", "OMP_NUM_THREADS"):
        value = os.environ.get(variable, "")
        if value.isdigit() and int(value) > 0:
            return int(value)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _container_quota()))


def _container_quota() -> int:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, math.floor(int(quota) / int(period)))
    except (OSError, ValueError):
        return sys.maxsize


@contextmanager
def kernel_threads(n: int) -> Iterator[None]:
    """Let the compiled kernels use n threads inside the block."""
    before = _core.set_threads(n)
    try:
        yield
    finally:
        _core.set_threads(before)


def peak_memory_mb() -> float:
    """Most memory that this process has held so far, in megabytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def physical_memory_mb() -> float:
    """Memory of the machine, or of the container where that is less, in megabytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return total / 2**20
