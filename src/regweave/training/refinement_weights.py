"""Coordinate-wise search over the weights of the refinement metrics, validated on left-out patients.

The refinement decides by the gradient of a sum over voxels; it has no labels, so the structured SVM cannot teach it.
Its members are few and a registration is short: each weight is tried at a few values with real Dice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from regweave.datasets.folds import Fold
from regweave.datasets.manifest import PairFiles
from regweave.jobs.methods import next_values
from regweave.jobs.scoring import mean_dice, mean_over_pairs
from regweave.learning.gate import Gate, error_by_patient
from regweave.training.column_selection import STRENGTH_ERRORS, Scores, gain_interval, overall
from regweave.types import WeightTable

FACTORS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Weights that may be tried for a member, against the largest that a member of the refinement starts with."""

RegisterAll = Callable[[Sequence[WeightTable]], Sequence[Scores]]
"""Registers all training pairs with each of the weights."""


@dataclass(frozen=True)
class Mix:
    """Weights after the refinement's were tried, the scores of all pairs with them, and what was tried.

    Parameters
    ----------
    weights : WeightTable
        The start's, with other rows for members of the refinement where left-out patients gained by it.
    scores : Scores
        Scores of all training pairs with them.
    trail : sequence of mappings
        One for each member: the mean Dice of each value on all pairs, the gain of left-out pairs, the value used.
    gain : mapping, optional
        Gain in mean Dice over the start, as in `Choice`; None where nothing changed.
    smoothness : mapping, optional
        Smoothness of the refinement with these weights, and the mean Dice of each value that was tried.
    without_mask : mapping, optional
        Where a member compares the moving labels: gain of comparing predicted ones where there are none.
    """

    weights: WeightTable
    scores: Scores
    trail: Sequence[Mapping[str, Any]] = ()
    gain: Mapping[str, float] | None = field(default=None)
    smoothness: Mapping[str, Any] | None = None
    without_mask: Mapping[str, Any] | None = None

    def evidence(self) -> dict[str, Any]:
        """Return what a model keeps of it."""
        return {
            "members": list(self.trail),
            "gain": self.gain,
            "smoothness": self.smoothness,
            "without_mask": self.without_mask,
        }


def mix_refinement(
    start: WeightTable, scores: Scores, members: Sequence[str], folds: Sequence[Fold], register: RegisterAll
) -> Mix:
    """Try other weights for each member of the refinement, the same for all classes, uphill from where it is.

    For each fold the value that is best on its training pairs is judged on its left-out pairs; only if these gain by
    two standard errors, the member takes the value that is best on all pairs; it is the best of several that are tried.
    All pairs are registered with all values, so that a fold costs nothing, and `one_by_one` judges every pair.

    Parameters
    ----------
    start : WeightTable
        The bank before learning.
    scores : Scores
        Scores of all pairs with it.
    members : sequence of str
        Members of the refinement; those of the discrete levels are not touched.
    folds : sequence of Fold
        Splits by patient; without one nothing can be judged and nothing changes.
    register : RegisterAll
        Registers all pairs.
    """
    rows = start.matrix[start.rows(members), 0]
    if not folds or len(members) < 2 or not rows.any():
        return Mix(start, scores)
    factors = dict(zip(members, (rows / rows.max()).tolist(), strict=True))
    known, trail = scores, []
    for member, now in factors.items():
        alone = not any(f for m, f in factors.items() if m != member)
        values = [f for f in sorted({*FACTORS, now}) if f > 0 or not alone]
        found: dict[float, Scores] = {now: known}
        while tried := next_values(values, {f: overall(s, known) for f, s in found.items()}):
            new = register([start.share_out({**factors, member: f}) for f in tried])
            found.update(zip(tried, new, strict=True))
        gate = _judge(found, now, folds)
        best = max(found, key=lambda f: (overall(found[f], known), f == now)) if gate.open else now
        trail.append(_line(member, found, now, best, gate))
        factors[member], known = best, found[best]
    if all(line["used"] == line["before"] for line in trail):
        return Mix(start, scores, trail)
    return Mix(start.share_out(factors), known, trail, gain_interval(scores, known, folds))


def judge_without_mask(used: Scores, unused: Scores, pairs: Sequence[PairFiles]) -> dict[str, Any]:
    """Tell whether members that compare the moving labels help where these are predicted, by one standard error.

    Parameters
    ----------
    used, unused : Scores
        Scores of all pairs without labels, with these members and without them.
    pairs : sequence of PairFiles
        The pairs.
    """
    gains = [mean_dice(used[p.id]) - mean_dice(unused[p.id]) for p in pairs]
    gate = Gate(float(np.mean(gains)), error_by_patient(gains, [p.patients for p in pairs]), len(gains))
    return {"gain": gate.gain, "standard_error": gate.standard_error, "n": gate.n, "used": gate.open}


def _judge(found: Mapping[float, Scores], now: float, folds: Sequence[Fold]) -> Gate:
    """Gain of left-out pairs when each fold takes the value that is best on its own training pairs."""
    gains, patients = [], []
    for fold in folds:
        means = {f: mean_over_pairs(s[p.id] for p in fold.train) for f, s in found.items()}
        best = max(means, key=lambda f: (means[f], f == now))
        gains += [mean_dice(found[best][p.id]) - mean_dice(found[now][p.id]) for p in fold.test]
        patients += [p.patients for p in fold.test]
    return Gate(float(np.mean(gains)), error_by_patient(gains, patients), len(gains), STRENGTH_ERRORS)


def _line(member: str, found: Mapping[float, Scores], now: float, best: float, gate: Gate) -> dict[str, Any]:
    return {
        "member": member,
        "curve": [{"factor": f, "mean_dice": overall(found[f], found[now])} for f in sorted(found)],
        "before": now,
        "used": best,
        "gain": gate.gain,
        "standard_error": gate.standard_error,
        "n": gate.n,
    }
