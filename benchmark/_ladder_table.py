"""The tables of the learning ladder, from the results of benchmark/ladder.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HEAD = ("set", "settings", "pairs", "before", "best single metric", "uniform bank", "learned", "learned − best single",
        "learned − uniform", "worst structure")  # fmt: skip
LEARNED = "model:joint"


def ladder_table(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """One row for each set: the rungs, and the differences of the default learner with their intervals."""
    lines = [
        "The ladder, mean Dice on held-out patients (differences: 95 % interval by patient; pairs better / worse; a "
        "row of older settings is made again with `--preset`):",
        "",
        "| " + " | ".join(HEAD) + " |",
        "| " + " | ".join("---" for _ in HEAD) + " |",
    ]
    lines += ["| " + " | ".join(_cells(r)) + " |" for r in results]
    return lines


def rungs_table(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every method of every set."""
    lines = [
        "Every rung of the ladder; metrics that are not marked keep the smoothness of the settings:",
        "",
        "| set | settings | method | tuned | mean Dice | learned − it (95 %) | SDlogJ | folded, % |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in results:
        methods = r["methods"]
        for name in sorted(methods, key=lambda n: -methods[n]["mean_dice"]):
            m, d = methods[name], r["differences"].get(name)
            numbers = [f"{m['sdlogj']:.2f}", f"{100 * m['folding_fraction']:.3f}"]
            cells = [f"`{r['data']}`", _settings(r), f"`{name}`", "yes" if m["tuned"] else "", f"{m['mean_dice']:.3f}",
                     "" if d is None else _interval(d), *numbers]  # fmt: skip
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def _cells(r: Mapping[str, Any]) -> list[str]:
    methods, single = r["methods"], r["best_single"]
    worst = min(r["by_class"].values(), key=lambda d: d["mean"])
    of = {name: f"{methods[name]['mean_dice']:.3f}" for name in (single, "uniform", LEARNED)}
    d = r["differences"]
    return [
        f"`{r['data']}`", _settings(r), str(r["n_pairs"]), f"{r['before']:.3f}",
        f"{of[single]} (`{single.removeprefix('single:')}`)", of["uniform"], of[LEARNED],
        _counted(d["best single metric"]), _counted(d["uniform"]), f"{worst['mean']:+.3f}",
    ]  # fmt: skip


def _settings(r: Mapping[str, Any]) -> str:
    return f"`{r['settings']}`" + (", levels only" if r["stage"] == "levels" else "")


def _counted(d: Mapping[str, Any]) -> str:
    return f"{_interval(d)}, {d['better']} / {d['worse']}"


def _interval(d: Mapping[str, Any]) -> str:
    return f"{d['mean']:+.3f} ({d['low']:+.3f} to {d['high']:+.3f})"
