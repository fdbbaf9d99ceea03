"""Memory and threads of a run: the limits of this machine, the forecast of a registration, the cache between runs."""

import math
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from regweave.config.settings import Level, Settings
from regweave.errors import RegweaveError, ResourceError, UsageError
from regweave.io.disk.files import available_memory
from regweave.io.modality import BankName
from regweave.metrics import sad
from regweave.predictors import Predictor
from regweave.predictors._features import WorkingGrid
from regweave.registration.scene import KEPT_VOXELS
from regweave.spatial import control_grid, voxels
from regweave.types import Geometry

T = TypeVar("T")
MAX_THREADS = 1024  # more than any machine of today has; a larger number is a slip
SPARE_SHARE = 0.25  # share of the memory for what need not be kept, all processes together


def allowed_threads(wanted: int | None = None) -> int:
    """Threads to use: as asked, else what the scheduler, OpenMP, the affinity mask or the container allow.

    Raises E186 where the wanted number, or the variable that gives it, is none from 1 to `MAX_THREADS`.
    """
    name: str = "--threads"
    found: int | str | None = wanted
    for variable in ("SLURM_CPUS_PER_TASK", "OMP_NUM_THREADS") if wanted is None else ():
        value = os.environ.get(variable, "").strip()
        if value and found is None:
            # OpenMP allows a list, one number for each level of nesting: ours is the first.
            first = value.split(",")[0].strip()
            name, found = variable, int(first) if re.fullmatch("[0-9]{1,9}", first) else value
    if isinstance(found, int) and 1 <= found <= MAX_THREADS:
        return found
    if found is not None:
        hint = f"give a whole number from 1 to {MAX_THREADS}" + (", or unset the variable" if wanted is None else "")
        raise UsageError("E186", f"{name} is {str(found)[:40]!r}", hint)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # where a container has a quota
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        cores = min(cores, math.floor(int(quota) / int(period)))
    return max(1, cores)


def physical_memory_mb() -> float:
    """Memory of the machine, or of the container where that is less, in megabytes."""
    return available_memory(taken=True) / 2**20


_sharing: list[int] = []


def share_memory(processes: int) -> None:
    """Record that this process is one of several that do the same on this machine."""
    _sharing[:] = [processes]


def spare_memory_mb() -> float:
    """Memory that this process may fill with what it could also compute again, in megabytes."""
    return SPARE_SHARE * physical_memory_mb() / (_sharing or [allowed_threads()])[0]


PROGRAM_MB = 180.0  # interpreter and libraries
BYTES_PER_VOXEL = {
    "fixed": 36.0, "moving": 28.0, "channel": 8.0, "refine": 110.0, "structure": 16.0, "predictor": 420.0, "seen": 24.0,
    "mask": 24.0,
}  # fmt: skip
"""Bytes held at the peak: fields and outputs on the fixed grid, inverse on the moving one, views, refinement, and
for each structure that a model makes out its maps, in two members of the refinement; features of a class predictor on
its own grid, and what it holds of the image; a mask, and the image extrapolated beyond it."""
FINEST_SPACING = 1 / 16  # control points closer together than this, in voxels, see no voxel
MOST_PER_AXIS = 1024
MOST_NODES = 2**28  # control points that the compiled engines count
WORK = {"cost": 1.6, "features": 120.0, "refine": 270.0, "outputs": 2000.0}
"""Time of the parts of a run per voxel, member and step (costs: and label), in units of one absolute difference."""


@dataclass(frozen=True)
class LevelPlan:
    """Size of one level, and its work in units of one absolute difference."""

    spacing_mm: float
    shape: tuple[int, int, int]
    n_nodes: int
    n_labels: int
    steps: int
    work: float


@dataclass(frozen=True)
class Plan:
    """Forecast of one registration."""

    sizes: tuple[LevelPlan, ...]
    n_members: int
    refine_steps: int
    peak_memory_mb: float
    seconds: float
    refine_work: float
    outputs_work: float


def forecast(
    fixed: Geometry, moving: Geometry, settings: Settings, modality: BankName, *, probe: bool, structures: int = 0,
    masked_voxels: int = 0,
) -> Plan:  # fmt: skip
    """Forecast memory and, with ``probe``, time from the speed of one small cost volume on this machine.

    ``structures`` are those that a model segments in the images, where its refinement compares them, ``masked_voxels``
    the voxels of images that have a mask.
    """
    schedule = settings.for_bank(modality)
    bank = schedule.for_levels().bank
    levels = tuple(_size(fixed, level, n, len(bank)) for n, level in enumerate(schedule.levels_for(fixed), start=1))
    stages = settings.refine.stages(fixed, modality)
    refined = [prod(voxels.shrink_geometry(fixed, stage.factors(fixed)).shape) for stage in stages]
    views = len({(m.window, m.sigma_voxels, m.metric == "mi") for m in bank})
    members = max(sum(m.weight > 0 for m in schedule.continuous), 1)
    refine_work = WORK["refine"] * members * sum(n * s.steps for n, s in zip(refined, stages, strict=True))
    outputs_work = WORK["outputs"] * prod(fixed.shape)
    f, m = prod(fixed.shape), prod(moving.shape)
    kept, of = sum(n for n in (f, m) if n <= KEPT_VOXELS), BYTES_PER_VOXEL
    held = of["fixed"] * f + of["moving"] * m + of["channel"] * views * kept / 2 + of["mask"] * masked_voxels
    costs = max(len(bank) * p.n_nodes * p.n_labels * 12.0 for p in levels)
    features = max(len(bank) * prod(p.shape) * 8.0 for p in levels)
    refine = (of["refine"] + structures * of["structure"]) * max(refined) if settings.refine.steps else 0.0
    work = sum(p.work for p in levels) + refine_work + outputs_work
    return Plan(
        levels, len(bank), sum(stage.steps for stage in stages),
        peak_memory_mb=PROGRAM_MB + (held + max(costs + features, refine)) / 2**20,
        seconds=_seconds_per_voxel_label() * work if probe else float("nan"),
        refine_work=refine_work, outputs_work=outputs_work,
    )  # fmt: skip


