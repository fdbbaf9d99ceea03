"""Pooled scores of all splits, the paper's table beside them, gains with intervals, and the paper's Figure 1."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import regweave as rw
from experiments import COLUMNS, PAPER, Experiment, Split
from regweave.measures.statistics import paired_bootstrap

MW = "model:mw"
TITLES = {
    "uniform": "uniform mix, λ tuned",
    "global": "one learned mix for all",
    MW: "MW: learned per class, as in the paper",
    "model:per-class": "learned per class, gated",
    "model:joint": "learned jointly",
}
QUICK = "Quick run: one fold, one draw of two training pairs, at most four test pairs, no gates. It is no evidence."


def pooled(
    e: Experiment, splits: Sequence[Split], rows: Mapping[str, Sequence[Mapping[str, Any]]],
    models: Mapping[str, Sequence[Path]],
) -> dict[str, Any]:  # fmt: skip
    """Return the record of an experiment; a pair of several draws counts in each, always for the same patients."""
    groups = {(split.name, row["id"]): row["group"] for split in splits for row in split.test}
    table: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for split, found in rows.items():
        for row in found:
            pair = table.setdefault(row["method"], {}).setdefault((split, row["id"]), {})
            pair[str(row["label"])] = row
    before = {pair: {c: {**row, "dice_after": row["dice_start"]} for c, row in found.items()}
              for pair, found in table["uniform"].items()}  # fmt: skip
    singles = [m for m in table if m.startswith("single:")]
    order = ["before", *singles, *(m for m in TITLES if m in table)]
    labels = [None, *(str(c) for c in e.classes)]
    dice = {m: {c: _dice({**table, "before": before}[m], list(groups), c) for c in labels} for m in order}
    gains = []
    for c in labels:
        alone = {m: dice[m][c] for m in singles}
        best = max(alone, key=lambda m: np.nan_to_num(_mean(alone[m])))
        rivals = {"singles": np.mean(list(alone.values()), axis=0), "best single": alone[best]}
        rivals |= {m: dice[m][c] for m in ("uniform", "global")}
        found = {name: _interval(dice[MW][c] - values, list(groups.values())) for name, values in rivals.items()}
        gains.append({"label": c, "best_single": best, **found})
    return {
        "name": e.name,
        "title": e.title,
        "paper_set": e.paper_set,
        "classes": {str(c): name for c, name in e.classes.items()},
        "paper_organs": {str(c): name for c, name in e.paper_organs.items()},
        "differences": list(e.differences),
        "source": e.source,
        "splits": [{"name": s.name, "train": [p["id"] for p in s.train], "test": [p["id"] for p in s.test]}
                   for s in splits],
        "dice": {m: {"mean" if c is None else c: [None if np.isnan(v) else v for v in values.tolist()]
                     for c, values in by_label.items()} for m, by_label in dice.items()},
        "against_uniform": {m: _interval(dice[m][None] - dice["uniform"][None], list(groups.values())) for m in order},
        "gains": gains,
        "weights": _shares([rw.Model.load(paths[0]).weights for paths in models.values()]),
        "failed": [f"{m} {split}/{pair}" for m, pairs in table.items() for (split, pair), found in pairs.items()
                   if any(row["seconds"] is None for row in found.values())],
    }  # fmt: skip


def _dice(
    found: Mapping[tuple[str, str], Mapping[str, Any]], pairs: Sequence[tuple[str, str]], label: str | None
) -> np.ndarray:
    """Return the Dice of a structure, or the mean of each pair's structures; NaN where none is in both label maps."""
    values = [[row["dice_after"] for c, row in found[pair].items() if label in (None, c)] for pair in pairs]
    return np.array([_mean(np.array(v, dtype=float)) for v in values])


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def _interval(differences: np.ndarray, groups: Sequence[str]) -> list[float | None]:
    """Return a mean with its 95 % interval from drawing patients anew."""
    return [None if np.isnan(v) else v for v in paired_bootstrap(differences, groups)]


def _shares(weights: Sequence[rw.WeightTable]) -> dict[str, dict[str, list[float]]]:
    """Return the share of each metric in each class, mean and spread over the splits."""
    shares = np.stack([np.abs(w.matrix) / np.abs(w.matrix).sum(axis=0) for w in weights])
    members, classes = weights[0].members, weights[0].classes
    return {str(c): {m: [float(shares[:, i, k].mean()), float(shares[:, i, k].std())] for i, m in enumerate(members)}
            for k, c in enumerate(classes)}  # fmt: skip


