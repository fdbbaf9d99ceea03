"""The arithmetic floor of the cost volumes: operations that they need, over what the machine can do in a second.

One operation is one float32 addition, multiplication, fused multiply-add, absolute value, maximum or conversion, or
one step of a histogram. V voxels of the level, L = K³ labels, B the voxels of all supports together:

=========  ================================  ======================================================================
shift      V·L·2·(1 + 1/K + 1/K²)            linear interpolation (subtract, multiply-add) along z for each label,
                                             along y and x shared by the labels that need the same row or plane;
                                             once for each different view of the image, not for each metric
sad        V·L·3                             subtract, absolute value, add to the sum
ncc        V·L·3                             Σw, Σw², Σwj: one addition, two multiply-adds
dwt        V·L·1 + B·L·4.5                   subtract; 288 operations of the two-level Haar sums per 4³ block, with
                                             |a + b| + |a − b| = 2·max(|a|, |b|) for the last butterfly
mi         V·L·4 + B·L·1 + N·L·2·bins²       clamp twice, convert, join; count; look up and add joint and marginal
=========  ================================  ======================================================================

Features, warping, class shares, pooling and inference are left out: the floor is one of the cost volumes only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from regweave.config.settings import Schedule
from regweave.metrics.dwt import wavelet_support
from regweave.metrics.mi import SMALL_SUPPORT_VOXELS
from regweave.spatial.control_grid import ControlGrid
from regweave.spatial.pyramid import shrink_geometry
from regweave.types import Geometry

PROBES = {
    "streaming": "the rate of numpy's additions in cache",
    "registers": "the machine's peak rate of multiply-adds",
}
"""``streaming`` loads and stores for every operation, so a kernel that fuses several may beat it; ``registers`` is what
no kernel can beat, and histograms, whose steps do not vectorise, cannot come near."""
PROBE_SECONDS = 0.4
PROBE_FLOATS = 32_768
"""Two arrays of 128 kB: they stay in the second-level cache of any recent core."""


@dataclass(frozen=True)
class _Size:
    """Numbers of a level that the counts depend on."""

    voxels: float
    labels: float
    in_supports: float
    in_wavelet_supports: float
    nodes: float
    bins: int


def _sad(s: _Size) -> float:
    return s.voxels * s.labels * 3


def _ncc(s: _Size) -> float:
    return s.voxels * s.labels * 3


def _dwt(s: _Size) -> float:
    return s.labels * (s.voxels + 4.5 * s.in_wavelet_supports)


def _mi(s: _Size) -> float:
    return s.labels * (4 * s.voxels + s.in_supports + 2 * s.nodes * s.bins**2)


COUNTS: dict[str, Callable[[_Size], float]] = {"sad": _sad, "ncc": _ncc, "dwt": _dwt, "mi": _mi}
"""Operations of the metrics of ``paper@1``; the floor is worked out for banks of these only."""


def operations(schedule: Schedule, geometry: Geometry) -> dict[str, float]:
    """Operations of one registration, by metric and for the shifts."""
    bank = schedule.for_levels().bank
    unknown = sorted({m.metric for m in bank} - set(COUNTS))
    if unknown:
        raise ValueError(f"no operation counts for {', '.join(unknown)}; known: {', '.join(COUNTS)}")
    views = len({(m.window, m.sigma_voxels, m.metric == "mi") for m in bank})
    total: dict[str, float] = {"shift": 0.0}
    for level in schedule.levels_for(geometry):
        grid = ControlGrid.cover(shrink_geometry(geometry, level.factors(geometry)), level.spacing_mm, level.support)
        k = level.labels_per_axis
        size = _Size(
            voxels=float(np.prod(grid.image_shape)),
            labels=float(k**3),
            in_supports=grid.n_nodes * float(np.prod(grid.support)),
            in_wavelet_supports=grid.n_nodes * float(np.prod(wavelet_support(grid).support)),
            nodes=grid.n_nodes,
            bins=8 if np.prod(grid.support) < SMALL_SUPPORT_VOXELS else 16,
        )
        total["shift"] += level.steps * views * size.voxels * size.labels * 2 * (1 + 1 / k + 1 / k**2)
        for member in bank:
            total[member.name] = total.get(member.name, 0.0) + level.steps * COUNTS[member.metric](size)
    return total


def throughput(threads: int) -> dict[str, float]:
    """Operations per second of this machine, by the two `PROBES`.

    ``streaming``: numpy adds two arrays that stay in the second-level cache, in each thread. ``registers``:
    multiply-adds of a matrix product on as many threads as BLAS takes, which are all cores unless it is told.
    """
    return {"streaming": sum(_in_threads(threads)), "registers": _matrix_product()}


def _in_threads(threads: int) -> list[float]:
    rates = [0.0] * threads
    barrier = threading.Barrier(threads)

    def work(index: int) -> None:
        a, b = np.ones(PROBE_FLOATS, dtype=np.float32), np.zeros(PROBE_FLOATS, dtype=np.float32)
        barrier.wait()
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < PROBE_SECONDS:
            for _ in range(100):
                np.add(a, b, out=a)
            count += 100
        rates[index] = count * PROBE_FLOATS / (time.perf_counter() - start)

    crew = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    return rates


def _matrix_product() -> float:
    n = 768
    a = np.ones((n, n), dtype=np.float32)
    out = a @ a
    best, start = 0.0, time.perf_counter()
    while time.perf_counter() - start < PROBE_SECONDS:
        lap = time.perf_counter()
        np.matmul(a, a, out=out)
        best = max(best, n**3 / (time.perf_counter() - lap))
    return best
