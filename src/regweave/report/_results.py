"""What an evaluation wrote, read back for its pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from regweave.evaluation.scores import PairScore, When
from regweave.io.files import damaged, require_file
from regweave.io.texts import parse_json, read_text
from regweave.report._values import listed, mapping, number, records
from regweave.workflows.scoring import pair_score

NAME = "results.json"
INVERSE_WARNING = "W202"
RULES = {
    "failed": "the registration ended with an error",
    "folding": "the field folds somewhere",
    "worse": "mean Dice fell below that before registration",
    "vanished": "warping lost a structure that both label maps show",
    "inverse": f"the inverse is inaccurate (warning {INVERSE_WARNING})",
}
"""Marks that a registration does not pass with, and what each means."""


@dataclass(frozen=True)
class Row:
    """One pair with one method: its scores, or its error."""

    id: str
    method: str
    error: str | None
    scores: Mapping[str, Any]

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

    def marks(self) -> list[str]:
        """Name the rules of `RULES` that it breaks; none is a pass."""
        if self.error is not None:
            return ["failed"]
        broken = {
            "folding": self.number("folding_fraction") > 0,
            "worse": self.mean_dice() < self.mean_dice("dice_before"),
            "vanished": bool(self.score.of("vanished")),
            "inverse": any(str(w).startswith(INVERSE_WARNING) for w in listed(self.scores.get("warnings"))),
        }
        return [rule for rule, is_broken in broken.items() if is_broken]


@dataclass(frozen=True)
class Results:
    """Everything of ``results.json``."""

    content: Mapping[str, Any]
    rows: Sequence[Row]

    @classmethod
    def read(cls, folder: Path) -> Results:
        """Read the results of a folder.

        Raises
        ------
        RegweaveError
            E101 where there are none, E102 where they are damaged.
        """
        path = require_file(folder / NAME)
        try:
            content = parse_json(read_text(path))
            rows = [
                Row(str(r["id"]), str(r["method"]), _error(r["error"]), mapping(r["scores"]))
                for r in content["results"]
            ]
            found = cls(content, rows)
            found.check()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise damaged(f"'{path}'", f"these are not the results of an evaluation ({error})") from error
        return found

    def check(self) -> None:
        """Raise `ValueError` or `KeyError` where a registration without an error lacks its scores."""
        for row in self.rows:
            if row.error is None and not row.labels:
                raise ValueError(f"no scores of {row.id} with {row.method}")
            row.mean_dice("dice_before")

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
        return str(self.content.get("reference", self.methods[0] if self.methods else ""))

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


def _error(value: object) -> str | None:
    return None if value is None else str(value)
