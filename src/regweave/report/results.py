"""Results of an evaluation, read back for its pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from regweave.io.disk.records import RESULTS, read_record
from regweave.jobs.runner import PairNumbers, judge_pair
from regweave.measures.scores import PairScore, When
from regweave.measures.verdict import Rules, Verdict, failed, tally
from regweave.study.comparison import EvaluationRecord, PairResult

RESERVED = ("mean", "withheld")
"""Groups of the charts beside the structures."""


@dataclass(frozen=True)
class Row:
    """One pair with one method: its scores, or its error; ``withheld`` structures have a mean of their own."""

    id: str
    method: str
    error: str | None
    scores: PairNumbers | None
    verdict: Verdict
    withheld: tuple[int, ...] = ()

    @cached_property
    def score(self) -> PairScore:
        """State and Dice of each structure; none for a failure."""
        return PairScore() if self.error is not None or self.scores is None else self.scores.score

    def mean_dice(self, when: When = "dice_after", *, withheld: bool = False) -> float:
        """Mean Dice over the structures that count, without the withheld ones or of these; NaN for a failure."""
        return self.score.among(self.withheld, inside=withheld).mean(when)

    def dice(self, label: int, when: When = "dice_after") -> float:
        """Dice of a structure: 0 where warping lost it, NaN where it does not count or the registration failed."""
        return next((getattr(s, when) for s in self.score.structures if s.label == label), math.nan)

    def number(self, name: str) -> float:
        """Return a number of the registration, NaN where there is none."""
        return math.nan if self.scores is None else self.scores.values(name)[0]

    def values(self, name: str) -> list[float]:
        """Return a number of the pair, or of each of its structures, without those that are missing."""
        return [] if self.scores is None else [v for v in self.scores.values(name) if not math.isnan(v)]


@dataclass(frozen=True)
class Results:
    """Everything of ``results.json``."""

    record: EvaluationRecord
    rows: Sequence[Row]
    rules: Rules

    @classmethod
    def read(cls, folder: Path, rules: Rules | None = None) -> Results:
        """Read the results of a folder; ``rules`` judge them anew, and so do the shipped ones where none are told.

        Raises
        ------
        RegweaveError
            E101 where there are none, E102 where they are damaged, E178 where they are not what `evaluate` writes.
        """
        record = read_record(EvaluationRecord, folder / RESULTS)
        return cls(record, [_row(r, record, rules) for r in record.results], rules or record.rules)

    @property
    def ids(self) -> list[str]:
        """Pairs, in the order of the list."""
        return list(dict.fromkeys(row.id for row in self.rows))

    @property
    def methods(self) -> list[str]:
        """Methods, in the order they were given."""
        return list(dict.fromkeys(row.method for row in self.rows))

    @property
    def failures(self) -> list[Row]:
        """Registrations that ended with an error."""
        return [row for row in self.rows if row.error is not None]

    @property
    def shown(self) -> str:
        """Method whose worst cases are looked at: the last one, but not a model that guesses what the masks tell."""
        guessed = {m.name for m in self.record.methods if m.predicted_classes}
        return next((m for m in reversed(self.methods) if m not in guessed), self.methods[-1])

    @property
    def reference(self) -> str:
        """Method that the others are compared with."""
        return self.record.reference

    def tally(self) -> str:
        """Count the verdicts in words."""
        return tally(row.verdict for row in self.rows)

    def of(self, method: str) -> list[Row]:
        """Rows of a method."""
        return [row for row in self.rows if row.method == method]

    def labels(self) -> dict[int, str]:
        """Names by label, in the order of their values."""
        found = {s.label: s.name for row in self.rows for s in row.score.structures}
        return {label: found[label] for label in sorted(found)}

    def titles(self) -> dict[int, str]:
        """Return what structures are called on pages: by name, and by number too where names do not tell them apart."""
        labels = self.labels()
        names = list(labels.values())
        alone = {name for name in names if names.count(name) == 1 and name not in RESERVED}
        return {
            label: name if name in alone or name == str(label) else f"{label} {name}" for label, name in labels.items()
        }


def mean(values: Sequence[float]) -> float:
    """Return the mean of the numbers there are, NaN for none."""
    kept = [v for v in values if not math.isnan(v)]
    return sum(kept) / len(kept) if kept else math.nan


def _row(r: PairResult, record: EvaluationRecord, rules: Rules | None) -> Row:
    """Return a registration with the recorded verdict, or that of other rules."""
    verdict = r.verdict
    if rules is not None:
        scored = None if r.error is not None else r.scores
        verdict = failed(str(r.error), rules) if scored is None else judge_pair(scored, rules)
    return Row(r.id, r.method, r.error, r.scores, verdict, record.withheld)
