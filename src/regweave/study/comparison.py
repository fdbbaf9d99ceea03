"""Paired scores of several methods on the same pairs, their differences from one of them, and a summary in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

import numpy as np
from pydantic import ConfigDict, Field, StrictBool, model_validator

from regweave.io.disk.records import Count, Known, RecordPart, SafeName, Text, Whole
from regweave.io.disk.text import shown
from regweave.jobs.methods import Method
from regweave.jobs.runner import PairNumbers, judge_pair
from regweave.jobs.store import Outcome
from regweave.jobs.table import PairFiles
from regweave.measures.scores import When
from regweave.measures.statistics import count_better, paired_bootstrap
from regweave.measures.verdict import Rules, Verdict, default_rules, failed, tally
from regweave.types import Float64Array

REFERENCE = "uniform"
WITHHELD = "withheld"
"""In place of a label: the mean over the structures that nothing was allowed to learn."""


class Difference(RecordPart):
    """Difference of a method from the reference, over all structures (label None), withheld ones, or one alone.

    Parameters
    ----------
    mean, low, high : float, optional
        Mean difference of Dice with a 95 % interval by patient, None for none.
    n, better, worse, equal : int
        Pairs that count, and how many of them were better, worse and equal.
    """

    method: Text
    label: Text | None
    n: Count
    mean: Known
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


class PairInputs(RecordPart):
    """Hashes of the files of a pair."""

    id: Text
    group: Text | None = None
    inputs_sha256: dict[str, Text] = Field(default_factory=dict)


class MethodRecord(RecordPart):
    """A method: its name, whether it predicts the classes, and its settings as they are."""

    model_config = ConfigDict(extra="allow")
    name: Text
    predicted_classes: StrictBool = False


class EvaluationRecord(RecordPart):
    """``results.json`` of an evaluation."""

    notes: tuple[Text, ...] = ()
    pairs: tuple[PairInputs, ...] = ()
    methods: tuple[MethodRecord, ...] = ()
    reference: Text
    withheld: tuple[Whole, ...] = ()
    rules: Rules
    comparison: tuple[Difference, ...] = ()
    results: Annotated[tuple[PairResult, ...], Field(min_length=1)]
    provenance: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        methods = {row.method for row in self.results}
        if len({(row.id, row.method) for row in self.results}) < len(self.results):
            raise ValueError("a pair stands twice with one method")
        for what, name in (("reference", self.reference), *(("comparison", row.method) for row in self.comparison)):
            if name not in methods:
                raise ValueError(f"{what} names the method {shown(name)}, which has no results")
        return self


@dataclass(frozen=True)
class Scores:
    """Outcome of each method on each pair, by (method name, pair id); ``withheld`` labels have a separate mean."""

    pairs: tuple[PairFiles, ...]
    methods: tuple[Method, ...]
    outcomes: Mapping[tuple[str, str], Outcome]
    withheld: tuple[int, ...] = ()
    _numbers: dict[int, PairNumbers] = field(default_factory=dict, repr=False, compare=False)

    @property
    def reference(self) -> Method:
        """Method that the others are compared with: the uniform mix, or the first."""
        return next((m for m in self.methods if m.name == REFERENCE), self.methods[0])

    @property
    def failures(self) -> list[Outcome]:
        """Outcomes with an error, in the order of methods and pairs."""
        return [o for o in self.outcomes.values() if o.error is not None]

    def numbers_of(self, outcome: Outcome) -> PairNumbers:
        """Return the scores of a pair that did not fail."""
        key = id(outcome)
        if key not in self._numbers:
            self._numbers[key] = PairNumbers.model_validate(outcome.value)
        return self._numbers[key]

    def outcome(self, method: Method, pair: PairFiles) -> Outcome:
        """Return what became of a pair with a method."""
        return self.outcomes[method.name, pair.id]

    def verdict(self, method: Method, pair: PairFiles, rules: Rules) -> Verdict:
        """Judge a pair with a method; one that ended with an error fails."""
        outcome = self.outcome(method, pair)
        if outcome.error is not None:
            return failed(outcome.error, rules)
        return judge_pair(self.numbers_of(outcome), rules)

    def labels_of(self, pair: PairFiles) -> dict[str, str]:
        """Names by label of a pair's structures, from any method that succeeded; empty where none did."""
        for method in self.methods:
            outcome = self.outcome(method, pair)
            if outcome.error is None:
                return {str(s.label): s.name for s in self.numbers_of(outcome).score.structures}
        return {}

    def labels(self) -> dict[str, str]:
        """Names by label of all structures, in the order of their values."""
        found = {label: name for pair in self.pairs for label, name in self.labels_of(pair).items()}
        return {label: found[label] for label in sorted(found, key=int)}

    def dice(self, method: Method, label: str | None = None, when: When = "dice_after") -> Float64Array:
        """Return the Dice of a label, or the mean of a pair's labels but withheld ones, or of those, shape (pairs,).

        NaN where the structure is not in both label maps, or the pair failed; 0 where warping lost it.
        """
        return np.array([self._dice(self.outcome(method, pair), label, when) for pair in self.pairs])

    def groups(self) -> dict[str, str]:
        """Titles of the means beside that of the structures which count in the first place."""
        return {WITHHELD: "withheld"} if self.withheld else {}

    def _dice(self, outcome: Outcome, label: str | None, when: When) -> float:
        if outcome.error is not None:
            return float("nan")
        score = self.numbers_of(outcome).score
        if label is None or label == WITHHELD:
            return score.among(self.withheld, inside=label == WITHHELD).mean(when)
        found = (s for s in score.structures if str(s.label) == label)
        return next((getattr(s, when) for s in found), float("nan"))

    def numbers(self, method: Method, name: str) -> list[float]:
        """Return a number of each pair, or of each label of each pair, where there is one."""
        found = [self.numbers_of(o) for pair in self.pairs if (o := self.outcome(method, pair)).error is None]
        values = [value for one in found for value in one.values(name)]
        return [value for value in values if not math.isnan(value)]


