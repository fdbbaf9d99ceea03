"""Summaries of the comparison with the peers, from its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from _intervals import mean_interval
from _peer_methods import OURS
from accuracy import mean_dice

START = "start"
Row = Mapping[str, Any]


def finished(rows: Sequence[Row]) -> list[Row]:
    """Rows without an error."""
    return [r for r in rows if r["error"] is None]


def tuning_score(rows: Sequence[Row]) -> dict[str, Any]:
    """What a setting reaches on some pairs; all that a choice between settings may look at."""
    done = finished(rows)
    return {
        "dice": _mean([mean_dice(r) for r in done]),
        "seconds": _mean([r.get("seconds") for r in done]),
        "folding_fraction": _mean([r["folding_fraction"] for r in done]),
        "n": len(done),
        "failed": len(rows) - len(done),
        "errors": sorted({r["error"] for r in rows if r["error"] is not None}),
    }


def best(scores: Mapping[str, Row]) -> str:
    """Return the setting with the fewest failures, and of those the one with the highest mean Dice."""
    return max(scores, key=lambda name: (-scores[name]["failed"], np.nan_to_num(scores[name]["dice"])))


def summarise(rows: Sequence[Row], ours: Sequence[Row], seed: int) -> dict[str, Any]:
    """Means over the pairs, and what they are against our default on the pairs that both finished."""
    done = finished(rows)
    both = [(r, o) for r, o in zip(rows, ours, strict=True) if r["error"] is None and o["error"] is None]
    timed = [(r, o) for r, o in both if r.get("seconds") and o.get("seconds")]
    subjects = [r["subject"] for r, _ in both]
    return {
        **tuning_score(rows),
        "dice": mean_interval([mean_dice(r) for r in done], [r["subject"] for r in done], seed),
        "difference": mean_interval([mean_dice(r) - mean_dice(o) for r, o in both], subjects, seed),
        "labels": by_label(done, "dice"),
        "labels_hd95_mm": by_label(done, "hd95_mm"),
        "hd95_mm": _mean([v for r in done for v in r["hd95_mm"].values()]),
        "sdlogj": _mean([r["sdlogj"] for r in done]),
        "pairs_with_folds": sum(r["folding_fraction"] > 0 for r in done),
        "min_jacobian": min((r["min_jacobian"] for r in done), default=float("nan")),
        "wall_seconds": _mean([r.get("wall_seconds") for r in done]),
        "cpu_seconds": _mean([r.get("cpu_seconds") for r in done]),
        "peak_memory_mb": max((r.get("peak_memory_mb", 0.0) for r in done), default=float("nan")),
        "seconds_ratio": float(np.median([r["seconds"] / o["seconds"] for r, o in timed])) if timed else None,
    }


def by_label(rows: Sequence[Row], what: str) -> dict[str, float]:
    """Mean of each label over the rows that have it."""
    labels = list(rows[0][what]) if rows else []
    return {v: _mean([r[what][v] for r in rows]) for v in labels}


def _mean(values: Sequence[float | None]) -> float:
    kept = [v for v in values if v is not None and np.isfinite(v)]
    return float(np.mean(kept)) if kept else float("nan")


def text_table(methods: Mapping[str, Row]) -> str:
    """Return the summaries as a table for the terminal, best Dice first."""
    head = f"{'method':<26} {'Dice':>6} {'to ours':>8} {'HD95':>6} {'fold %':>7} {'SDlogJ':>7} {'s':>7} {'ratio':>6}"
    lines = [head, "-" * len(head)]
    order = sorted(methods, key=lambda n: -np.nan_to_num(methods[n]["summary"]["dice"]["mean"]))
    for name in order:
        s = methods[name]["summary"]
        failed = f"  {s['failed']} failed: {'; '.join(s['errors'])}" if s["failed"] else ""
        shown = f"{name[:25]:<26} {s['dice']['mean']:6.4f} {s['difference']['mean']:+8.4f} {s['hd95_mm']:6.2f} "
        shown += f"{100 * s['folding_fraction']:7.4f} {s['sdlogj']:7.3f} {s['seconds']:7.2f} "
        shown += f"{'':>6}" if s["seconds_ratio"] is None else f"{s['seconds_ratio']:6.2f}"
        lines.append(shown + failed)
    return "\n".join([*lines, f"ratio: seconds of the deformable stage over those of {OURS}"])
