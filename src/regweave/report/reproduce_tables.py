"""Tables of a reproduction, made from its JSON; the page and the summary show the same ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regweave.jobs.scoring import pair_score
from regweave.measures.scores import When

MEAN = "mean"
PAPER_METHODS = {"SAD": "single:sad", "MI": "single:mi", "NCC": "single:ncc", "DWT": "single:dwt", "MW": "model:mw"}
"""Our method for each column of the paper's table."""
WORDS = {
    "before": "before registration",
    "uniform": "uniform mix, λ tuned",
    "model:global": "one learned mix for all",
    "model:mw": "MW: learned per class, as in the paper",
    "model:per-class": "learned per class, gated",
    "model:joint": "learned jointly",
    "model:search": "direct search on Dice",
}
ORDER = ("uniform", "model:global", "model:mw", "model:per-class", "model:joint", "model:search")

Experiment = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """A title, a header and rows of text; the first ``n_words`` columns are words, the others numbers."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    n_words: int = 1

    def markdown(self) -> str:
        """Return the table with its title above it."""
        marks = ["---" if i < self.n_words else "---:" for i in range(len(self.header))]
        lines = ["| " + " | ".join(row) + " |" for row in (self.header, marks, *self.rows)]
        return f"**{self.title}**\n\n" + "\n".join(lines)


def ladder(experiment: Experiment) -> list[str]:
    """Methods in the order in which a reader climbs: before, single metrics, mixes, models."""
    known = experiment["methods"]
    singles = [name for name in known if name.startswith("single:")]
    return ["before", *singles, *(name for name in ORDER if name in known)]


def words(method: str) -> str:
    """Name a method for a reader.

    Examples
    --------
    >>> words("single:ncc")
    'NCC alone, λ tuned'
    """
    if method.startswith("single:"):
        return f"{method.removeprefix('single:').upper()} alone, λ tuned"
    return WORDS.get(method, method)


def short(method: str) -> str:
    """Name a method below a box."""
    name = method.rpartition(":")[2]
    return name.upper() if method.startswith(("single:", "model:mw")) else name


def dice(experiment: Experiment, method: str, label: str) -> list[float]:
    """Dice of a method on each test pair of each split, where the structure is in both label maps.

    ``before`` takes the numbers of the first method; `MEAN` is over the structures of each pair. A structure that
    warping loses counts 0; a failed pair does not count at all.
    """
    source = experiment["methods"][0] if method == "before" else method
    when: When = "dice_before" if method == "before" else "dice_after"
    found = [pair_score(r) for r in experiment["results"] if r["method"] == source and r["error"] is None]
    if label == MEAN:
        return [score.mean(when) for score in found if score.counted]
    return [getattr(s, when) for score in found for s in score.counted if str(s.label) == label]


def mean(values: Sequence[float]) -> str:
    """Mean with three digits, a dash for none."""
    return f"{np.mean(values):.3f}" if len(values) else "–"


def interval(row: Mapping[str, Any] | None) -> str:
    """Write a difference with its interval."""
    if row is None or row["mean"] is None:
        return "–"
    ends = "" if row["low"] is None else f" [{row['low']:+.3f}, {row['high']:+.3f}]"
    return f"{row['mean']:+.3f}{ends}".replace("-", "−")


def paper_table(experiment: Experiment) -> Table:
    """Put the paper's Table 1 beside our figures, organ by organ."""
    rows = []
    ours = experiment["paper_organs"]
    for label, name in experiment["classes"].items():
        cells = [dice(experiment, method, label) for method in PAPER_METHODS.values()]
        gain = _gain(experiment, label, "mean of single metrics")
        change = "–" if gain is None or gain["mean"] is None else f"{gain['mean']:+.3f}".replace("-", "−")
        rows.append([name, "ours", mean(dice(experiment, "before", label)), *map(mean, cells), change])
        if label in ours:
            rows.append(_paper_row(ours[label], experiment["paper"]))
    rows += [_paper_row(organ, experiment["paper"]) for organ in experiment["paper"] if organ not in ours.values()]
    header = ["organ", "figures", "before", *PAPER_METHODS, "MW − mean of singles"]
    return Table(f"Mean Dice on test pairs, ours and the paper's ({experiment['paper_set']})", header, rows, 2)


