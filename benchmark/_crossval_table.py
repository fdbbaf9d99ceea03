"""Tables of the cross-validations: the rungs, rivals on the same pairs, and structures that were withheld."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from _common import RESULTS
from regweave.measures.statistics import paired_bootstrap

Result = Mapping[str, Any]
HEAD = (
    "set", "pairs, people", "before", "`default`", "uniform", "best single", "learned", "learned, mask",
    "segmentation alone", "learned − single", "learned − uniform", "mask − segmentation", "worst structure",
)  # fmt: skip
RIVALS = {
    "registration_net-{}.json": ("registration network trained with Dice", "learned"),
    "convex_maps-{}.json": ("convexAdam on the same maps", "learned"),
    "convex_maps-{}-mask.json": ("convexAdam on maps and moving mask", "learned, mask"),
}
"""Files of rivals that see the same masks, what they are, and the rung that they stand beside."""


def crossval_table(results: Sequence[Result]) -> list[str]:
    """One row for each set with all structures learned; then rivals, then withheld structures."""
    whole = [r for r in results if not r["withheld"]]
    lines = [
        "Cross-validation by person over all people of a set: mean Dice of pairs of which nothing has seen either "
        "person (differences: 95 % interval by person; pairs better / worse). "
        "Maps: of U-Nets that never saw the person.",
        "",
        *_markdown(HEAD, [_cells(r) for r in whole]),
    ]
    surfaces = [f"`{r['data']}`, {r['n_pairs']} pairs, {_surface(r)}" for r in whole if r["true_mm"]]
    if surfaces:
        lines += ["", f"Mean distance of surfaces, without and with the mask, mm: {'; '.join(surfaces)}."]
    first = {r["data"]: r for r in reversed(whole)}
    rivals = [cells for r in first.values() for cells in _rivals(r)]
    if rivals:
        head = ("set", "rival that sees the same masks", "pairs", "its Dice", "ours on these pairs",
                "ours − its (95 %)", "its folded voxels, %")  # fmt: skip
        lines += ["", *_markdown(head, rivals)]
    hidden = [r for r in results if r["withheld"]]
    if hidden:
        head = ("set", "withheld, and scored", "pairs", "`default`", "learned from the others", "difference (95 %)",
                "with the mask of the others", "difference (95 %)")  # fmt: skip
        lines += [
            "",
            "Structures that were left out of learning and of the maps (and the families of mixes to choose among):",
            "",
        ]
        lines += _markdown(head, [_hidden(r) for r in hidden])
    return lines


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def _cells(r: Result) -> list[str]:
    of = {name: f"{m['mean_dice']:.3f}" for name, m in r["methods"].items()}
    d = r["differences"]
    single = sorted({name.split(" × ")[0] for name in r["chosen"]["single"]})
    worst = min((found["mean"], label) for label, found in r["by_class"].items())
    return [
        f"`{r['data']}`", f"{r['n_pairs']}, {r['n_people_in_pairs']}", f"{r['before']:.3f}", of["default"],
        of["uniform"], f"{of['single']} (`{', '.join(single)}`)", of["learned"], of["learned, mask"],
        of["segmentation"], _counted(d["learned − single"]), _counted(d["learned − uniform"]),
        _counted(d["learned, mask − segmentation"]), f"{worst[0]:+.3f} ({r['labels'][worst[1]]})",
    ]  # fmt: skip


def _surface(r: Result) -> str:
    return " and ".join(f"{r['methods'][rung]['assd_mm']:.2f}" for rung in ("learned", "learned, mask"))


def _counted(d: Mapping[str, Any]) -> str:
    return f"{_interval(d)}, {d['better']} / {d['worse']}"


def _interval(d: Mapping[str, Any]) -> str:
    if d["low"] is None or np.isnan(d["low"]):
        return f"{d['mean']:+.3f}"
    return f"{d['mean']:+.3f} ({d['low']:+.3f} to {d['high']:+.3f})"


def _rivals(r: Result) -> list[list[str]]:
    out = []
    for pattern, (title, rung) in RIVALS.items():
        path = RESULTS / pattern.format(r["data"])
        if path.exists():
            out.append(against(r, json.loads(path.read_text(encoding="utf-8")), title, rung))
    return out


def against(r: Result, rival: Mapping[str, Any], title: str, rung: str) -> list[str]:
    """Compare a rung with a rival on the pairs that both have; the rival's mean over all its pairs stands behind it."""
    theirs = {row["pair"]: _mean(row["dice"]) for row in rival["pairs"]}
    rows = [row for row in r["rows"] if row["pair"] in theirs]
    ours = np.array([row["dice"][rung] for row in rows])
    its = np.array([theirs[row["pair"]] for row in rows])
    interval = paired_bootstrap(ours - its, [row["group"] for row in rows])
    folded = 100 * max(row["folding_fraction"] for row in rival["pairs"])
    more = f" ({rival['mean_dice']:.3f} on {len(theirs)})" if len(theirs) > len(rows) else ""
    return [
        f"`{r['data']}`", title, str(len(rows)), f"{its.mean():.3f}{more}", f"{ours.mean():.3f}",
        _interval(interval._asdict()), f"{folded:.2f}",
    ]  # fmt: skip


def _mean(dice: Mapping[str, float | None]) -> float:
    return float(np.mean([d for d in dice.values() if d is not None and np.isfinite(d)]))


def _hidden(r: Result) -> list[str]:
    d, of = r["withheld_differences"], r["withheld_dice"]
    shown = ", ".join(r["withheld"].values()) if len(r["withheld"]) < 8 else f"{len(r['withheld'])} structures"
    return [
        f"`{r['data']}`, {', '.join(r['mixes_tried'])}", shown, str(r["n_pairs"]), f"{of['default']:.3f}",
        f"{of['learned']:.3f}",
        _interval(d["learned − default"]), f"{of['learned, mask']:.3f}", _interval(d["learned, mask − default"]),
    ]  # fmt: skip


def segmentation_table(results: Sequence[Result]) -> list[str]:
    """One row for each set: Dice of the networks' segmentations over all its people."""
    rows = [
        [
            f"`{name}`", f"{s['n']}, {s['n_subjects']}", f"{s['mean']:.3f} ({s['low']:.3f} to {s['high']:.3f})",
            ", ".join(f"{part} {d:.2f}" for part, d in s["dice"].items()) if len(s["dice"]) < 14 else
            f"{len(s['dice'])} structures, {min(s['dice'].values()):.2f} to {max(s['dice'].values()):.2f}",
        ]
        for result in results
        for name, s in result["sets"].items()
    ]  # fmt: skip
    head = ("set", "images, people", "mean Dice (95 %)", "structures")
    text = "Segmentations of the U-Nets alone, every image by a network that never saw the person:"
    return [text, "", *_markdown(head, rows)]