def _size(fixed: Geometry, level: Level, number: int, n_members: int) -> LevelPlan:
    geometry = voxels.shrink_geometry(fixed, level.factors(fixed))
    grid = control_grid.ControlGrid.cover(geometry, level.spacing_mm, level.support)
    # An axis of few voxels may be finer than the grid needs; only where control points pile up is it a mistake.
    piled = [axis for axis in range(3) if grid.spacing[axis] < FINEST_SPACING and grid.nodes[axis] > MOST_PER_AXIS]
    if piled or grid.n_nodes > MOST_NODES:
        voxel = " × ".join(f"{s:.3g}" for s in geometry.spacing_mm)
        message = (
            f"level {number} would lay {' × '.join(str(n) for n in grid.nodes)} control points, "
            f"{level.spacing_mm:.3g} mm apart, over voxels of {voxel} mm; "
            f"allowed are {MOST_NODES} in all and 16 in a voxel along an axis"
        )
        raise RegweaveError("E176", message, "check the voxel sizes with `regweave check`, or give a larger spacing_mm")
    n_labels = level.labels_per_axis**3
    work = n_members * prod(geometry.shape) * level.steps * (WORK["cost"] * n_labels + WORK["features"])
    return LevelPlan(level.spacing_mm, geometry.shape, grid.n_nodes, n_labels, level.steps, work)


def _predictor_mb(geometry: Geometry, predictor: Predictor) -> float:
    """Memory of what a predictor makes of one image, by its own account where it gives one, and of the image itself."""
    if hasattr(predictor, "memory_bytes"):
        needed = float(predictor.memory_bytes(geometry))
    else:
        factors = WorkingGrid.of(geometry, predictor.voxel_mm).factors
        needed = BYTES_PER_VOXEL["predictor"] * prod(voxels.shrink_geometry(geometry, factors).shape)
    return (needed + BYTES_PER_VOXEL["seen"] * prod(geometry.shape)) / 2**20


def _seconds_per_voxel_label() -> float:
    rng = np.random.default_rng(0)
    shape = (48, 48, 48)
    image = rng.random((1, *shape)).astype(np.float32)
    grid = control_grid.ControlGrid.cover(Geometry(shape, np.diag([1.0, 1.0, 1.0, 1.0])), 6.0)
    labels = control_grid.LabelSet.cube(3, np.full(3, 0.5))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        sad.volume(image, image, grid, labels.offsets, sad.Options())
        times.append(time.perf_counter() - start)
    return min(times) / (float(np.prod(shape)) * labels.n_labels)


def check_memory(
    fixed: Geometry, moving: Geometry, settings: Settings, modality: BankName, structures: int = 0,
    told_by: Predictor | None = None, masked_voxels: int = 0,
) -> None:  # fmt: skip
    """Refuse a run that cannot fit, before it starts.

    ``told_by`` is the predictor of the classes, if one is used.
    """
    plan = forecast(fixed, moving, settings, modality, probe=False, structures=structures, masked_voxels=masked_voxels)
    told = 0.0 if told_by is None else max(_predictor_mb(g, told_by) for g in (fixed, moving))
    needed, there = max(plan.peak_memory_mb, PROGRAM_MB + told), physical_memory_mb()
    if needed > there:
        message = f"this registration needs about {needed:.0f} MB and the machine has {there:.0f} MB"
        hint = "use a coarser preset or smaller images; `regweave plan` shows the forecast"
        raise ResourceError("E140", message, hint)


class Cache:
    """Least-recently-used cache of values that can be computed again, bounded by the megabytes of their arrays.

    An array that two values share counts twice. With a limit of 0 nothing is cached.
    """

    def __init__(self, limit_mb: float) -> None:
        self._limit = limit_mb * 2**20
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the value of a key, computed if it is not cached."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                found: T = self._values[key][0]
                return found
        value = compute()
        size, parts = 0, [value]
        while parts:
            part = parts.pop()
            if isinstance(part, np.ndarray):
                size += part.nbytes
            elif is_dataclass(part):
                parts += [getattr(part, f.name) for f in fields(part)]
            elif isinstance(part, Mapping | tuple | list):
                parts += part.values() if isinstance(part, Mapping) else part
        with self._lock:
            self._values[key] = (value, size)
            while self._values and sum(size for _, size in self._values.values()) > self._limit:
                self._values.popitem(last=False)
        return value


no_cache = Cache(0.0)  # computes every value
