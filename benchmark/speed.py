"""How long do the stages and the metrics of the discrete levels take, in memory, and how does time grow?

Pairs of 64³ with the paper's bank; medians over pairs and repetitions. With ``--growth`` phantoms on one thread: over
voxels, control points, labels, metrics and pairs, each alone, with the fitted exponent; 1 is proportional growth. The
curve over metrics counts the cost volumes alone: how long inference takes depends on how well metrics agree. Jobs are
run in turn, so that a busy machine disturbs them alike. Whole registrations are measured by `quiet.py`, other programs
beside ours by `peers.py`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from _common import Claim, parser, write
from _pairs import SETS, Prepared, choose_pairs, choose_set, prepare, settings_hash, settings_of
from accuracy import judge, mean_dice
from regweave import metrics
from regweave.config import settings as registration_settings
from regweave.config.settings import Schedule, Settings
from regweave.datasets.phantom import make_phantom
from regweave.kernels.threads import kernel_threads
from regweave.registration.align import align
from regweave.types import ImagePair

MODALITY = "mr"
EXTENT_MM = 192.0
Job = Callable[[], float]
"""Runs, and returns the seconds that cost volumes took."""
STAGES = ("costs", "inference", "compose")


@contextmanager
def timed_metrics(schedule: Schedule) -> Iterator[dict[str, float]]:
    """Measure seconds of the cost volumes of each metric inside the block, by a wrapper of the metric's ``volume``."""
    modules: dict[str, Any] = {m.metric: metrics.get(m.metric) for m in schedule.for_levels().bank}
    plain, spent = {name: module.volume for name, module in modules.items()}, dict.fromkeys(modules, 0.0)

    def timed(name: str) -> Any:
        def volume(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            out = plain[name](*args, **options)
            spent[name] += time.perf_counter() - start
            return out

        return volume

    for name, module in modules.items():
        module.volume = timed(name)
    try:
        yield spent
    finally:
        for name, module in modules.items():
            module.volume = plain[name]


def aligned(p: Prepared, labels: list[int]) -> dict[str, Any]:
    """Align one pair: seconds in all, by stage and by metric, of the wall and of the processor."""
    with timed_metrics(p.schedule) as by_metric:
        start, busy = time.perf_counter(), time.process_time()
        found = align(p.pair, p.weights, p.schedule)
        seconds, used = time.perf_counter() - start, time.process_time() - busy
    stages = {s: sum(step.seconds[s] for step in found.steps) for s in STAGES}
    stages["other"] = seconds - sum(stages.values())
    dice = mean_dice(judge(p, found.displacement, labels))
    return {"seconds": seconds, "cpu_seconds": used, "stages": stages, "metrics": by_metric, "dice": dice}


def medians(rows: Sequence[dict[str, Any]], part: str) -> dict[str, float]:
    """Median seconds of each stage or metric."""
    return {name: statistics.median(row[part][name] for row in rows) for name in rows[0][part]}


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


def growth(args: Any) -> None:
    """Measure every curve and write it."""
    found, claims = {}, []
    with kernel_threads(1):
        for what, jobs in curves().items():
            seconds = measure(jobs, args.repetitions, costs=what == "metrics")
            found[what] = {"seconds": {f"{k:g}": v for k, v in seconds.items()}, "exponent": exponent(seconds)}
            claims.append(Claim(f"exponent of the time over {what}", found[what]["exponent"], ".2f"))
            print(what, {f"{k:g}": round(v, 3) for k, v in seconds.items()}, flush=True)
    write(
        args.output or "scaling", args.seed,
        {"data": "phantoms", "credit": SETS["phantom"].credit, "curves": found}, claims,
    )  # fmt: skip


def main(words: Sequence[str] | None = None) -> None:
    """Align the pairs, print and write the numbers."""
    options = parser(__doc__ or "", pairs=3)
    options.add_argument("--set", default="ibsr18_64", help=f"one of {', '.join(SETS)}")
    options.add_argument("--preset", default="paper")
    options.add_argument("--repetitions", type=int, default=3)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--growth", action="store_true", help="exponents of the time, on phantoms")
    args = options.parse_args(words)
    if args.growth:
        growth(args)
        return
    (chosen, data), settings = choose_set(args.set), settings_of(args.preset)
    ready = [prepare(name, settings, args.init) for name in choose_pairs(chosen, args.pairs, args.seed)]
    rows = []
    with kernel_threads(args.threads):
        for _ in range(args.repetitions):
            rows += [aligned(p, list(SETS[chosen].labels)) for p in ready]
            print(f"{rows[-1]['seconds']:.2f} s", flush=True)
    where = f"{settings.name}, {args.pairs} pairs of {data}, {args.threads} threads"
    claims = [
        Claim(f"median {what} of the levels, {where}", statistics.median(row[key] for row in rows), ".2f", " s")
        for what, key in (("wall seconds", "seconds"), ("processor seconds", "cpu_seconds"))
    ]
    content = {
        "data": data, "credit": SETS[chosen].credit, "threads": args.threads, "settings": settings_hash(settings),
        "stages": medians(rows, "stages"), "metrics": medians(rows, "metrics"), "runs": rows,
    }  # fmt: skip
    write(args.output or "speed", args.seed, content, claims)


if __name__ == "__main__":
    sys.exit(main())
