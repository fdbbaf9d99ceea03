"""How much overlap does a registration win, and does the field stay regular?

Each pair is registered with each preset in a process of its own, one thread each. A finished pair is a line in a
.jsonl file beside the result; a second run of the same code and settings takes it from there.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from _common import RESULTS, Claim, counted, failure, fingerprint, parser, plain, write
from _pairs import (
    SETS,
    PairName,
    Prepared,
    all_settings_of,
    choose_pairs,
    choose_set,
    mean_interval,
    prepare,
    settings_hash,
)
from regweave.config.settings import Settings
from regweave.measures.deformation import regularity
from regweave.measures.overlap import dice
from regweave.registration.align import align
from regweave.registration.refine import refine
from regweave.run.memory import allowed_threads
from regweave.spatial.warp import determinant, to_field, warp_labels
from regweave.types import Field, Float32Array, Transform

TARGETS = {"paper@1 levels": 0.085, "default@1 levels": 0.115, "default@1 refined": 0.15}
TARGET_SET = "ibsr18_64"
STAGES = ("levels", "refined")

Key = tuple[str, ...]


def judge(p: Prepared, displacement: Float32Array | None, labels: Sequence[int]) -> dict[str, Any]:
    """Dice by label, and regularity of the field; None is the start."""
    assert p.pair.moving_labels is not None
    assert p.pair.fixed_labels is not None
    geometry = p.pair.fixed.geometry
    field = Field.zero(geometry) if displacement is None else to_field(displacement, geometry)
    warped = warp_labels(p.pair.moving_labels, Transform(field, p.pair.initial))
    scores = dice(warped.data, p.pair.fixed_labels.data, labels)
    numbers = {} if displacement is None else regularity(determinant(field))
    return {"dice": {str(v): d for v, d in scores.items()}, **numbers}


def measure(name: PairName, settings: Settings, init: str) -> dict[str, Any]:
    """Register one pair: a row with the scores of each stage, or with the error."""
    row: dict[str, Any] = {}
    try:
        p = prepare(name, settings, init)
        labels = list(SETS[name.set].labels)
        row["before"] = judge(p, None, labels)
        start = time.perf_counter()
        aligned = align(p.pair, p.weights, p.schedule)
        seconds = time.perf_counter() - start
        row["levels"] = {**judge(p, aligned.displacement, labels), "seconds": seconds}
        if settings.refine.steps:
            start = time.perf_counter()
            refined = refine(p.pair, aligned.displacement, p.weights, p.schedule, settings.refine)
            seconds += time.perf_counter() - start
            row["refined"] = {**judge(p, refined.displacement, labels), "seconds": seconds}
    except Exception as error:
        return {"error": failure(error)}
    return {"error": None, **row}


class Ledger:
    """Rows that are finished, one JSON line each; failed ones are tried again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[Key, dict[str, Any]] = {}
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            # A run that was killed may have left half a line at the end.
            rows = [json.loads(line) for line in lines if line.endswith("}")]
            self._rows = {tuple(r["key"]): r for r in rows if r["error"] is None}

    def get(self, key: Key) -> dict[str, Any] | None:
        """Return the row of a key, if it is there."""
        return self._rows.get(key)

    def add(self, key: Key, row: Mapping[str, Any]) -> None:
        """Keep a row, on disk as well."""
        self._rows[key] = {**row, "key": list(key)}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain(self._rows[key])) + "\n")


def collect(
    names: Sequence[PairName], all_settings: Sequence[Settings], init: str, workers: int, ledger: Ledger
) -> dict[str, list[dict[str, Any]]]:
    """Measure every pair with every preset, in parallel; rows by preset, in the order of the pairs."""
    code = fingerprint()
    keys = {(s.name, n): (n.fixed, n.moving, init, settings_hash(s), code) for n in names for s in all_settings}
    todo = [(s, n) for n in names for s in all_settings if ledger.get(keys[s.name, n]) is None]
    print(f"{len(keys) - len(todo)} registrations are known, {len(todo)} to do", flush=True)
    failed: dict[tuple[str, PairName], dict[str, Any]] = {}
    # More threads than one inside numpy would fight with the other processes.
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(measure, n, s, init): (s, n) for s, n in todo}
        for count, future in enumerate(as_completed(running), 1):
            s, n = running[future]
            died = future.exception()
            row = future.result() if died is None else {"error": failure(died)}
            if row["error"] is None:
                ledger.add(keys[s.name, n], row)
            else:
                failed[s.name, n] = row
            print(f"{count}/{len(todo)} {s.name} {n}: {row['error'] or _score(row)}", flush=True)
    return {
        s.name: [_named(n, failed.get((s.name, n)) or ledger.get(keys[s.name, n])) for n in names] for s in all_settings
    }


