"""Coordinate-wise search over the weights of the refinement metrics, judged by left-out patients.

The refinement decides by the gradient of a sum over voxels; it has no labels, so the structured SVM cannot teach it.
Its members are few and a registration is short: each weight is tried at a few values with real Dice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from regweave.datasets.folds import Fold
from regweave.datasets.manifest import PairFiles
from regweave.jobs.methods import next_values
from regweave.training.candidates import CHOSEN_ERRORS, Gate, PairScores, choose, gain_interval, gains_over, overall
from regweave.types import WeightTable

FACTORS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Weights that may be tried for a member, against the largest that a member of the refinement starts with."""
MAP_FACTORS = (*FACTORS, 16.0, 32.0)
"""Those of a member that compares maps of structures: good maps are worth more than all images together."""

RegisterAll = Callable[[Sequence[WeightTable]], Sequence[PairScores]]
"""Registers all training pairs with each of the weights."""


@dataclass(frozen=True)
class Curve:
    """Scores of all pairs at each value of one setting, and the value that all structures share.

    Parameters
    ----------
    name : str
        Member of the refinement, or ``smoothness``.
    scores : mapping from float to PairScores
        By value, the other settings as they were when it was tried.
    common : float
        Value in use.
    """

    name: str
    scores: Mapping[float, PairScores]
    common: float


@dataclass(frozen=True)
class RefinementWeights:
    """Weights after those of the refinement were tried, and the record of the search.

    Parameters
    ----------
    weights : WeightTable
        The start's, with other rows for members of the refinement where left-out patients gained by it.
    scores : PairScores
        Scores of all training pairs with them.
    trail : sequence of mappings
        One for each member: the mean Dice of each value on all pairs, the gain of left-out pairs, the value used.
    gain : mapping, optional
        Gain in mean Dice over the start, as in `ColumnSelection`; None where nothing changed.
    smoothness : mapping, optional
        Smoothness of the refinement with these weights, and the mean Dice of each value that was tried.
    without_mask : mapping, optional
        Where a member compares the moving labels: gain of comparing predicted ones where there are none.
    blind : WeightTable, optional
        Weights for pairs without moving labels, where others are better there.
    columns : mapping, optional
        Where structures were tried with weights of their own: what each would trust, and what they gain.
    background : mapping, optional
        Where maps have a weight: what leaving the background to the images changes for the structures.
    start : mapping, optional
        Where a start from structures was tried: what left-out patients gain by it, and which start is used.
    curves : tuple of Curve
        One for each member that was tried; structures read theirs from them.
    """

    weights: WeightTable
    scores: PairScores
    trail: Sequence[Mapping[str, Any]] = ()
    gain: Mapping[str, float] | None = None
    smoothness: Mapping[str, Any] | None = None
    without_mask: Mapping[str, Any] | None = None
    blind: WeightTable | None = None
    columns: Mapping[str, Any] | None = None
    background: Mapping[str, Any] | None = None
    start: Mapping[str, Any] | None = None
    curves: tuple[Curve, ...] = field(default=(), repr=False)

    def record(self) -> dict[str, Any]:
        """Return what a model keeps of it."""
        return {
            "members": list(self.trail),
            "gain": self.gain,
            "smoothness": self.smoothness,
            "without_mask": self.without_mask,
            **({} if self.columns is None else {"columns": self.columns}),
            **({} if self.background is None else {"background": self.background}),
            **({} if self.start is None else {"start": self.start}),
        }


def mix_refinement(
    start: WeightTable,
    scores: PairScores,
    members: Mapping[str, Sequence[float]],
    folds: Sequence[Fold],
    register: RegisterAll,
) -> RefinementWeights:
    """Try other weights for each member of the refinement, the same for all classes, uphill from where it is.

    For each fold the value that is best on its training pairs is judged on its left-out pairs; only if these gain by
    two standard errors, the member takes the value that is best on all pairs; it is the best of several that are tried.
    All pairs are registered with all values, so that a fold costs nothing, and `one_by_one` judges every pair.

    Parameters
    ----------
    start : WeightTable
        The bank before learning.
    scores : PairScores
        Scores of all pairs with it.
    members : mapping
        Members of one stage, and the factors that may be tried for each, none where it only shares; other rows are not
        touched.
    folds : sequence of Fold
        Splits by patient; without one nothing can be judged and nothing changes.
    register : RegisterAll
        Registers all pairs.
    """
    rows = start.matrix[start.rows([*members]), 0]
    if not folds or len(members) < 2 or not rows.any():
        return RefinementWeights(start, scores)
    factors = dict(zip(members, (rows / rows.max()).tolist(), strict=True))
    known, trail, curves = scores, [], []
    for member, now in factors.items():
        if not members[member]:
            continue
        alone = not any(f for m, f in factors.items() if m != member)
        values = [f for f in sorted({*members[member], now}) if f > 0 or not alone]
        found: dict[float, PairScores] = {now: known}
        while tried := next_values(values, {f: overall(s, known) for f, s in found.items()}):
            new = register([start.share_out({**factors, member: f}) for f in tried])
            found.update(zip(tried, new, strict=True))
        best, gate = choose(found, partial(_judge, found, now, folds), now)
        trail.append(_line(member, found, now, best, gate))
        curves.append(Curve(member, found, best))
        factors[member], known = best, found[best]
    if all(line["used"] == line["before"] for line in trail):
        return RefinementWeights(start, scores, trail, curves=tuple(curves))
    gain = gain_interval(scores, known, folds)
    return RefinementWeights(start.share_out(factors), known, trail, gain, curves=tuple(curves))


def judge_without_mask(used: PairScores, unused: PairScores, pairs: Sequence[PairFiles]) -> dict[str, Any]:
    """Tell whether members that compare the moving labels help where these are predicted, by one standard error.

    Parameters
    ----------
    used, unused : PairScores
        Scores of all pairs without labels, with these members and without them.
    pairs : sequence of PairFiles
        The pairs.
    """
    gate = Gate.of_patients(gains_over(unused, used, pairs), pairs)
    return {"gain": gate.gain, "standard_error": gate.standard_error, "n": gate.n, "used": gate.open}


def _judge(found: Mapping[float, PairScores], now: float, folds: Sequence[Fold], _best: float) -> Gate:
    """Gain of left-out pairs when each fold takes the value that is best on its own training pairs."""
    gains: list[float] = []
    pairs: list[PairFiles] = []
    for fold in folds:
        means = {f: overall(s, (p.id for p in fold.train)) for f, s in found.items()}
        best = max(means, key=lambda f: (means[f], f == now))
        gains += gains_over(found[now], found[best], fold.test)
        pairs += fold.test
    return Gate.of_patients(gains, pairs, CHOSEN_ERRORS)


def _line(member: str, found: Mapping[float, PairScores], now: float, best: float, gate: Gate) -> dict[str, Any]:
    return {
        "member": member,
        "curve": [{"factor": f, "mean_dice": overall(found[f], found[now])} for f in sorted(found)],
        "before": now,
        "used": best,
        "gain": gate.gain,
        "standard_error": gate.standard_error,
        "n": gate.n,
    }