def compare(scores: Scores) -> list[Difference]:
    """Compare each method with the reference by Dice, over all structures, withheld ones, and each alone."""
    reference = scores.reference
    groups = [pair.group for pair in scores.pairs]
    out = []
    for method in scores.methods:
        if method is reference:
            continue
        for label in (None, *scores.groups(), *scores.labels()):
            differences = scores.dice(method, label) - scores.dice(reference, label)
            mean, low, high = (None if math.isnan(v) else v for v in paired_bootstrap(differences, groups))
            counts = count_better(differences)
            n = int((~np.isnan(differences)).sum())
            out.append(
                Difference(
                    method=method.name, label=label, n=n, mean=mean, low=low, high=high, better=counts.better,
                    worse=counts.worse, equal=counts.equal,
                )
            )  # fmt: skip
    return out


DASH = "–"
N_NAMED = 10
"""Registrations that did not pass and are named in the summary."""
STATES_SHOWN = {"vanished": ("vanished",), "not scored": ("no reference", "not in moving")}


def summary_text(
    scores: Scores, comparison: Sequence[Difference], notes: Iterable[str], rules: Rules | None = None
) -> str:
    """Return the summary of an evaluation in Markdown; ``notes`` are restrictions of the evidence."""
    patients = {name for pair in scores.pairs for name in pair.patients}
    n_failed = len(scores.failures)
    parts = [
        "# Evaluation",
        f"{len(scores.pairs)} pairs of {len(patients)} patients, {len(scores.methods)} methods, {n_failed} failed "
        f"registration{'' if n_failed == 1 else 's'}.",
        *(f"**Note.** {note}" for note in notes),
        "## Dice",
        "Mean over pairs; `mean` is over the structures of each pair first. A structure counts where both label maps "
        "of a pair show it, before and after alike; one that warping loses (`vanished`) counts 0. Where one of the "
        "maps lacks it (`not scored`), there is nothing to compare.",
        _dice_table(scores),
        "## Other measures",
        "Distances are means over structures and pairs, without vanished structures. Time and memory are of one "
        "registration on one thread, with other registrations running beside it.",
        _measures_table(scores),
    ]
    parts += _verdict_parts(scores, rules or default_rules())
    if len(scores.methods) > 1:
        parts += _comparison_parts(scores, comparison)
    if scores.failures:
        parts += ["## Failures", "\n".join(f"- `{o.key}`: {o.error}" for o in scores.failures)]
    return "\n\n".join(parts) + "\n"


def _dice_table(scores: Scores) -> str:
    labels = scores.labels()
    rows = [["before", *_means(scores, scores.reference, "dice_before")]]
    rows += [[method.name, *_means(scores, method, "dice_after")] for method in scores.methods]
    shown = {label: ~np.isnan(scores.dice(scores.reference, label)) for label in labels}
    apart = [DASH] * len(scores.groups())
    rows.append(["pairs", str(len(scores.pairs)), *apart, *(str(int(seen.sum())) for seen in shown.values())])
    for title, states in STATES_SHOWN.items():
        counts = [_count(scores, label, states) for label in labels]
        rows.append([title, str(sum(counts)), *apart, *map(str, counts)])
    groups = list(scores.groups().values())
    return _table(["", "mean", *groups, *(_title(label, name) for label, name in labels.items())], rows)


def _means(scores: Scores, method: Method, when: When) -> list[str]:
    return [_number(_mean(scores.dice(method, label, when)), 3) for label in (None, *scores.groups(), *scores.labels())]


