"""How long does a registration take, against a peer, against the arithmetic, and as images grow?

The peer is the deformable stage of antspyx with its defaults (`pip install antspyx`), run in turn with ours on
the same pairs and threads; images are in memory on both sides. Sizes are measured in fresh processes from files.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import _fresh
from _common import Claim, failure, parser, write
from _floor import PROBES, operations, throughput
from _pairs import (
    PHANTOM,
    PHANTOM_SHAPE,
    PHANTOM_SPACING_MM,
    SETS,
    PairName,
    Prepared,
    choose_pairs,
    choose_set,
    prepare,
    settings_hash,
    settings_of,
)
from _peer import NAME as PEER
from _peer import Peer
from accuracy import judge, mean_dice
from regweave import metrics
from regweave.config.settings import Schedule
from regweave.kernels.threads import kernel_threads
from regweave.registration.align import align

SMALL, LARGE = "ibsr18_64", "ibsr18_native"
Register = Callable[[Prepared, list[int]], dict[str, Any]]

PRESET = "paper@1"
OURS = f"regweave {PRESET}"
TARGET_RATIO = 3.5
TARGET_GROWTH = 1.0
TARGET_MEMORY_GB = 1.5


@contextmanager
def timed_metrics(schedule: Schedule) -> Iterator[dict[str, float]]:
    """Time the cost volumes of each metric inside the block, by standing in for the metric's ``volume``."""
    spent = {m.metric: 0.0 for m in schedule.for_levels().bank}
    modules: dict[str, Any] = {name: metrics.get(name) for name in spent}
    plain = {name: module.volume for name, module in modules.items()}

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


def ours(p: Prepared, labels: list[int]) -> dict[str, Any]:
    """Align one pair: seconds in all, by stage and by metric."""
    with timed_metrics(p.schedule) as by_metric:
        start = time.perf_counter()
        aligned = align(p.pair, p.weights, p.schedule)
        seconds = time.perf_counter() - start
    stages = {s: sum(step.seconds[s] for step in aligned.steps) for s in ("costs", "inference", "compose")}
    stages["other"] = seconds - sum(stages.values())
    return {
        "seconds": seconds,
        "stages": stages,
        "metrics": by_metric,
        "dice": mean_dice(judge(p, aligned.displacement, labels)),
    }


def in_turn(names: Sequence[PairName], repetitions: int, threads: int) -> tuple[list[dict[str, Any]], Prepared]:
    """Ours, the peer, ours, the peer, …: one row for each run, errors included."""
    settings = settings_of(PRESET)
    tools = {OURS: ours, PEER: _peer(threads)}
    rows: list[dict[str, Any]] = []
    for repetition in range(repetitions):
        for name in names:
            p = prepare(name, settings)
            labels = list(SETS[name.set].labels)
            for tool, register in tools.items():
                row = {"tool": tool, "fixed": name.fixed, "moving": name.moving, "run": repetition}
                rows.append({**row, **_attempt(register, p, labels, threads)})
                print(f"{tool} {name}: {rows[-1]['error'] or format(rows[-1]['seconds'], '.2f') + ' s'}", flush=True)
    return rows, p


def _attempt(register: Register, p: Prepared, labels: list[int], threads: int) -> dict[str, Any]:
    """One run of a tool, or its error; more processor than wall seconds show that the threads were at work."""
    start = time.process_time()
    try:
        with kernel_threads(threads):
            return {"error": None, **register(p, labels), "processor_seconds": time.process_time() - start}
    except Exception as error:
        return {"error": failure(error)}


def _peer(threads: int) -> Register:
    try:
        return Peer.load(threads).register
    except ImportError:
        return _absent


def _absent(p: Prepared, labels: list[int]) -> dict[str, Any]:
    raise RuntimeError("antspyx is not installed; pip install antspyx")


def against_peer(rows: Sequence[Mapping[str, Any]], p: Prepared, threads: int) -> dict[str, Any]:
    """Medians of both tools, their ratio, our stages, and our cost volumes against the arithmetic floor."""
    of = {tool: [r for r in rows if r["tool"] == tool and r["error"] is None] for tool in _tools(rows)}
    median = {tool: _median([r["seconds"] for r in done]) for tool, done in of.items()}
    mine = of[OURS]
    count, rate = operations(p.schedule, p.pair.fixed.geometry), throughput(threads)
    in_volumes = _median([sum(r["metrics"].values()) for r in mine])
    floors = {name: sum(count.values()) / r for name, r in rate.items()}
    return {
        "median_seconds": median,
        "processor_seconds": {tool: _median([r["processor_seconds"] for r in done]) for tool, done in of.items()},
        "median_dice": {tool: _median([r["dice"] for r in done]) for tool, done in of.items()},
        "ratio": median[PEER] / median[OURS],
        "stages": {s: _median([r["stages"][s] for r in mine]) for s in mine[0]["stages"]} if mine else {},
        "metrics": {m: _median([r["metrics"][m] for r in mine]) for m in mine[0]["metrics"]} if mine else {},
        "floor": {
            "operations": count,
            "operations_per_second": rate,
            "seconds": floors,
            "cost_volumes_over_floor": {name: in_volumes / s for name, s in floors.items()},
        },
    }


