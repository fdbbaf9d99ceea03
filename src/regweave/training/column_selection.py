"""Cross-validated selection of learned columns: shrinkage, gates by class, smoothness and column scaling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from regweave.datasets.folds import Fold
from regweave.jobs.scoring import mean_dice, mean_over_pairs, pair_score
from regweave.learning.columns import Columns
from regweave.learning.gate import Gate, decide
from regweave.learning.lssvm import Hyper
from regweave.measures.statistics import paired_bootstrap
from regweave.types import WeightTable

SHARES = (0.5, 1.0)
"""Shares of the way from the uniform bank to the learned columns that are tried on left-out patients."""

BALANCES = (0.3, 0.1, 0.03)
"""Factors on the smoothness of the uniform bank that are tried with gated columns: right costs need less of it."""

STRENGTHS = (0.3, 3.0)
"""Factors on the whole column of a class that are tried: its costs against the smoothness there."""

STRENGTH_ERRORS = 2.0
"""A factor must gain this many standard errors: it is the best of several that are tried."""

NEAR = 0.9
"""A smoothness within this factor of one that was tried counts as tried."""

Scores = Mapping[str, Mapping[str, Any]]
"""By pair id, what `regweave.jobs.scoring.score_pair` gives."""
Register = Callable[[Sequence[Sequence[WeightTable]]], Sequence[Scores]]
"""Registers the left-out pairs: for each set of weights, one for each fold, the scores of all pairs."""


@dataclass(frozen=True)
class Choice:
    """One way to use what was learned: how far to go, in which classes, and what left-out patients gain.

    Parameters
    ----------
    hyper : Hyper
        Hyper-parameters.
    share : float
        Share of the way from the uniform bank to the learned columns.
    classes : tuple of ints
        Classes whose learned columns are used.
    gates : mapping from class to Gate
        What decided that.
    gain : mapping, optional
        Gain in mean Dice with these classes, ``mean``, ``low``, ``high``, ``n``; None where nothing is used.
    balance : float
        Factor on the smoothness of the uniform bank.
    strengths : mapping from class to float
        Factors on whole columns, 1 where a class is not named.
    """

    hyper: Hyper
    share: float
    classes: tuple[int, ...]
    gates: Mapping[int, Gate]
    gain: Mapping[str, float] | None = None
    balance: float = 1.0
    strengths: Mapping[int, float] = field(default_factory=dict)

    def apply(self, w0: WeightTable, learned: WeightTable) -> WeightTable:
        """Return the weights that this choice makes of learned ones."""
        w = w0.blend(learned, self.share, self.classes)
        factors = np.array([self.strengths.get(c, 1.0) for c in w.classes])
        return replace(w, matrix=w.matrix * factors, pairwise=w0.pairwise * self.balance)

    @property
    def value(self) -> float:
        """Mean gain on left-out patients; 0 where nothing is used."""
        return self.gain["mean"] if self.gain is not None else 0.0

    def line(
        self, surrogate: tuple[float, float] | None, uniform: Scores, learned: Scores | None, gated: Scores
    ) -> dict[str, Any]:
        """Put the surrogate loss and the Dice of warped masks side by side, each before and after learning."""
        left_out = gated if learned is None else learned
        before, after = surrogate or (None, None)
        return {
            "C": self.hyper.C,
            "alpha": self.hyper.alpha,
            "eta": self.hyper.eta,
            "share": self.share,
            "balance": self.balance,
            "strengths": {str(c): f for c, f in self.strengths.items()},
            "surrogate_uniform": before,
            "surrogate_learned": after,
            "dice_uniform": overall(uniform, left_out),
            "dice_learned": None if learned is None else overall(learned, left_out),
            "dice_gated": overall(gated, left_out),
            "gated_classes": list(self.classes),
        }


def try_columns(
    hyper: Hyper,
    w0: WeightTable,
    columns: Sequence[Columns],
    uniform: Scores,
    shown: Mapping[str, frozenset[int]],
    folds: Sequence[Fold],
    register: Register,
) -> list[tuple[Choice, dict[str, Any]]]:
    """Register left-out pairs with what the folds learned, first in all classes, then in those whose gate is open.

    Parameters
    ----------
    hyper : Hyper
        Hyper-parameters that the columns were learned with.
    w0 : WeightTable
        The uniform bank.
    columns : sequence of Columns
        What was learned, one for each fold.
    uniform : Scores
        Scores of the uniform bank.
    shown : mapping
        Structures that a pair shows in both label maps, by id.
    folds : sequence of Fold
        The split.
    register : Register
        Registers left-out pairs.

    Returns
    -------
    list of (Choice, line)
        For each of `SHARES` what would be used, and the line that the model keeps of it.
    """

    def blended(share: float, classes: tuple[int, ...]) -> list[WeightTable]:
        return [w0.blend(c.weights, share, classes) for c in columns]

    learned = register([blended(share, w0.classes) for share in SHARES])
    choices = []
    for share, scores in zip(SHARES, learned, strict=True):
        gates = decide(gains(uniform, scores, shown, w0.classes))
        choices.append(Choice(hyper, share, tuple(c for c, gate in gates.items() if gate.open), gates))
    gated = iter(register([blended(c.share, c.classes) for c in choices if c.classes]))
    out = []
    for choice, scores in zip(choices, learned, strict=True):
        after = next(gated) if choice.classes else uniform
        gain = gain_interval(uniform, after, folds) if choice.classes else None
        out.append((replace(choice, gain=gain), choice.line(_surrogate(columns), uniform, scores, after)))
    return out


def rebalance(
    choice: Choice,
    w0: WeightTable,
    columns: Sequence[Columns],
    uniform: Scores,
    folds: Sequence[Fold],
    register: Register,
    *,
    least: float,
) -> list[tuple[Choice, dict[str, Any]]]:
    """Try less smoothness with the gated columns, whose costs the uniform bank's was not tuned for.

    Nothing below ``least``, the smallest smoothness that the uniform bank was tried with: a gain there could be that
    of the smoothness alone. Other parameters and result as in `try_columns`.
    """
    factors = [f for f in BALANCES if w0.pairwise * f >= NEAR * least]
    if not choice.classes or not factors:
        return []
    candidates = [replace(choice, balance=factor) for factor in factors]
    scores = register([[c.apply(w0, fold.weights) for fold in columns] for c in candidates])
    return [
        (replace(c, gain=gain_interval(uniform, s, folds)), c.line(_surrogate(columns), uniform, None, s))
        for c, s in zip(candidates, scores, strict=True)
    ]


def strengthen(
    choice: Choice,
    w0: WeightTable,
    columns: Sequence[Columns],
    uniform: Scores,
    folds: Sequence[Fold],
    register: Register,
) -> list[tuple[Choice, dict[str, Any]]]:
    """Search greedily over a multiplier for each class column: data term against smoothness.

    A factor that raises the mean Dice of left-out pairs by `STRENGTH_ERRORS` standard errors is kept while the next
    classes are tried. Parameters and result as in `rebalance`.
    """
    names = [p.id for fold in folds for p in fold.test]
    best, out = choice, []
    current = uniform if choice.gain is None else register([[choice.apply(w0, c.weights) for c in columns]])[0]
    for k in w0.classes:
        candidates = [replace(best, strengths={**best.strengths, k: f}) for f in STRENGTHS]
        scores = register([[c.apply(w0, fold.weights) for fold in columns] for c in candidates])
        means = [overall(s, s) for s in scores]
        top = int(np.argmax(means))
        gate = decide({k: [mean_dice(scores[top][n]) - mean_dice(current[n]) for n in names]}, STRENGTH_ERRORS)[k]
        for i, (candidate, s) in enumerate(zip(candidates, scores, strict=True)):
            used = i == top and gate.open
            gain = gain_interval(uniform, s, folds) if used else None
            tried = replace(candidate, gain=gain)
            out.append((tried, candidate.line(None, uniform, None, s)))
            if used:
                best, following = tried, s
        if gate.open:
            current = following
    return out


def _surrogate(columns: Sequence[Columns]) -> tuple[float, float] | None:
    """Mean surrogate loss of the folds, before and after learning."""
    found = [s for c in columns if (s := c.surrogate()) is not None]
    if not found:
        return None
    before, after = np.mean(found, axis=0)
    return float(before), float(after)


def overall(scores: Scores, pairs: Scores) -> float:
    """Mean Dice over the pairs that other scores have."""
    return mean_over_pairs(scores[name] for name in pairs)


def gains(
    uniform: Scores, scores: Scores, shown: Mapping[str, frozenset[int]], classes: Sequence[int]
) -> dict[int, list[float]]:
    """Gain of each class on each left-out pair that shows it; the background's is the mean over the structures."""
    out: dict[int, list[float]] = {c: [] for c in classes}
    for name, after in scores.items():
        before = uniform[name]
        out[0].append(mean_dice(after) - mean_dice(before))
        for c in classes[1:]:
            if c in shown[name]:
                b, a = ({s.label: s.dice_after for s in pair_score(of).counted} for of in (before, after))
                out[c].append(a[c] - b[c])
    return out


def gain_interval(uniform: Scores, scores: Scores, folds: Sequence[Fold]) -> dict[str, float]:
    """Gain in mean Dice over all left-out pairs, with a 95 % interval by patient."""
    left_out = [pair for fold in folds for pair in fold.test]
    differences = [mean_dice(scores[p.id]) - mean_dice(uniform[p.id]) for p in left_out]
    interval = paired_bootstrap(differences, [p.group for p in left_out])
    return {"mean": interval.mean, "low": interval.low, "high": interval.high, "n": len(differences)}
