"""How time grows: over voxels, control points, labels, metrics and pairs, each alone, with the fitted exponent.

Phantoms, one thread, the discrete levels of `default`; each point is the fastest of some repetitions, all points of a
curve are visited in turn, so that a busy machine disturbs them alike. An exponent of 1 is proportional growth. The
curve over metrics counts the cost volumes alone: how long inference takes depends on how well metrics agree.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from _common import Claim, parser, write
from _pairs import SETS
from regweave.config import settings as registration_settings
from regweave.config.settings import Settings
from regweave.datasets.phantom import make_phantom
from regweave.kernels.threads import kernel_threads
from regweave.registration.align import align
from regweave.types import ImagePair

MODALITY = "mr"
EXTENT_MM = 192.0
Job = Callable[[], float]
"""Runs, and returns the seconds that cost volumes took."""


def changed(members: int | None = None, **level: Any) -> Settings:
    """Return the levels of ``default`` with a part of the bank and other numbers in every level."""
    content = registration_settings.preset("default").model_dump(mode="json")
    bank = [m for m in content["banks"][MODALITY] if m["stage"] != "refine" and m["weight"]]
    content["banks"], content["refine"]["steps"] = {MODALITY: bank[:members]}, 0
    content["levels"] = [{**of_level, **level} for of_level in content["levels"]]
    return registration_settings.validate(content, "the benchmark")


def one_level(spacing_mm: float) -> Settings:
    """Return a single level at full resolution with some control spacing."""
    content = changed().model_dump(mode="json")
    level = {**content["levels"][-1], "spacing_mm": spacing_mm, "voxels_per_spacing": None, "shrink": 1}
    return registration_settings.validate({**content, "levels": [level], "reference_mm": None}, "the benchmark")


def phantom(n: int, seed: int = 0) -> ImagePair:
    """Return a phantom of n³ voxels and constant extent."""
    return make_phantom(seed, (n, n, n), (EXTENT_MM / n,) * 3).pair


def job(pair: ImagePair, settings: Settings) -> Job:
    """Return a registration that waits to be run."""
    schedule = settings.schedule(MODALITY)
    weights = schedule.start_weights(settings.smoothness)
    return lambda: sum(step.seconds["costs"] for step in align(pair, weights, schedule).steps)


def curves() -> dict[str, dict[float, Job]]:
    """Jobs of each curve by the number that grows."""
    pair, whole = phantom(64), changed()
    n_members = len(whole.banks[MODALITY])
    nodes = {s: float((np.ceil((EXTENT_MM - 3.0) / s) + 1) ** 3) for s in (48.0, 24.0, 16.0, 12.0)}
    several = [phantom(32, seed) for seed in range(8)]
    return {
        "voxels": {float(n**3): job(phantom(n), changed(voxels_per_spacing=None, shrink=1)) for n in (32, 48, 64, 80)},
        "control points": {count: job(pair, one_level(s)) for s, count in nodes.items()},
        "labels": {float(k**3): job(pair, changed(labels_per_axis=k, first_step=0.4 / (k // 2))) for k in (3, 5, 7)},
        "metrics": {float(k): job(pair, changed(members=k)) for k in (1, 2, 4, n_members)},
        "pairs": {float(k): _all(job(p, whole) for p in several[:k]) for k in (1, 2, 4, 8)},
    }


def _all(jobs: Any) -> Job:
    listed = list(jobs)
    return lambda: sum(run() for run in listed)


def measure(jobs: Mapping[float, Job], repetitions: int, *, costs: bool) -> dict[float, float]:
    """Fastest seconds of each job, the jobs visited in turn: of the processor, or of the cost volumes alone."""
    best = dict.fromkeys(jobs, float("inf"))
    for _ in range(repetitions):
        for size, run in jobs.items():
            start = time.process_time()
            of_costs = run()
            best[size] = min(best[size], of_costs if costs else time.process_time() - start)
    return best


def exponent(seconds: Mapping[float, float]) -> float:
    """Slope of the line through the logarithms."""
    return float(np.polyfit(np.log(list(seconds)), np.log(list(seconds.values())), 1)[0])


def main(words: Sequence[str] | None = None) -> None:
    """Measure every curve and write it."""
    options = parser(__doc__, output="scaling")
    options.add_argument("--repetitions", type=int, default=2)
    args = options.parse_args(words)
    found, claims = {}, []
    with kernel_threads(1):
        for what, jobs in curves().items():
            seconds = measure(jobs, args.repetitions, costs=what == "metrics")
            found[what] = {"seconds": {f"{k:g}": v for k, v in seconds.items()}, "exponent": exponent(seconds)}
            claims.append(Claim(f"exponent of the time over {what}", found[what]["exponent"], ".2f"))
            print(what, {f"{k:g}": round(v, 3) for k, v in seconds.items()}, flush=True)
    content = {"data": "phantoms", "credit": SETS["phantom"].credit, "curves": found, "cores": os.cpu_count()}
    write(args.output, args.seed, content, claims)


if __name__ == "__main__":
    sys.exit(main())