def _tools(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(r["tool"] for r in rows))


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


def sizes(presets: Sequence[str], seed: int, threads: int) -> list[dict[str, Any]]:
    """One pair at 64³ and one at full size with each preset, each in a fresh process."""
    rows = []
    for wanted, init, shape, spacing_mm in (
        (SMALL, "none", PHANTOM_SHAPE, PHANTOM_SPACING_MM),
        (LARGE, "affine", _fresh.LARGE_SHAPE, _fresh.LARGE_SPACING_MM),
    ):
        chosen, data = choose_set(wanted)
        name = choose_pairs(chosen, 1, seed)[0]
        with _fresh.pair_files(name, shape, spacing_mm) as paths:
            for preset in presets:
                row = _fresh.measure(paths, preset, "none" if chosen == PHANTOM else init, threads)
                label = {"data": data, "fixed": name.fixed, "moving": name.moving, "preset": settings_of(preset).name}
                rows.append({**label, "size": "small" if wanted == SMALL else "large", **row})
                print(f"{preset} {data}: {row['error'] or row['seconds']}", flush=True)
    return rows


def growth(rows: Sequence[Mapping[str, Any]], preset: str) -> float:
    """Seconds per voxel of the discrete levels at full size over those at 64³."""
    found = {r["size"]: r for r in rows if r["preset"] == preset and r["error"] is None}
    if len(found) < 2:
        return float("nan")
    per_voxel = {size: r["seconds"]["levels"] / r["voxels"] for size, r in found.items()}
    return float(per_voxel["large"] / per_voxel["small"])


def peer_claims(result: Mapping[str, Any], data: str, n: int, threads: int) -> list[Claim]:
    """What the comparison with the peer and with the floor says."""
    where = f"{PRESET}, {n} pairs of {data}, {threads} threads"
    mine = result["median_seconds"][OURS]
    return [
        Claim(f"median seconds of the deformable stage, {where}", mine, ".2f", " s"),
        Claim(f"time of {PEER} over ours, {where}", result["ratio"], ".2f", "×", TARGET_RATIO),
        *(
            Claim(f"time of the cost volumes over their arithmetic at {PROBES[probe]}, {where}", factor, ".1f", "×")
            for probe, factor in result["floor"]["cost_volumes_over_floor"].items()
        ),
    ]


def size_claims(rows: Sequence[Mapping[str, Any]], presets: Sequence[str], threads: int) -> list[Claim]:
    """What the sizes say; only ``paper@1`` has targets."""
    claims = []
    for preset in (settings_of(p).name for p in presets):
        held = preset == PRESET
        claims.append(
            Claim(
                f"seconds per voxel of the levels at full size over those at 64³, {preset}, {threads} threads",
                growth(rows, preset), ".2f", "×", TARGET_GROWTH if held else None, "at most",
            )
        )  # fmt: skip
        for row in (r for r in rows if r["preset"] == preset):
            failed = row["error"] is not None
            where = f"{preset}, {'failed' if failed else '×'.join(map(str, row['shape']))}, {row['data']}"
            memory = float("nan") if failed else row["peak_memory_mb"] / 1024
            total = float("nan") if failed else row["seconds"]["total"]
            limit = TARGET_MEMORY_GB if held else None
            claims.append(Claim(f"peak memory, {where}", memory, ".2f", " GB", limit, "at most"))
            claims.append(Claim(f"seconds from files to all results, {where}", total, ".1f", " s"))
    return claims


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__ or "", pairs=3)
    options.add_argument("--repetitions", type=int, default=3)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--presets", nargs="+", default=[PRESET, "default"], help="presets of the sizes")
    options.add_argument("--parts", nargs="+", choices=["peer", "sizes"], default=["peer", "sizes"])
    args = options.parse_args()
    chosen, data = choose_set(SMALL)
    content: dict[str, Any] = {
        "data": data,
        "credit": SETS[chosen].credit,
        "threads": args.threads,
        "settings": {s.name: settings_hash(s) for s in map(settings_of, {PRESET, *args.presets})},
    }
    claims: list[Claim] = []
    if "sizes" in args.parts:
        content["sizes"] = sizes(args.presets, args.seed, args.threads)
        claims += size_claims(content["sizes"], args.presets, args.threads)
    if "peer" in args.parts:
        rows, p = in_turn(choose_pairs(chosen, args.pairs, args.seed), args.repetitions, args.threads)
        content["peer"] = {**against_peer(rows, p, args.threads), "runs": rows}
        claims = peer_claims(content["peer"], data, args.pairs, args.threads) + claims
    write(args.output or "speed", args.seed, content, claims)


if __name__ == "__main__":
    main()
