"""Paired scores of several methods on the same pairs, and their differences from one of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from regweave.jobs.methods import Method
from regweave.jobs.runner import pair_score
from regweave.jobs.store import Outcome
from regweave.jobs.table import PairFiles
from regweave.measures.scores import When
from regweave.measures.statistics import count_better, paired_bootstrap
from regweave.measures.verdict import Rules, Verdict, failed, judge
from regweave.types import Float64Array

REFERENCE = "uniform"
WITHHELD = "withheld"
"""In place of a label: the mean over the structures that nothing was allowed to learn."""


@dataclass(frozen=True)
class Scores:
    """Outcome of each method on each pair, by (method name, pair id); ``withheld`` labels have a separate mean."""

    pairs: tuple[PairFiles, ...]
    methods: tuple[Method, ...]
    outcomes: Mapping[tuple[str, str], Outcome]
    withheld: tuple[int, ...] = ()

    @property
    def reference(self) -> Method:
        """Method that the others are compared with: the uniform mix, or the first."""
        return next((m for m in self.methods if m.name == REFERENCE), self.methods[0])

    @property
    def failures(self) -> list[Outcome]:
        """Outcomes with an error, in the order of methods and pairs."""
        return [o for o in self.outcomes.values() if o.error is not None]

    def outcome(self, method: Method, pair: PairFiles) -> Outcome:
        """Return what became of a pair with a method."""
        return self.outcomes[method.name, pair.id]

    def verdict(self, method: Method, pair: PairFiles, rules: Rules) -> Verdict:
        """Judge a pair with a method; one that ended with an error fails."""
        outcome = self.outcome(method, pair)
        if outcome.error is not None:
            return failed(outcome.error, rules)
        return judge(outcome.value, pair_score(outcome.value), rules)

    def labels_of(self, pair: PairFiles) -> dict[str, str]:
        """Names by label of a pair's structures, from any method that succeeded; empty where none did."""
        for method in self.methods:
            outcome = self.outcome(method, pair)
            if outcome.error is None:
                return {label: row["name"] for label, row in outcome.value["labels"].items()}
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
        score = pair_score(outcome.value)
        if label is None or label == WITHHELD:
            return score.among(self.withheld, inside=label == WITHHELD).mean(when)
        found = (s for s in score.structures if str(s.label) == label)
        return next((getattr(s, when) for s in found), float("nan"))

    def numbers(self, method: Method, name: str) -> list[float]:
        """Return a number of each pair, or of each label of each pair, where there is one."""
        values = [o.value for pair in self.pairs if (o := self.outcome(method, pair)).error is None]
        rows = [v for value in values for v in ([value] if name in value else value["labels"].values())]
        return [row[name] for row in rows if row[name] is not None]


def compare(scores: Scores) -> list[dict[str, Any]]:
    """Compare each method with the reference by Dice, over all structures (label None), withheld ones, and each alone.

    Returns
    -------
    list of dict
        ``method``, ``label``, mean difference with a 95 % interval by patient (``low``, ``high``; None where there is
        none), pairs that count (``n``), and how many were ``better``, ``worse`` and ``equal``.
    """
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
            row = {"method": method.name, "label": label, "n": n, "mean": mean, "low": low, "high": high}
            out.append({**row, **counts._asdict()})
    return out
