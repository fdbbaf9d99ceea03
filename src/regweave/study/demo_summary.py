"""Summary of a demo, as numbers that its page and the terminal tell alike."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from regweave.io.disk.files import damaged, require_file
from regweave.io.disk.outputs import SAFE_ID, owned_path
from regweave.io.disk.records import DEMO
from regweave.io.disk.text import parse_json, read_text
from regweave.jobs.methods import Method
from regweave.measures.scores import When
from regweave.measures.statistics import count_better
from regweave.model.model import Model
from regweave.study.comparison import Scores

BEFORE = "before"
NO_MASKS = "learned, no masks"


@dataclass(frozen=True)
class PairedComparison:
    """The learned weights against one other method, by the mean Dice of each pair."""

    method: str
    difference: float
    better: int
    worse: int
    pairs: int


@dataclass(frozen=True)
class ColumnSummary:
    """Learned column of one class: its share of each metric, whether it is used, and the metric made to be right."""

    name: str
    shares: Mapping[str, float]
    used: bool
    right: str | None


@dataclass(frozen=True)
class DemoSummary:
    """Summary of a demo; all values are JSON values.

    Parameters
    ----------
    source : str
        Where the scans come from.
    n_train, n_test, n_patients : int
        Pairs that were learned from, pairs of the test, and their patients.
    structures : sequence of str
        Names.
    dice : mapping
        By title of the method: mean Dice over all structures, then of each; None where there is none.
    learned, best_single : str
        Title of the learned weights, and of the single metric with the highest Dice on the training pairs.
    against : sequence of PairedComparison
        Learned weights against every baseline.
    trust : sequence of ColumnSummary
        Weights by class.
    gain : float, optional
        Gain of left-out patients in training; None where nothing learned is used.
    shown : mapping
        Pairs that have a page of their own, with their mean Dice by the learned weights; the lowest first.
    failures : sequence of str
        Registrations that failed.
    """

    source: str
    n_train: int
    n_test: int
    n_patients: int
    structures: Sequence[str]
    dice: Mapping[str, Sequence[float | None]]
    learned: str
    best_single: str
    against: Sequence[PairedComparison]
    trust: Sequence[ColumnSummary]
    gain: float | None
    shown: Mapping[str, float]
    failures: Sequence[str]

    def opening(self) -> str:
        """Tell where the scans come from and how they were used."""
        source = self.source[:1].upper() + self.source[1:]
        return f"{source}. Learned from {self.n_train} pairs, tried on {self.n_test} others."

    def sentences(self) -> list[str]:
        """Tell gains and losses alike, a sentence each."""
        before, after = self.dice[BEFORE][0], self.dice[self.learned][0]
        if before is None or after is None:
            return ["No held-out pair could be registered with the learned weights."]
        out = [
            f"On {self.n_patients} held-out patients the learned weights bring the mean Dice from {before:.3f} to "
            f"{after:.3f}."
        ]
        best = next(row for row in self.against if row.method == self.best_single)
        others = [row for row in self.against if row is not best]
        out.append(f"Against {best.method}, the best single metric of the training patients: {_difference(best)}.")
        out += self._by_structure()
        out += [f"Against {row.method}: {_difference(row)}." for row in others]
        alone = self.dice.get(NO_MASKS, [None])[0]
        if alone is not None:
            out.append(f"Without masks of the moving images, with structures that the model predicts: {alone:.3f}.")
        if self.gain is None:
            out.append(
                "In training, left-out patients did not gain by learning: the columns of the levels are uniform."
            )
        if any(row.right for row in self.trust):
            out.append(
                "The phantoms are made so that another metric is right in each organ; on real patients the gain is "
                "much smaller."
            )
        if self.failures:
            out.append(f"{len(self.failures)} registrations failed; the page of the evaluation names them.")
        return out

    def _by_structure(self) -> list[str]:
        """Name the structures in which the learned weights are above and below the best single metric of each."""
        singles = [row.method for row in self.against if row.method.endswith(" alone")]
        above, below = [], []
        for place, name in enumerate(self.structures, start=1):
            found = self.dice[self.learned][place]
            tried = {m: v for m in singles if (v := self.dice.get(m, [None] * (place + 1))[place]) is not None}
            if found is None or not tried:
                continue
            best = max(tried, key=tried.__getitem__)
            if found < tried[best]:
                below.append(f"{name} ({found:.3f}, {best} {tried[best]:.3f})")
            else:
                above.append(name)
        if not above and not below:
            return []
        return [
            f"By structure, against the single metric with the highest Dice on these held-out patients: not below in "
            f"{len(above)} of {len(above) + len(below)} ({', '.join(above) or 'none'}); below in "
            f"{', '.join(below) or 'none'}."
        ]

    def write(self, folder: Path) -> None:
        """Write ``demo.json``."""
        with owned_path(folder / DEMO) as part:
            part.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> DemoSummary:
        """Read what `write` wrote.

        Raises
        ------
        RegweaveError
            E101 where there is none, E102 where it is damaged.
        """
        path = require_file(folder / DEMO)
        try:
            # As JSON once more: from a mapping, strict validation would make no dataclass.
            found = TypeAdapter(cls).validate_json(json.dumps(parse_json(read_text(path))), strict=True)
            found.check()
        except ValueError as error:
            first = error.errors()[0] if isinstance(error, ValidationError) else None
            what = str(error) if first is None else f"{'.'.join(map(str, first['loc']))[:80]}: {first['msg']}"
            raise damaged(f"'{path}'", f"it does not tell of a demo ({what})") from error
        return found

    def check(self) -> None:
        """Raise ValueError where parts do not agree, or a pair is named so that its page would lie elsewhere."""
        if any(SAFE_ID.fullmatch(name) is None for name in self.shown):
            raise ValueError("shown: a name that no pair has")
        if not {BEFORE, self.learned} <= self.dice.keys():
            raise ValueError("dice: no row of the learned weights, or none before registration")
        if any(len(row) != len(self.structures) + 1 for row in self.dice.values()):
            raise ValueError("dice: a row needs a number for the mean and for each structure")
        if self.best_single not in {row.method for row in self.against}:
            raise ValueError("best_single: nothing is compared with it")
        if len({tuple(row.shares) for row in self.trust}) != 1:
            raise ValueError("trust: there is no class, or classes have different members")


def _difference(row: PairedComparison) -> str:
    if not row.pairs:
        return "no pair in common"
    word = "better" if row.difference > 0 else "worse" if row.difference < 0 else "no different"
    return f"{word} by {abs(row.difference):.3f}, better on {row.better} of {row.pairs} pairs and worse on {row.worse}"


SINGLE = "single:"


def title_of(method: Method) -> str:
    """Words for a method.

    Examples
    --------
    >>> from regweave.config.settings import preset
    >>> title_of(Method("single:mi", preset("default")))
    'mi alone'
    """
    if method.model is not None:
        return NO_MASKS if method.predicted else "learned"
    return f"{method.name.removeprefix(SINGLE)} alone" if method.name.startswith(SINGLE) else f"{method.name} mix"


def summarise(
    scores: Scores, model: Model, *, source: str, n_train: int, shown: Sequence[str], right: Mapping[int, str]
) -> DemoSummary:
    """Put the summary together from the scores of an evaluation and the model that was evaluated.

    Parameters
    ----------
    scores : Scores
        Of the baselines and the model.
    model : Model
        The learned weights.
    source : str
        Where the scans come from.
    n_train : int
        Pairs that were learned from.
    shown : sequence of str
        Pairs with a page of their own.
    right : mapping
        Metric that is right by construction, by label; empty for real scans.
    """
    labels = scores.labels()

    def means(method: Method, when: When = "dice_after") -> list[float | None]:
        return [_mean(scores.dice(method, label, when)) for label in (None, *labels)]

    learned = learned_method(scores)
    baselines = [m for m in scores.methods if m.tunable]
    best = max(
        (m for m in baselines if m.name.startswith(SINGLE)), key=lambda m: max(m.tuning.values(), default=float("-inf"))
    )
    by_pair = dict(zip((pair.id for pair in scores.pairs), scores.dice(learned).tolist(), strict=True))
    gain = model.training.left_out_gain
    return DemoSummary(
        source=source,
        n_train=n_train,
        n_test=len(scores.pairs),
        n_patients=len({name for pair in scores.pairs for name in pair.patients}),
        structures=list(labels.values()),
        dice={BEFORE: means(scores.reference, "dice_before"), **{title_of(m): means(m) for m in scores.methods}},
        learned=title_of(learned),
        best_single=title_of(best),
        against=[_against(scores, learned, m) for m in baselines],
        trust=_trust(model, right),
        gain=None if gain is None else gain.mean,
        shown={name: by_pair[name] for name in shown},
        failures=[f"{o.key}: {o.error}" for o in scores.failures],
    )


def learned_method(scores: Scores) -> Method:
    """Return the method that has the learned weights and the true masks to choose them."""
    return next(m for m in scores.methods if m.model is not None and not m.predicted)


def _trust(model: Model, right: Mapping[int, str]) -> list[ColumnSummary]:
    w, gates = model.weights, model.training.gates
    shares = w.matrix / np.maximum(np.abs(w.matrix).sum(axis=0), 1e-12)
    return [
        ColumnSummary(
            model.class_names.get(value, str(value)),
            dict(zip(w.members, shares[:, k].tolist(), strict=True)),
            str(value) not in gates or gates[str(value)].used,
            right.get(value),
        )
        for k, value in enumerate(w.classes)
    ]


def _against(scores: Scores, learned: Method, other: Method) -> PairedComparison:
    differences = scores.dice(learned) - scores.dice(other)
    counts = count_better(differences)
    n = int((~np.isnan(differences)).sum())
    return PairedComparison(title_of(other), _mean(differences) or 0.0, counts.better, counts.worse, n)


def _mean(values: Any) -> float | None:
    kept = values[~np.isnan(values)]
    return float(kept.mean()) if kept.size else None