def _paper_row(organ: str, paper: Mapping[str, Mapping[str, float]]) -> list[str]:
    values = [paper[organ][column] for column in PAPER_METHODS]
    return [organ, "paper", "–", *(f"{v:.3f}" for v in values), f"{paper[organ]['increment']:+.3f}"]


def ladder_table(experiment: Experiment) -> Table:
    """Every method with every organ, and its difference from the uniform mix."""
    labels = experiment["classes"]
    against = {row["method"]: row for row in experiment["comparison"] if row["label"] is None}
    rows = []
    for method in ladder(experiment):
        cells = [dice(experiment, method, label) for label in (MEAN, *labels)]
        row = against.get(method)
        counts = "–" if row is None else f"{row['better']}/{row['worse']}"
        rows.append([words(method), *map(mean, cells), interval(row), counts, str(len(cells[0]))])
    header = ["method", "mean", *labels.values(), "against uniform", "better/worse", "pairs"]
    return Table("The ladder: mean Dice on test pairs, all methods with the same training pairs", header, rows)


def gain_table(experiment: Experiment) -> Table:
    """Gain of the paper's method over its rivals, with intervals."""
    rivals = ("mean of single metrics", "best single metric", "uniform")
    rows = []
    for label in (None, *experiment["classes"]):
        name = "mean" if label is None else experiment["classes"][label]
        cells = [interval(_gain(experiment, label, rival)) for rival in rivals]
        best = _gain(experiment, label, "best single metric")
        rows.append([name, *cells, "–" if best is None else short(best["over"])])
    header = ["organ", "over the mean of singles", "over the best single", "over the uniform mix", "best single"]
    return Table("Gain of MW in Dice, with 95 % intervals from drawing patients anew", header, rows)


def _gain(experiment: Experiment, label: str | None, rival: str) -> Mapping[str, Any] | None:
    rows = (row for row in experiment["gains"] if row["label"] == label)
    wanted = [r for r in rows if (r["best_single"] if rival == "best single metric" else r["over"] == rival)]
    return wanted[0] if wanted else None


def truth_table(experiment: Experiment) -> Table | None:
    """Distance to the known deformation; None where there is none."""
    errors = experiment["truth_error_mm"]
    if not errors:
        return None
    labels = {c: name for c, name in experiment["classes"].items() if c in next(iter(errors.values()))}
    rows = [[words("before"), *(f"{next(iter(errors.values()))[c]['before']:.2f}" for c in labels)]]
    measured = [method for method in ladder(experiment) if method in errors]
    rows += [[words(method), *(f"{errors[method][c]['after']:.2f}" for c in labels)] for method in measured]
    return Table(
        "Mean distance to the known deformation inside each organ, mm", ["method", *labels.values()], rows
    )  # fmt: skip


def _span(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.3g}" if low == high else f"{low:.3g}–{high:.3g}"


def _at_the_end(run: Mapping[str, Any]) -> bool:
    """Tell whether tuning took the smallest or the largest value that it tried."""
    tried = [row["smoothness"] for row in run.get("tuning", ())]
    return bool(tried) and run["smoothness"] in (min(tried), max(tried))


def cost_table(experiment: Experiment, timing: Mapping[str, float]) -> Table:
    """List what each method costs: smoothness, training, seconds of a registration, folding."""
    rows = []
    for method in ladder(experiment)[1:]:
        runs = [r for r in experiment["runs"] if r["method"] == method]
        folds = [r["folding_fraction"] for r in experiment["results"] if r["method"] == method and r["error"] is None]
        span = _span([r["smoothness"] for r in runs]) + (" *" if any(map(_at_the_end, runs)) else "")
        trained = [
            str(round(np.mean([r[k] for r in runs]))) if k in runs[0] else "–" for k in ("registrations", "inferences")
        ]
        seconds = f"{timing[method]:.2f}" if method in timing else "–"
        folding = f"{100 * np.mean([f or 0.0 for f in folds]):.4f}" if folds else "–"
        rows.append([words(method), span, *trained, seconds, folding])
    header = ["method", "smoothness λ", "registrations", "inferences", "s per pair, 1 thread", "folding %"]
    return Table("Cost: training (mean of splits) and use; * best λ at the end of the range tried", header, rows)
