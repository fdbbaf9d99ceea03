"""Records of an evaluation, read back for its pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from regweave.jobs.scoring import pair_score
from regweave.measures.rules import LEVELS, RULES, Rules, default_rules
from regweave.measures.scores import PairScore, When
from regweave.measures.verdict import Verdict, failed, judge, tally
from regweave.report._values import mapping, number, records
from regweave.report.contents import read_json
from regweave.report.records import EvaluationRecord, checked

NAME = "results.json"


@dataclass(frozen=True)
class Row:
    """One pair with one method: its scores, or its error."""

    id: str
    method: str
    error: str | None
    scores: Mapping[str, Any]
    verdict: Verdict

    @property
    def labels(self) -> Mapping[str, Any]:
        """Scores by label."""
        return mapping(self.scores.get("labels"))

    @cached_property
    def score(self) -> PairScore:
        """State and Dice of each structure; none for a failure."""
        return PairScore() if self.error is not None else pair_score(self.scores)

    def mean_dice(self, when: When = "dice_after") -> float:
        """Mean Dice over the structures that count, NaN for a failure."""
        return self.score.mean(when)

    def dice(self, label: str, when: When = "dice_after") -> float:
        """Dice of a structure: 0 where warping lost it, NaN where it does not count or the registration failed."""
        return next((getattr(s, when) for s in self.score.structures if str(s.label) == label), math.nan)

    def number(self, name: str) -> float:
        """Return a number of the registration, NaN where there is none."""
        return number(self.scores.get(name))

    def values(self, name: str) -> list[float]:
        """Return a number of each structure that has it."""
        found = (number(row.get(name)) for row in self.labels.values())
        return [v for v in found if not math.isnan(v)]


@dataclass(frozen=True)
class Results:
    """Everything of ``results.json``."""

    content: Mapping[str, Any]
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
        content = checked(EvaluationRecord, read_json(folder / NAME), folder / NAME)
        stored = content["rules"]
        if rules is None and stored is not None:
            told = Rules(stored["name"], {k: _limits(of) for k, of in stored["limits"].items() if k in RULES})
            return cls(content, [_row(r, told, r["verdict"]) for r in content["results"]], told)
        judges = rules or default_rules()
        return cls(content, [_row(r, judges) for r in content["results"]], judges)

    @property
    def ids(self) -> list[str]:
        """Pairs, in the order of the list."""
        return list(dict.fromkeys(row.id for row in self.rows))

    @property
    def methods(self) -> list[str]:
        """Methods, in the order they were given."""
        return list(dict.fromkeys(row.method for row in self.rows))

    @property
    def shown(self) -> str:
        """Method whose worst cases are looked at: the last one, but not a model that guesses what the masks tell."""
        guessed = {str(m.get("name")) for m in records(self.content.get("methods")) if m.get("predicted_classes")}
        return next((m for m in reversed(self.methods) if m not in guessed), self.methods[-1])

    @property
    def reference(self) -> str:
        """Method that the others are compared with."""
        return str(self.content["reference"])

    def tally(self) -> str:
        """Count the verdicts in words."""
        return tally(row.verdict for row in self.rows)

    @property
    def comparison(self) -> list[Mapping[str, Any]]:
        """Differences from the reference."""
        return records(self.content.get("comparison"))

    def of(self, method: str) -> list[Row]:
        """Rows of a method."""
        return [row for row in self.rows if row.method == method]

    def labels(self) -> dict[str, str]:
        """Names by label, in the order of their values."""
        found = {
            label: str(mapping(numbers).get("name", label))
            for row in self.rows
            for label, numbers in row.labels.items()
        }
        return {label: found[label] for label in sorted(found, key=lambda c: (len(c), c))}


def title_of(label: str, name: str) -> str:
    """Return number and name of a structure."""
    return label if name == label else f"{label} {name}"


def mean(values: Sequence[float]) -> float:
    """Return the mean of the numbers there are, NaN for none."""
    kept = [v for v in values if not math.isnan(v)]
    return sum(kept) / len(kept) if kept else math.nan


def _limits(of: Mapping[str, float | None]) -> dict[str, float]:
    return {level: limit for level in LEVELS if (limit := of[level]) is not None}


def _row(r: Mapping[str, Any], rules: Rules, stored: Mapping[str, Any] | None = None) -> Row:
    """Return a registration with the verdict it was given, or that of the rules."""
    scores = mapping(r["scores"])
    if stored is not None:
        verdict = Verdict.read(stored)
    elif r["error"] is not None:
        verdict = failed(r["error"], rules)
    else:
        verdict = judge(scores, pair_score(scores), rules)
    return Row(r["id"], r["method"], r["error"], scores, verdict)
