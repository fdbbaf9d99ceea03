"""The table of README.md that sets regweave beside its peers, from the results of benchmark/peers.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from _peer_methods import OURS, OWN, load
from _peer_report import START

PRESETS = tuple(load(OWN).SETTINGS)
MODEL = "regweave with a model of the training patients"
HEAD = (
    "set", "method", "Dice", f"minus `{OURS}` (95 %)", "HD95, mm", "folded, %", "SDlogJ", "seconds", "ratio", "MB",
    "pairs", "failed",
)  # fmt: skip


def peer_table(results: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of the table: every set with its methods, best Dice first, and under it how it was made."""
    lines = [
        "Accuracy and time against peers:",
        "",
        "| " + " | ".join(HEAD) + " |",
        "| " + " | ".join("---" for _ in HEAD) + " |",
    ]
    for result in results:
        methods = result["methods"]
        order = sorted(methods, key=lambda n: -(methods[n]["summary"]["dice"]["mean"] or 0.0))
        lines += ["| " + " | ".join(_cells(result, name)) + " |" for name in order]
    threads = " or ".join(sorted({str(r["threads"]) for r in results}))
    budgets = sorted({(len(r["training_pairs"]), len(r["test_pairs"])) for r in results})
    pairs = "; ".join(f"{t} training and {n} test pairs" for t, n in budgets)
    return [
        *lines,
        "",
        f"Deformable stage alone from one start, {threads} threads, each registration in its own process; {pairs} of "
        "different patients. Each peer chose among the settings of its adapter by mean Dice on the training pairs "
        "(slow ones on the first of them; without training pairs, its first setting). "
        "Labels are warped and measured by the same code for all; intervals are by patient. Ratio: seconds over ours. "
        "The model of the training patients is `model:joint` of the ladder below. "
        "No HD95 where the spacing of a set is nominal. Seconds: of the deformable stage, images read, on a machine "
        "that did nothing else; MB: peak memory of the process. A method with fewer pairs is compared on those alone.",
    ]


def short_table(results: Sequence[dict[str, Any]]) -> list[str]:
    """One row for each method, one column for each set: Dice, and seconds."""
    found = [{_row_name(name): m for name, m in r["methods"].items()} for r in results]
    names = list(dict.fromkeys(name for methods in found for name in methods))

    def rank(name: str) -> float:
        # Paired with ours, so that a method with few pairs or sets is not ranked by how easy these are.
        gains = [methods[name]["summary"]["difference"]["mean"] for methods in found if name in methods]
        known = [g for g in gains if g is not None]
        return -sum(known) / len(known) if known else 1.0

    lines = [
        "Mean Dice on test patients, and seconds of the deformable stage on two cores. A number in brackets: "
        "of so many pairs only, which may be easier ones. Best mean difference to "
        f"`{OURS}` on the same pairs first:",
        "",
        "| method | " + " | ".join(f"`{r['data']}`, {_pairs(len(r['test_pairs']))}" for r in results) + " |",
        "| --- | " + " | ".join("---" for _ in results) + " |",
    ]
    for name in sorted(names, key=rank):
        cells = [_short(m.get(name), len(r["test_pairs"])) for m, r in zip(found, results, strict=True)]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return lines


def _pairs(n: int) -> str:
    return f"{n} pair" + "s" * (n != 1)


def _row_name(name: str) -> str:
    """Return the name of a row: the models of all sets share one."""
    is_model = name.startswith("regweave:") and name.split(":")[1] not in PRESETS
    return MODEL if is_model else name if name == START else f"`{name}`"


def _short(method: dict[str, Any] | None, most: int) -> str:
    if method is None:
        return ""
    s = method["summary"]
    if s["dice"]["mean"] is None:
        return "failed"
    seconds = "" if s.get("seconds") is None else f", {s['seconds']:.1f} s"
    failed = f" ({s['failed']} of {s['n'] + s['failed']} failed)" if s["failed"] else ""
    fewer = f" [{s['n']}]" if s["n"] + s["failed"] < most else ""
    return f"{s['dice']['mean']:.3f}{seconds}{fewer}{failed}"


def _cells(result: dict[str, Any], name: str) -> list[str]:
    method = result["methods"][name]
    s = method["summary"]
    shown = name if name == START else f"`{name}`"
    if "version" in method and not name.startswith("regweave"):
        shown += f" {method['version']}"
    failed = f"{s['failed']} of {s['n'] + s['failed']}: {'; '.join(s['errors'])}" if s["failed"] else "0"
    return [
        f"`{result['data']}`",
        shown,
        _number(s["dice"]["mean"], ".3f"),
        "" if name == OURS else _difference(s["difference"]),
        "" if result["nominal_spacing"] else _number(s["hd95_mm"], ".2f"),
        _number(s["folding_fraction"], ".3f", 100.0),
        _number(s["sdlogj"], ".3f"),
        _number(s["seconds"], ".1f"),
        _number(s["seconds_ratio"], ".2f"),
        _number(s.get("peak_memory_mb") or None, ".0f"),
        str(s["n"]),
        failed.replace("|", "\\|"),
    ]


def _difference(d: dict[str, Any]) -> str:
    if d["mean"] is None:
        return ""
    interval = f" ({d['low']:+.3f} to {d['high']:+.3f})" if d["n_subjects"] > 1 else ""
    return f"{d['mean']:+.3f}{interval}"


def _number(value: float | None, style: str, scale: float = 1.0) -> str:
    return "" if value is None else f"{value * scale:{style}}"