def _count(scores: Scores, label: str, states: Sequence[str]) -> int:
    """Count the pairs in which the reference finds the structure in one of some states."""
    outcomes = (scores.outcome(scores.reference, pair) for pair in scores.pairs)
    found = (s for o in outcomes if o.error is None for s in scores.numbers_of(o).score.of(*states))
    return sum(str(s.label) == label for s in found)


def _measures_table(scores: Scores) -> str:
    header = ["", "pairs", "failed", "HD95 mm", "ASSD mm", "folding %", "SDlogJ", "seconds", "peak MB", "smoothness"]
    rows = []
    for method in scores.methods:
        done = scores.numbers(method, "seconds")
        numbers = {
            "hd95_mm": 2, "assd_mm": 2, "folding_fraction": 4, "sdlogj": 3, "seconds": 1, "peak_mb": 0
        }  # fmt: skip
        cells = []
        for name, digits in numbers.items():
            mean = _mean(np.array(scores.numbers(method, name)))
            cells.append(_number(100 * mean if name == "folding_fraction" else mean, digits))
        smoothness = scores.numbers(method, "smoothness")
        tuned = " (tuned)" if method.tuning else ""
        cells.append(f"{smoothness[0]:.4g}{tuned}" if smoothness else DASH)
        rows.append([method.name, str(len(done)), str(len(scores.pairs) - len(done)), *cells])
    return _table(header, rows)


def _verdict_parts(scores: Scores, rules: Rules) -> list[str]:
    """Count the verdicts of each method, and name what did not pass."""
    found = {(m.name, p.id): scores.verdict(m, p, rules) for m in scores.methods for p in scores.pairs}
    counts = {m.name: tally(found[m.name, p.id] for p in scores.pairs) for m in scores.methods}
    lines = [f"- {name}: {count}" for name, count in counts.items()]
    doubtful = [(key, v) for key, v in found.items() if v.word != "pass"]
    named = [f"- `{name}/{pair}`: {v.word}, {_title('', v.text)}" for (name, pair), v in doubtful[:N_NAMED]]
    if len(doubtful) > N_NAMED:
        named.append(f"- and {len(doubtful) - N_NAMED} more; index.html lists all")
    text = f"By the rules “{rules.name}”; `regweave rules` prints the shipped ones, `--rules` takes others."
    return ["## Verdicts", text, "\n".join(lines), *(["\n".join(named)] if named else [])]


def _comparison_parts(scores: Scores, comparison: Sequence[Difference]) -> list[str]:
    reference = scores.reference.name
    labels = {**scores.groups(), **scores.labels()}
    means = [row for row in comparison if row.label is None]
    each = [row for row in comparison if row.label is not None]
    header = ["method", "difference", "95 % interval", "pairs", "better", "worse", "equal"]
    return [
        f"## Against {reference}",
        f"Differences of Dice, method − {reference}, pair by pair; the intervals come from drawing patients anew.",
        "\n".join(f"- {_verdict(row, reference)}" for row in means),
        _table(header, [[row.method, *_difference(row)] for row in means]),
        "### Each structure",
        _table(
            [header[0], "structure", *header[1:]],
            [[row.method, _title(str(row.label), labels[str(row.label)]), *_difference(row)] for row in each],
        ),
    ]


def _verdict(row: Difference, reference: str) -> str:
    name, mean, low, high = row.method, row.mean, row.low, row.high
    if mean is None:
        return f"{name}: no pair in common with {reference}."
    if low is None or high is None:
        return f"{name}: {mean:+.4f}, no interval from one patient."
    if low > 0:
        word = "better than"
    elif high < 0:
        word = "worse than"
    else:
        word = "not told apart from"
    return f"{name} is {word} {reference}: {mean:+.4f} [{low:+.4f}, {high:+.4f}] on {row.n} pairs."


def _difference(row: Difference) -> list[str]:
    interval = DASH if row.low is None or row.high is None else f"[{row.low:+.4f}, {row.high:+.4f}]"
    mean = DASH if row.mean is None else f"{row.mean:+.4f}"
    return [mean, interval, *(str(n) for n in (row.n, row.better, row.worse, row.equal))]


def _title(label: str, name: str) -> str:
    """Label and name, made safe for a table cell: the name comes from a file."""
    plain = "".join(c for c in name if c.isprintable() and c not in "|<>`")
    return label if plain == label else f"{label} {plain}".strip()


def _mean(values: Any) -> float:
    kept = values[~np.isnan(values)]
    return float(kept.mean()) if kept.size else float("nan")


def _number(value: float, digits: int) -> str:
    return DASH if np.isnan(value) else f"{value:.{digits}f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
