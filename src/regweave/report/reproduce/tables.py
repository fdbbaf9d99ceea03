"""Tables of a reproduction, for its page and its summary alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from regweave.measures.scores import When
from regweave.report.page import DASH, number, signed
from regweave.report.records import Difference
from regweave.report.reproduce.records import ExperimentRecord, GainRecord, Published, Run

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


def ladder(experiment: ExperimentRecord) -> list[str]:
    """Methods in the order in which a reader climbs: before, single metrics, mixes, models."""
    known = experiment.methods
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


def dice(experiment: ExperimentRecord, method: str, label: str) -> list[float]:
    """Dice of a method on each test pair of each split, where the structure is in both label maps.

    ``before`` takes the numbers of the first method; `MEAN` is over the structures of each pair. A structure that
    warping loses counts 0; a failed pair does not count at all.
    """
    source = experiment.methods[0] if method == "before" else method
    when: When = "dice_before" if method == "before" else "dice_after"
    found = [r.score for r in experiment.results if r.method == source and r.error is None]
    if label == MEAN:
        return [score.mean(when) for score in found if score.counted]
    return [getattr(s, when) for score in found for s in score.counted if str(s.label) == label]


def mean(values: Sequence[float]) -> str:
    """Mean with three digits, a dash for none."""
    return number(float(np.mean(values))) if len(values) else DASH


def interval(row: Difference | GainRecord | None) -> str:
    """Write a difference with its interval."""
    if row is None or row.mean is None:
        return DASH
    ends = "" if row.low is None else f" [{signed(row.low, 3)}, {signed(row.high, 3)}]"
    return signed(row.mean, 3) + ends


def paper_table(experiment: ExperimentRecord) -> Table:
    """Put the paper's Table 1 beside our figures, organ by organ."""
    rows = []
    ours, paper = experiment.paper_organs, experiment.paper
    for label, name in experiment.classes.items():
        cells = [dice(experiment, method, label) for method in PAPER_METHODS.values()]
        gain = _gain(experiment, label, "mean of single metrics")
        change = signed(None if gain is None else gain.mean, 3)
        rows.append([name, "ours", mean(dice(experiment, "before", label)), *map(mean, cells), change])
        if label in ours:
            rows.append(_paper_row(ours[label], paper[ours[label]]))
    rows += [_paper_row(organ, row) for organ, row in paper.items() if organ not in ours.values()]
    header = ["organ", "figures", "before", *PAPER_METHODS, "MW − mean of singles"]
    return Table(f"Mean Dice on test pairs, ours and the paper's ({experiment.paper_set})", header, rows, 2)


def _paper_row(organ: str, row: Published) -> list[str]:
    return [organ, "paper", DASH, *(number(getattr(row, column)) for column in PAPER_METHODS), signed(row.increment, 3)]


def ladder_table(experiment: ExperimentRecord) -> Table:
    """Every method with every organ, and its difference from the uniform mix."""
    labels = experiment.classes
    against = {row.method: row for row in experiment.comparison if row.label is None}
    rows = []
    for method in ladder(experiment):
        cells = [dice(experiment, method, label) for label in (MEAN, *labels)]
        row = against.get(method)
        counts = DASH if row is None else f"{row.better}/{row.worse}"
        rows.append([words(method), *map(mean, cells), interval(row), counts, str(len(cells[0]))])
    header = ["method", "mean", *labels.values(), "against uniform", "better/worse", "pairs"]
    return Table("The ladder: mean Dice on test pairs, all methods with the same training pairs", header, rows)


def gain_table(experiment: ExperimentRecord) -> Table:
    """Gain of the paper's method over its rivals, with intervals."""
    rivals = ("mean of single metrics", "best single metric", "uniform")
    rows = []
    for label in (None, *experiment.classes):
        name = "mean" if label is None else experiment.classes[label]
        cells = [interval(_gain(experiment, label, rival)) for rival in rivals]
        best = _gain(experiment, label, "best single metric")
        rows.append([name, *cells, DASH if best is None else short(best.over)])
    header = ["organ", "over the mean of singles", "over the best single", "over the uniform mix", "best single"]
    return Table("Gain of MW in Dice, with 95 % intervals from drawing patients anew", header, rows)


def _gain(experiment: ExperimentRecord, label: str | None, rival: str) -> GainRecord | None:
    rows = (row for row in experiment.gains if row.label == label)
    wanted = (r for r in rows if (r.best_single if rival == "best single metric" else r.over == rival))
    return next(wanted, None)


def truth_table(experiment: ExperimentRecord) -> Table | None:
    """Distance to the known deformation; None where there is none."""
    errors = experiment.truth_error_mm
    if not errors:
        return None
    first = next(iter(errors.values()))
    labels = {c: name for c, name in experiment.classes.items() if c in first}
    rows = [[words("before"), *(f"{first[c].before:.2f}" for c in labels)]]
    measured = [method for method in ladder(experiment) if method in errors]
    rows += [[words(method), *(f"{errors[method][c].after:.2f}" for c in labels)] for method in measured]
    title = "Mean distance to the known deformation inside each organ, mm"
    return Table(title, ["method", *labels.values()], rows)


def _span(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.3g}" if low == high else f"{low:.3g}–{high:.3g}"


def _at_the_end(run: Run) -> bool:
    """Tell whether tuning took the smallest or the largest value that it tried."""
    tried = [row.smoothness for row in run.tuning]
    return bool(tried) and run.smoothness in (min(tried), max(tried))


def cost_table(experiment: ExperimentRecord, timing: Mapping[str, float]) -> Table:
    """List what each method costs: smoothness, training, seconds of a registration, folding."""
    rows = []
    for method in ladder(experiment)[1:]:
        runs = [r for r in experiment.runs if r.method == method]
        folds = [r.folding_fraction or 0.0 for r in experiment.results if r.method == method and r.error is None]
        span = _span([r.smoothness for r in runs]) + (" *" if any(map(_at_the_end, runs)) else "")
        trained = [_mean_count([getattr(r, key) for r in runs]) for key in ("registrations", "inferences")]
        folding = number(100 * float(np.mean(folds)) if folds else None, ".4f")
        rows.append([words(method), span, *trained, number(timing.get(method), ".2f"), folding])
    header = ["method", "smoothness λ", "registrations", "inferences", "s per pair, 1 thread", "folding %"]
    return Table("Cost: training (mean of splits) and use; * best λ at the end of the range tried", header, rows)


def _mean_count(counts: Sequence[int | None]) -> str:
    known = [n for n in counts if n is not None]
    return str(round(np.mean(known))) if known else DASH
