"""Paired scores of several methods on the same pairs: their record, differences from one method, and a summary."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import ConfigDict, Field, PrivateAttr, StrictBool, model_validator

from regweave import extras
from regweave.io import owned_path
from regweave.io.disk.records import RESULTS, Count, Known, RecordPart, SafeName, Text, Whole, plain, record_text
from regweave.io.disk.text import shown
from regweave.jobs.methods import Method
from regweave.jobs.runner import PairNumbers, judge_pair
from regweave.jobs.table import PairFiles
from regweave.measures.scores import PairScore, When
from regweave.measures.statistics import count_better, paired_bootstrap, patients_of
from regweave.measures.verdict import Rules, Verdict, failed, tally
from regweave.types import Float64Array

REFERENCE, SINGLE = "uniform", "single:"
WITHHELD = "withheld"  # in place of a label: the mean over the structures that nothing was allowed to learn
MEASURES = (
    ("hd95_mm", "HD95 mm", ".2f"), ("assd_mm", "ASSD mm", ".2f"), ("folding_fraction", "folding %", ".4f"),
    ("sdlogj", "SDlogJ", ".3f"), ("seconds", "seconds", ".1f"), ("peak_mb", "peak MB", ".0f"),
)  # fmt: skip
"""Measures beside the Dice, with their titles and formats."""
PERCENT = ("folding_fraction",)
PER_PAIR = ("seconds", "peak_mb", "folding_fraction", "sdlogj")
PER_LABEL = ("dice_before", "dice_start", "dice_after", "hd95_mm", "assd_mm")
COLUMNS = ("id", "method", "label", *PER_LABEL, *PER_PAIR, "state")  # columns of `results.csv`
BOTH: tuple[When, When] = ("dice_before", "dice_after")


def mean(values: Iterable[float]) -> float:
    """Return the mean of the numbers there are, NaN for none."""
    kept = [v for v in values if not math.isnan(v)]
    return sum(kept) / len(kept) if kept else math.nan


class Difference(RecordPart):
    """Difference of a method from the reference, over all structures (label None), withheld ones, or one alone."""

    method: Text
    label: Text | None
    n: Count  # pairs that count, of which some were better, worse and equal
    mean: Known  # mean difference of Dice with a 95 % interval by patient
    low: Known
    high: Known
    better: Count
    worse: Count
    equal: Count


class PairResult(RecordPart):
    """One registration of an evaluation: its scores, or its error."""

    id: SafeName
    method: Text
    error: Text | None
    verdict: Verdict
    scores: PairNumbers | None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.error is None and self.scores is None:
            raise ValueError(f"no scores of {self.id} with {shown(self.method)}")
        return self

    @property
    def score(self) -> PairScore:
        """State and Dice of each structure; none for a failure."""
        return PairScore() if self.error is not None or self.scores is None else self.scores.score

    def values(self, name: str) -> list[float]:
        """Return a number of the pair, or of each of its structures, without those that are missing."""
        return [] if self.scores is None else [v for v in self.scores.values(name) if not math.isnan(v)]

    def dice(self, label: str | None = None, when: When = "dice_after", withheld: Sequence[int] = ()) -> float:
        """Return the Dice of a label, or the mean of those that count without the withheld ones, or of these."""
        if label is None or label == WITHHELD:
            return self.score.among(withheld, inside=label == WITHHELD).mean(when)
        return next((getattr(s, when) for s in self.score.structures if str(s.label) == label), math.nan)


def verdict_of(error: str | None, scores: PairNumbers | None, rules: Rules) -> Verdict:
    """Judge a registration; one that ended with an error fails."""
    return failed(str(error), rules) if error is not None or scores is None else judge_pair(scores, rules)


class PairInputs(RecordPart):
    """Hashes of the files of a pair."""

    id: Text
    group: Text | None = None
    inputs_sha256: dict[str, Text] = Field(default_factory=dict)


class MethodRecord(RecordPart):
    """A method as `Method.describe` gives it; ``tuning`` has the mean Dice of each smoothness that was tried."""

    model_config = ConfigDict(extra="allow")
    name: Text
    predicted_classes: StrictBool = False
    settings: dict[str, Any] = Field(default_factory=dict)
    model: dict[str, Any] | None = None
    tuning: tuple[dict[str, Known], ...] = ()

    @property
    def is_baseline(self) -> bool:
        """True for the uniform mix and for a member alone."""
        return self.name == REFERENCE or self.name.startswith(SINGLE)


class Evaluation(RecordPart):
    """Paired scores of several methods on the same pairs; ``results.json``.

    ``notes`` are restrictions of the evidence, ``withheld`` structures have a separate mean, ``rules`` are those of the
    verdicts, and ``results`` has a registration for each pair and method.
    """

    notes: tuple[Text, ...] = ()
    pairs: tuple[PairInputs, ...] = ()
    methods: tuple[MethodRecord, ...] = ()
    reference: Text
    withheld: tuple[Whole, ...] = ()
    rules: Rules
    comparison: tuple[Difference, ...] = ()
    results: Annotated[tuple[PairResult, ...], Field(min_length=1)]
    provenance: dict[str, Any] = Field(default_factory=dict)
    _used: dict[str, Method] = PrivateAttr(default_factory=dict)
    _files: dict[str, PairFiles] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        methods = {row.method for row in self.results}
        if len({(row.id, row.method) for row in self.results}) < len(self.results):
            raise ValueError("a pair stands twice with one method")
        for what, name in (("reference", self.reference), *(("comparison", row.method) for row in self.comparison)):
            if name not in methods:
                raise ValueError(f"{what} names the method {shown(name)}, which has no results")
        return self

    def __repr__(self) -> str:
        """Numbers of pairs, methods and failures, not the scores."""
        n = len({row.id for row in self.results})
        return f"Evaluation({n} pairs, {len(self.by_method)} methods, {len(self.failures)} failed)"

    def __str__(self) -> str:
        """Mean Dice of each method over the pairs, before and after; `table` has every structure."""
        lines = [f"{'method':<24} {'Dice before':>11} {'after':>7} {'pairs':>6} {'failed':>7}"]
        for method, rows in self.by_method.items():
            before, after = (
                _number(mean(self.dice(method, when=w)), ".3f", "-") for w in ("dice_before", "dice_after")
            )
            n_failed = sum(row.error is not None for row in rows)
            lines.append(f"{method[:24]:<24} {before:>11} {after:>7} {len(rows) - n_failed:>6} {n_failed:>7}")
        return "\n".join(lines)

    @cached_property
    def by_method(self) -> dict[str, list[PairResult]]:
        """Registrations of each method, in the order of the methods and pairs."""
        found: dict[str, list[PairResult]] = {}
        for row in self.results:
            found.setdefault(row.method, []).append(row)
        return found

    @cached_property
    def labels(self) -> dict[str, str]:
        """Names by label of all structures, in the order of their values."""
        found = {s.label: s.name for row in self.results for s in row.score.structures}
        return {str(label): found[label] for label in sorted(found)}

    @property
    def means(self) -> tuple[str | None, ...]:
        """Labels of the means: that of the structures which count in the first place, and that of the withheld ones."""
        return (None, WITHHELD) if self.withheld else (None,)

    @property
    def failures(self) -> list[PairResult]:
        """Registrations that ended with an error, in the order of methods and pairs."""
        return [row for rows in self.by_method.values() for row in rows if row.error is not None]

    @property
    def shown(self) -> str:
        """Method whose worst cases are shown: the last one that uses the masks it was given."""
        guessed = {method.name for method in self.methods if method.predicted_classes}
        names = list(self.by_method)
        return next((name for name in reversed(names) if name not in guessed), names[-1])

    def dice(self, method: str, label: str | None = None, when: When = "dice_after") -> Float64Array:
        """Return the Dice of a label in each pair, or the mean of a pair's labels but withheld ones, or of those.

        NaN where the structure is not in both label maps, or the pair failed; 0 where warping lost it.
        """
        return np.array([row.dice(label, when, self.withheld) for row in self.by_method[method]])

    def measured(self, method: str) -> list[float]:
        """Return the means of the `MEASURES` of a method over pairs, or over structures and pairs."""
        rows = self.by_method[method]
        means = {name: mean(v for row in rows for v in row.values(name)) for name, _, _ in MEASURES}
        return [value * (100 if name in PERCENT else 1) for name, value in means.items()]

    def smoothness(self, method: str) -> float:
        """Return the smoothness that a method used; NaN where every pair failed."""
        return next((v for row in self.by_method[method] for v in row.values("smoothness")), math.nan)

    def worst(self, n: int) -> list[PairResult]:
        """Return the pairs with the lowest mean Dice of the shown method, lowest first; failures have nothing to show.

        Pairs in which nothing is scored come last.
        """
        done = [(row.dice(withheld=self.withheld), row.id, row) for row in self.by_method[self.shown] if not row.error]
        return [row for _, _, row in sorted(done, key=lambda one: (math.isnan(one[0]), *one[:2]))[:n]]

    def judged(self, rules: Rules) -> Evaluation:
        """Return the evaluation with the verdicts of other rules."""
        rows = (r.model_copy(update={"verdict": verdict_of(r.error, r.scores, rules)}) for r in self.results)
        return self.model_copy(update={"rules": rules, "results": tuple(rows)})

    def rows(self) -> list[dict[str, Any]]:
        """Lines of ``results.csv``; a failed pair has its labels, and None for every number."""
        labels: dict[str, list[str]] = {}
        for row in self.results:
            labels[row.id] = labels.get(row.id) or [str(s.label) for s in row.score.structures]
        out = []
        for row in self.results:
            head = {"id": row.id, "method": row.method}
            if row.scores is None or row.error is not None:
                out += [{**dict.fromkeys(COLUMNS), **head, "label": label} for label in labels[row.id] or [""]]
                continue
            numbers = {name: plain(row.scores.values(name)[0]) for name in PER_PAIR}
            for one in row.score.rows():
                by_label = {name: one[name] for name in (*PER_LABEL, "state")}
                out.append({**head, "label": str(one["label"]), **by_label, **numbers})
        return out

    def table(self) -> Any:
        """Return the rows as a pandas table: one for each pair, method and structure."""
        pandas = extras.load("pandas", "notebook", "a table of the results")
        return pandas.DataFrame(self.rows(), columns=list(COLUMNS))

    def write(self, folder: Path) -> None:
        """Write results.csv, results.json and summary.md, each whole or not at all."""
        with owned_path(folder / "results.csv") as part, part.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows())
        for name, text in {RESULTS: record_text(self.content()), "summary.md": summary_text(self)}.items():
            with owned_path(folder / name) as part:
                part.write_text(text, encoding="utf-8")


def compare(found: Evaluation) -> tuple[Difference, ...]:
    """Compare each method with the reference by Dice, over all structures, withheld ones, and each alone."""
    groups = [pair.group or pair.id for pair in found.pairs]
    out = []
    for method in found.by_method:
        for label in (*found.means, *found.labels) if method != found.reference else ():
            differences = found.dice(method, label) - found.dice(found.reference, label)
            middle, low, high = (None if math.isnan(v) else v for v in paired_bootstrap(differences, groups))
            counts = count_better(differences)._asdict()
            n = int((~np.isnan(differences)).sum())
            out.append(Difference(method=method, label=label, n=n, mean=middle, low=low, high=high, **counts))
    return tuple(out)


DASH = "–"
N_NAMED = 10  # registrations that did not pass and are named in the summary
STATES_SHOWN = {"vanished": ("vanished",), "not scored": ("no reference", "not in moving")}


def summary_text(found: Evaluation) -> str:
    """Return the summary of an evaluation in Markdown."""
    patients = {name for pair in found.pairs for name in patients_of(pair.group or pair.id)}
    n_failed = len(found.failures)
    parts = [
        "# Evaluation",
        f"{len(found.pairs)} pairs of {len(patients)} patients, {len(found.by_method)} methods, {n_failed} failed "
        f"registration{'' if n_failed == 1 else 's'}.",
        *(f"**Note.** {note}" for note in found.notes),
        "## Dice",
        "Mean over pairs; `mean` is over the structures of each pair first. A structure counts where both label maps "
        "of a pair show it, before and after alike; one that warping loses (`vanished`) counts 0. Where one of the "
        "maps lacks it (`not scored`), there is nothing to compare.",
        _dice_table(found),
        "## Other measures",
        "Distances are means over structures and pairs, without vanished structures. Time and memory are of one "
        "registration on one thread, with other registrations running beside it.",
        _measures_table(found),
        *_verdict_parts(found),
    ]
    if len(found.by_method) > 1:
        parts += _comparison_parts(found)
    if found.failures:
        parts += ["## Failures", "\n".join(f"- `{row.method}/{row.id}`: {row.error}" for row in found.failures)]
    return "\n\n".join(parts) + "\n"


def _dice_table(found: Evaluation) -> str:
    labels = (*found.means, *found.labels)
    ladder: list[tuple[str, str, When]] = [("before", found.reference, "dice_before")]
    ladder += [(method, method, "dice_after") for method in found.by_method]
    rows = [[title, *(_number(mean(found.dice(m, label, when))) for label in labels)] for title, m, when in ladder]
    apart, reference = [DASH] * (len(found.means) - 1), found.by_method[found.reference]
    seen = (int((~np.isnan(found.dice(found.reference, label))).sum()) for label in found.labels)
    rows.append(["pairs", str(len(found.pairs)), *apart, *map(str, seen)])
    for title, states in STATES_SHOWN.items():
        lost = [str(s.label) for row in reference for s in row.score.of(*states)]
        rows.append([title, str(len(lost)), *apart, *(str(lost.count(label)) for label in found.labels)])
    titles = [_title(label, name) for label, name in found.labels.items()]
    return _table(["", "mean", *filter(None, found.means), *titles], rows)


def _measures_table(found: Evaluation) -> str:
    tuned = {method.name for method in found.methods if method.tuning}
    rows = []
    for method, of in found.by_method.items():
        n_failed, smoothness = sum(row.error is not None for row in of), found.smoothness(method)
        means = [_number(v, form) for v, (_, _, form) in zip(found.measured(method), MEASURES, strict=True)]
        last = DASH if math.isnan(smoothness) else f"{smoothness:.4g}{' (tuned)' if method in tuned else ''}"
        rows.append([method, str(len(of) - n_failed), str(n_failed), *means, last])
    return _table(["", "pairs", "failed", *(title for _, title, _ in MEASURES), "smoothness"], rows)


def _verdict_parts(found: Evaluation) -> list[str]:
    """Count the verdicts of each method, and name what did not pass."""
    counts = {method: tally(row.verdict for row in rows) for method, rows in found.by_method.items()}
    doubtful = [row for rows in found.by_method.values() for row in rows if row.verdict.word != "pass"]
    named = [f"- `{r.method}/{r.id}`: {r.verdict.word}, {_title('', r.verdict.text)}" for r in doubtful[:N_NAMED]]
    if len(doubtful) > N_NAMED:
        named.append(f"- and {len(doubtful) - N_NAMED} more; index.html lists all")
    text = f"By the rules “{found.rules.name}”; `regweave rules` prints the shipped ones, `--rules` takes others."
    lines = [f"- {name}: {count}" for name, count in counts.items()]
    return ["## Verdicts", text, "\n".join(lines), *(["\n".join(named)] if named else [])]


def _comparison_parts(found: Evaluation) -> list[str]:
    labels = {WITHHELD: WITHHELD, **found.labels}
    means = [row for row in found.comparison if row.label is None]
    each = [row for row in found.comparison if row.label is not None]
    header = ["method", "difference", "95 % interval", "pairs", "better", "worse", "equal"]
    return [
        f"## Against {found.reference}",
        f"Differences of Dice, method − {found.reference}, pair by pair; the intervals come from drawing patients "
        "anew.",
        "\n".join(f"- {_verdict(row, found.reference)}" for row in means),
        _table(header, [[row.method, *_difference(row)] for row in means]),
        "### Each structure",
        _table(
            [header[0], "structure", *header[1:]],
            [[row.method, _title(str(row.label), labels[str(row.label)]), *_difference(row)] for row in each],
        ),
    ]


def _verdict(row: Difference, reference: str) -> str:
    if row.mean is None:
        return f"{row.method}: no pair in common with {reference}."
    if row.low is None or row.high is None:
        return f"{row.method}: {row.mean:+.4f}, no interval from one patient."
    word = "better than" if row.low > 0 else "worse than" if row.high < 0 else "not told apart from"
    ends = f"[{row.low:+.4f}, {row.high:+.4f}]"
    return f"{row.method} is {word} {reference}: {row.mean:+.4f} {ends} on {row.n} pairs."


def _difference(row: Difference) -> list[str]:
    interval = DASH if row.low is None or row.high is None else f"[{row.low:+.4f}, {row.high:+.4f}]"
    middle = DASH if row.mean is None else f"{row.mean:+.4f}"
    return [middle, interval, *(str(n) for n in (row.n, row.better, row.worse, row.equal))]


def _title(label: str, name: str) -> str:
    """Label and name, made safe for a table cell: the name comes from a file."""
    safe = "".join(c for c in name if c.isprintable() and c not in "|<>`")
    return label if safe == label else f"{label} {safe}".strip()


def _number(value: float, form: str = ".3f", missing: str = DASH) -> str:
    return missing if math.isnan(value) else f"{value:{form}}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