def _named(name: PairName, row: Mapping[str, Any] | None) -> dict[str, Any]:
    assert row is not None
    rest = {k: v for k, v in row.items() if k != "key"}
    return {"fixed": name.fixed, "moving": name.moving, "subject": name.subject, **rest}


def mean_dice(scores: Mapping[str, Any]) -> float:
    """Mean over the labels that either image has."""
    values = [d for d in scores["dice"].values() if d is not None and np.isfinite(d)]
    return float(np.mean(values)) if values else float("nan")


def _score(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{stage} {mean_dice(row[stage]):.4f}" for stage in ("before", *STAGES) if stage in row)


def summarise(rows: Sequence[Mapping[str, Any]], stage: str, seed: int) -> dict[str, Any]:
    """Means over the pairs, and the paired gain over the start with its interval by fixed subject."""
    done = [r for r in rows if r["error"] is None]
    subjects = [r["subject"] for r in done]
    gains = [mean_dice(r[stage]) - mean_dice(r["before"]) for r in done]
    return {
        "before": mean_of([mean_dice(r["before"]) for r in done]),
        "after": mean_of([mean_dice(r[stage]) for r in done]),
        "gain": mean_interval(gains, subjects, seed),
        "folding_fraction": mean_of([r[stage]["folding_fraction"] for r in done]),
        "sdlogj": mean_of([r[stage]["sdlogj"] for r in done]),
        "seconds": mean_of([r[stage]["seconds"] for r in done]),
        "n": len(done),
        "failed": len(rows) - len(done),
    }


def mean_of(values: Sequence[float | None]) -> float:
    """Mean over the numbers that are there."""
    kept = [v for v in values if v is not None and np.isfinite(v)]
    return float(np.mean(kept)) if kept else float("nan")


def claims_of(variant: str, summary: Mapping[str, Any], data: str, complete: bool) -> list[Claim]:
    """What a variant's summary says; the targets are for all pairs of one set."""
    where = f"{variant}, {counted(summary['n'], summary['failed'], data)}"
    held = complete and data == TARGET_SET
    low, high = summary["gain"]["low"], summary["gain"]["high"]
    return [
        Claim(
            f"gain of mean Dice over the start ({summary['before']:.3f}; 95 % {low:+.3f} to {high:+.3f}), {where}",
            summary["gain"]["mean"], "+.3f", "", TARGETS.get(variant) if held else None,
        ),
        Claim(f"share of folded voxels, {where}", summary["folding_fraction"], ".1e", "", 0.0, "at most"),
    ]  # fmt: skip


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__ or "")
    options.add_argument("--set", default=TARGET_SET, help=f"one of {', '.join(SETS)}")
    options.add_argument("--presets", nargs="+", default=["paper", "default"], help="presets or TOML files")
    options.add_argument("--workers", type=int, default=None, help="registrations at a time; default: one a core")
    args = options.parse_args()
    chosen, data = choose_set(args.set)
    names = choose_pairs(chosen, args.pairs, args.seed)
    all_settings = all_settings_of(args.presets)
    RESULTS.mkdir(exist_ok=True)
    ledger = Ledger(RESULTS / f"accuracy-{chosen}.jsonl")
    runs = collect(names, all_settings, args.init, allowed_threads(args.workers), ledger)
    variants = [(s.name, stage) for s in all_settings for stage in STAGES if stage == "levels" or s.refine.steps]
    summaries = {f"{name} {stage}": summarise(runs[name], stage, args.seed) for name, stage in variants}
    complete = len(names) == len(choose_pairs(chosen, None, args.seed))
    claims = [c for variant, summary in summaries.items() for c in claims_of(variant, summary, data, complete)]
    content = {
        "data": data,
        "credit": SETS[chosen].credit,
        "init": args.init,
        "settings": {s.name: settings_hash(s) for s in all_settings},
        "code": fingerprint(),
        "summary": summaries,
        "pairs": runs,
    }
    write(args.output or f"accuracy-{chosen}", args.seed, content, claims)


if __name__ == "__main__":
    main()
