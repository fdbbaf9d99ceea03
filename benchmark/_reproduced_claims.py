"""The paper's claims beside what a reproduction found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from regweave.measures.scores import PairScore
from regweave.measures.statistics import paired_bootstrap
from regweave.report.page import signed
from regweave.report.reproduce import tables
from regweave.report.reproduce.page import learned_weights
from regweave.report.reproduce.records import ExperimentRecord, ReproduceRecord

LEVEL = 0.005
"""Means that differ by less count as level: the paper says that MW "outperforms (or is as good as)" single metrics."""
PAPER_SHARES = {"CSF": "NCC", "WM": "NCC", "GM": "MI", "left parotid": "SAD", "right parotid": "SAD"}
"""Metric with the largest weight that the paper's Figure 2 describes."""


def difference(experiment: Mapping[str, Any], method: str, rival: str) -> dict[str, float | None]:
    """Mean Dice of a method minus that of a rival on the same test pairs, with its 95 % interval by patient."""
    values: dict[str, dict[tuple[str, str], float]] = {method: {}, rival: {}}
    groups: dict[tuple[str, str], str] = {}
    for row in experiment["results"]:
        if row["method"] in values and row["error"] is None:
            place = row["split"], row["id"]
            values[row["method"]][place] = PairScore.read((int(c), s) for c, s in row["labels"].items()).mean()
            groups[place] = row["group"]
    both = [p for p in values[method] if p in values[rival]]
    return interval_of([values[method][p] - values[rival][p] for p in both], [groups[p] for p in both])


def interval_of(differences: Sequence[float], groups: Sequence[str]) -> dict[str, float | None]:
    """Mean difference with its 95 % interval by patient, as JSON values."""
    found = (
        paired_bootstrap(differences, groups)._asdict()
        if len(differences)
        else dict.fromkeys(("mean", "low", "high"), np.nan)
    )
    return {k: None if np.isnan(v) else float(v) for k, v in found.items()}


def claims_table(record: ReproduceRecord) -> str:
    """One row for each experiment: what the paper says of MW, and what the same comparison gives here."""
    header = ["experiment", "organs with MW ≥ best single metric", "MW − mean of singles", "paper", "MW − best single",
              "MW − uniform mix", "MW − one mix for all", "s per pair"]  # fmt: skip
    rows = [_row(e, record.timing.get(e.name, {})) for e in record.experiments]
    title = (
        f"The paper's claims. An organ counts where the mean of MW is at most {LEVEL} below the best single metric, "
        "which is chosen on the test pairs. Differences of mean Dice, 95 % intervals by patient"
    )
    return tables.Table(title, header, rows).markdown()


def _row(e: ExperimentRecord, timing: Mapping[str, float]) -> list[str]:
    level = [
        float(np.mean(tables.dice(e, "model:mw", c))) >= max(map(np.mean, _alone(e, c))) - LEVEL for c in e.classes
    ]
    gains = {("best" if g.best_single else g.over): g for g in e.gains if g.label is None}
    paper = [row.increment for row in e.paper.values()]
    against = (e.model_extra or {}).get("mw_minus", {}).get("model:global")
    mean, best, uniform = (tables.interval(gains.get(k)) for k in ("mean of single metrics", "best", "uniform"))
    return [
        f"`{e.name}`", f"{sum(level)} of {len(level)}", mean, f"{min(paper):+.3f} to {max(paper):+.3f}", best, uniform,
        tables.DASH if against is None else _interval(against),
        f"{timing['model:mw']:.2f}" if "model:mw" in timing else tables.DASH,
    ]  # fmt: skip


def _alone(e: ExperimentRecord, label: str) -> Sequence[Sequence[float]]:
    return [tables.dice(e, m, label) for m in e.methods if m.startswith("single:")]


def _interval(row: Mapping[str, float | None]) -> str:
    mean, low, high = (row[k] for k in ("mean", "low", "high"))
    ends = "" if low is None or high is None else f" [{signed(low, 3)}, {signed(high, 3)}]"
    return tables.DASH if mean is None else f"{signed(mean, 3)}{ends}"


def anchored_table(record: ReproduceRecord) -> str | None:
    """MW with the class of the node's own place, where that was measured."""
    rows = []
    for e in record.experiments:
        if found := (e.model_extra or {}).get("anchored"):
            cells = [_interval(found["minus"][m]) for m in ("model:mw", "uniform")]
            rows.append([f"`{e.name}`", str(found["n"]), f"{found['mean_dice']:.3f}", *cells])
    title = (
        "MW with the weights of the class where a node is, instead of the class where a label puts it (eq. 1): the "
        "same models, test pairs of the first draws"
    )
    header = ["experiment", "pairs", "mean Dice", "minus MW", "minus the uniform mix"]
    return tables.Table(title, header, rows).markdown() if rows else None


def _spread(value: float) -> str:
    """Spread over draws, nothing where there was one."""
    return "" if np.isnan(value) else f" ± {value:.2f}"


def share_table(record: ReproduceRecord) -> str:
    """Metric with the largest learned weight, class by class, beside the one that the paper names."""
    rows = []
    for e in record.experiments:
        for name, shares in learned_weights(e, "model:mw").items():
            largest = max(shares, key=lambda m: shares[m][0])
            others = ", ".join(f"{m} {share:.2f}{_spread(spread)}" for m, (share, spread) in shares.items())
            rows.append([f"`{e.name}`", name, largest, PAPER_SHARES.get(name, tables.DASH), others])
    title = "What MW favours: share of each metric in the weights of a class, mean and spread over folds and draws"
    return tables.Table(title, ["experiment", "class", "largest", "paper", "shares"], rows, n_words=5).markdown()