def write_summary(content: Mapping[str, Any]) -> str:
    """Write all tables in Markdown."""
    parts = [
        "# Experiments of Ferrante et al. 2017",
        f"Settings `{content['settings']['name']}`, seed {content['seed']}.",
    ]
    parts += [f"**{QUICK}**"] if content["quick"] else []
    for e in content["experiments"]:
        n_train, n_test = ([len(s[part]) for s in e["splits"]] for part in ("train", "test"))
        counts = (
            f"{len(e['cases'])} scans ({e['cases_found']} cases found), {len(e['splits'])} splits of {max(n_train)} "
        )
        counts += f"training and {max(n_test)} test pairs; {sum(n_test)} tests of every method."
        notes = "\n".join(f"- {text}" for text in e["differences"])
        parts += [f"## {e['title']}", counts, f"Differences from the paper:\n\n{notes}", *_tables(e), e["source"]]
        parts += [f"**Failed registrations, left out of the means:** {', '.join(e['failed'])}"] if e["failed"] else []
    return "\n\n".join(parts) + "\n"


def _tables(e: Mapping[str, Any]) -> list[str]:
    dice, organs = e["dice"], {"mean": "mean", **e["classes"]}
    columns = {_short(m): m for m in dice if m.startswith("single:") or m == MW}
    gain = {"mean" if row["label"] is None else row["label"]: row for row in e["gains"]}
    rows = []
    paper = {o: dict(zip(COLUMNS, v, strict=True)) for o, v in PAPER[e["paper_set"]].items()}
    for c, organ in e["classes"].items():
        means = [_number(dice[m][c]) for m in ("before", *columns.values())]
        rows.append([organ, "ours", *means, _signed(gain[c]["singles"][:1])])
        if c in e["paper_organs"]:
            rows.append(_paper_row(e["paper_organs"][c], paper.pop(e["paper_organs"][c]), columns))
    rows += [_paper_row(organ, values, columns) for organ, values in paper.items()]
    ladder = [
        [TITLES.get(m, f"{_short(m)} alone, λ tuned" if ":" in m else "before registration"),
         *(_number(dice[m][c]) for c in organs), _signed(e["against_uniform"][m]) if m != "uniform" else "–"]
        for m in dice
    ]  # fmt: skip
    rivals = {"singles": "the mean of singles", "best single": "the best single", "uniform": "the uniform mix",
              "global": "one mix for all"}  # fmt: skip
    gains = [[organs[c], *(_signed(row[r]) for r in rivals), _short(row["best_single"])] for c, row in gain.items()]
    members = list(next(iter(e["weights"].values())))
    shares = [[e["classes"].get(c, "background"), *(f"{row[m][0]:.2f} ± {row[m][1]:.2f}" for m in members)]
              for c, row in e["weights"].items()]  # fmt: skip
    return [
        _table("Mean Dice on test pairs, ours and the paper's", ["organ", "figures", "before", *columns,
               "MW − mean of singles"], rows),
        _table("Mean Dice, all methods with the same training pairs", ["method", *organs.values(), "against uniform"],
               ladder),
        _table("Gain of MW, with 95 % intervals from drawing patients anew", ["organ", *(f"over {r}" for r in
               rivals.values()), "best single"], gains),
        _table("Share of each metric in the weights of MW, mean and spread over splits", ["class",
               *(m.upper() for m in members)], shares),
    ]  # fmt: skip


def _paper_row(organ: str, values: Mapping[str, float], columns: Mapping[str, str]) -> list[str]:
    means = [f"{values[c]:.3f}" if c in values else "–" for c in columns]
    return [organ, "paper", "–", *means, _signed([values["increment"]])]


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]
    return f"**{title}**\n\n" + "\n".join(lines)


def _short(method: str) -> str:
    return method.rpartition(":")[2].upper()


def _number(values: Sequence[float | None]) -> str:
    known = [v for v in values if v is not None]
    return f"{np.mean(known):.3f}" if known else "–"


def _signed(values: Sequence[float | None]) -> str:
    mean, *ends = ("–" if v is None else f"{v:+.3f}".replace("-", "−") for v in values)
    return f"{mean} [{', '.join(ends)}]" if ends and "–" not in ends else mean


def write_figure(content: Mapping[str, Any], path: Path) -> None:
    """Draw the paper's Figure 1: box plots of the Dice of each organ by method, one row for an experiment."""
    experiments = content["experiments"]
    figure = Figure(figsize=(12, 3.2 * len(experiments)), layout="constrained")
    for axis, e in zip(figure.subplots(len(experiments), squeeze=False)[:, 0], experiments, strict=True):
        methods = [m for m in e["dice"] if m.startswith("single:") or m == MW]
        values, names = [], []
        for c, organ in e["classes"].items():
            values += [[v for v in e["dice"][m][c] if v is not None] for m in methods]
            names += [f"{_short(m)}\n{organ}" if i == len(methods) // 2 else _short(m)
                      for i, m in enumerate(methods)]  # fmt: skip
        axis.boxplot(values, showmeans=True)
        axis.set_xticks(range(1, len(names) + 1), names, fontsize=7)
        axis.set(title=e["title"], ylabel="Dice")
    figure.savefig(path, dpi=150)
