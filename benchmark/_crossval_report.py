"""Numbers of a cross-validation: means, differences with intervals by person, targets, and the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from _common import Claim
from regweave.measures.statistics import count_better, paired_bootstrap

Row = Mapping[str, Any]
RUNGS = ("default", "uniform", "single", "learned", "learned, mask")
WANTED = {
    "msd_hippocampus": (0.86, 0.875),
    "openkbp_head_neck": (0.77, 0.80),
    "btcv_abdomen": (0.68, 0.72),
    "acdc_mm": (0.83, 0.84),
    "ibsr18_64_affine": (0.88, None),
    "lpba40_80": (0.76, None),
}
"""Mean Dice that is asked for, without and with the moving mask."""
GAIN = 0.02
ABOVE_SEGMENTATION = 0.005
WORST_STRUCTURE = -0.005
WITHHELD = -0.003


def mean_of(row: Row, rung: str, labels: Sequence[str], what: str = "dice_after") -> float:
    """Mean over structures of a number of one pair; NaN where the registration failed or shows none of them."""
    found = row["segmentation"] if rung == "segmentation" else row["methods"][rung].get(what, {})
    values = [v for label in labels if (v := found.get(label)) is not None]
    return float(np.mean(values)) if values else float("nan")


def difference(rows: Sequence[Row], first: Callable[[Row], float], second: Callable[[Row], float]) -> dict[str, Any]:
    """Mean of first − second over pairs, its 95 % interval by person, and how many pairs are better and worse."""
    d = [first(row) - second(row) for row in rows]
    interval = paired_bootstrap(d, [row["group"] for row in rows])
    return {
        "mean": interval.mean, "low": interval.low, "high": interval.high, "n": int(np.isfinite(d).sum()),
        **count_better(d)._asdict(),
    }  # fmt: skip


def condense(rows: Sequence[Row], withheld: Sequence[int]) -> dict[str, Any]:
    """Means by rung and structure, and the differences that a reader asks for."""
    of_labels = {label for row in rows for label in row["methods"]["default"].get("dice_after", {})}
    labels = sorted(of_labels, key=int)
    hidden = [str(v) for v in withheld]
    known = [label for label in labels if label not in hidden]

    def score(rung: str, among: Sequence[str] = known, what: str = "dice_after") -> Callable[[Row], float]:
        return lambda row: mean_of(row, rung, among, what)

    found = {
        "n_pairs": len(rows),
        "failed": sum(m["error"] is not None for row in rows for m in row["methods"].values()),
        "before": _mean(rows, score("default", known, "dice_before")),
        "methods": {rung: _summary(rows, rung, known, labels) for rung in (*RUNGS, "segmentation")},
        "chosen": {rung: sorted({row["chosen"][rung] for row in rows}) for rung in RUNGS},
        "differences": {
            f"{rung} − {rival}": difference(rows, score(rung), score(rival))
            for rung in RUNGS[3:]
            for rival in ("default", "uniform", "single", "segmentation")
        },
        "by_class": {
            label: difference(rows, score("learned", [label]), score("uniform", [label])) for label in known
        },
        "rows": [_short(row, known, hidden) for row in rows],
    }  # fmt: skip
    if hidden:
        found["withheld_differences"] = {
            f"{rung} − default": difference(rows, score(rung, hidden), score("default", hidden)) for rung in RUNGS[3:]
        }
        found["withheld_dice"] = {rung: _mean(rows, score(rung, hidden)) for rung in RUNGS}
    return found


def _mean(rows: Sequence[Row], score: Callable[[Row], float]) -> float:
    values = np.array([score(row) for row in rows])
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def _summary(rows: Sequence[Row], rung: str, known: Sequence[str], labels: Sequence[str]) -> dict[str, Any]:
    """Means of one rung over all pairs."""

    def mean(among: Sequence[str], what: str = "dice_after") -> float:
        return _mean(rows, lambda row: mean_of(row, rung, among, what))

    out: dict[str, Any] = {"mean_dice": mean(known), "dice": {label: mean([label]) for label in labels}}
    if rung == "segmentation":
        return out
    done = [m for row in rows if "sdlogj" in (m := row["methods"][rung])]
    if not done:
        return out
    numbers = {"folding_fraction": max, "sdlogj": np.mean, "seconds": np.mean}
    out |= {name: float(join([m[name] for m in done])) for name, join in numbers.items()}
    return out | {"assd_mm": mean(known, "assd_mm"), "hd95_mm": mean(known, "hd95_mm")}


def _short(row: Row, known: Sequence[str], hidden: Sequence[str]) -> dict[str, Any]:
    """One pair: mean Dice by rung, of the structures that were learned and of those withheld."""
    rungs = (*RUNGS, "segmentation")
    out = {name: row[name] for name in ("pair", "fold", "group")}
    out["dice"] = {r: mean_of(row, r, known) for r in rungs}
    if hidden:
        out["withheld_dice"] = {r: mean_of(row, r, hidden) for r in RUNGS}
    errors = {rung: m["error"] for rung, m in row["methods"].items() if m["error"] is not None}
    return {**out, "errors": errors} if errors else out


def claims_of(found: Mapping[str, Any]) -> list[Claim]:
    """What a cross-validation is held against."""
    where = f"{found['data']}, {found['settings']}, {found['predictor']}, {found['n_pairs']} pairs"
    if found["withheld"]:
        which = ", ".join(found["withheld"])
        return [
            Claim(f"{name}, withheld structures {which}, {where}", d["mean"], "+.4f", target=WITHHELD)
            for name, d in found["withheld_differences"].items()
        ]
    wanted = dict(zip(RUNGS[3:], WANTED.get(found["data"], (None, None)), strict=True))
    claims = [
        Claim(f"mean Dice, {rung}, {where}", found["methods"][rung]["mean_dice"], target=target)
        for rung, target in wanted.items()
    ]
    for rival in ("single", "uniform"):
        d = found["differences"][f"learned − {rival}"]
        claims.append(Claim(f"learned − {rival}, {where}", d["mean"], "+.4f", target=GAIN))
    above = found["differences"]["learned, mask − segmentation"]["mean"]
    claims.append(Claim(f"learned with mask − segmentation alone, {where}", above, "+.4f", target=ABOVE_SEGMENTATION))
    worst = min((d["mean"] for d in found["by_class"].values()), default=float("nan"))
    claims.append(Claim(f"learned − uniform, worst structure, {where}", worst, "+.4f", target=WORST_STRUCTURE))
    folding = max(found["methods"][rung]["folding_fraction"] for rung in RUNGS[3:])
    return [*claims, Claim(f"folded voxels, {where}", folding, ".6f", target=0.0, sense="at most")]
