"""Empirical-Bayes choice of refinement weights by structure, judged by left-out patients.

All pairs were registered with each value of each setting, for all structures at once. Structures lie apart, so each
reads a curve of its own from the same registrations. A structure that few pairs show has a noisy curve; it is shrunk
towards what all have in common, as far as the noise asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from regweave.jobs.folds import Fold
from regweave.jobs.methods import next_values
from regweave.jobs.table import PairFiles
from regweave.training.candidates import (
    CHOSEN_ERRORS,
    Gate,
    PairScores,
    choose,
    gain_interval,
    gains_over,
    overall,
)
from regweave.types import Float64Array, WeightTable

SMOOTHNESS = "smoothness"
"""Name of the curve over the smoothness of the refinement."""
SHARES = (0.5, 1.0)
"""Shares of the way from the common column to a structure's own that are tried on left-out patients."""

RegisterLeftOut = Callable[[Sequence[Sequence[WeightTable]]], Sequence[PairScores]]
"""Registers the left-out pairs: for each set of weights, one for each fold, the scores of all pairs."""
Preferences = Mapping[str, Mapping[int, float]]
"""Factor of each member that each structure would choose."""
Propose = Callable[[Sequence[PairFiles]], tuple[WeightTable, Preferences]]
"""Learner of columns: those that some pairs ask for, and what each structure trusts in them."""


@dataclass(frozen=True)
class _Choice:
    """Columns that were tried: share of the way, structures whose gates are open, and what left-out pairs say."""

    share: float
    classes: tuple[int, ...]
    gates: Mapping[int, Gate]
    scores: PairScores
    gate: Gate


def weigh_by_structure(
    found: RefinementWeights,
    pairs: Sequence[PairFiles],
    folds: Sequence[Fold],
    propose: Propose,
    left_out: RegisterLeftOut,
    register: RegisterAll,
) -> RefinementWeights:
    """Give structures weights of their own in the refinement where left-out patients gain by it.

    Each fold chooses from its own training pairs, and its left-out pairs are registered with its choice. A structure
    keeps its column if its own Dice rises by a standard error; then the mean over all structures must rise by one.

    Parameters
    ----------
    found : RefinementWeights
        The common mix, with the curves of its search.
    pairs : sequence of PairFiles
        All training pairs.
    folds : sequence of Fold
        Splits by patient.
    propose : callable
        Learns columns from pairs.
    left_out, register : callable
        Register the left-out pairs of the folds, each with its own weights, and all pairs.
    """
    common = found.weights
    whole, trusted = propose(pairs)
    differs = (whole.matrix != common.matrix).any(axis=0) | (_stiffness(whole) != _stiffness(common))
    asked = tuple(c for c, new in zip(common.classes, differs, strict=True) if new and c != 0)
    if not asked:
        return replace(found, columns=_record(trusted, None))
    tables = [propose(fold.train)[0] for fold in folds]
    tried = left_out([[part_of(common, t, share, asked) for t in tables] for share in SHARES])
    choices = []
    for share, scores in zip(SHARES, tried, strict=True):
        gates = structure_gates(found.scores, scores, folds, asked)
        kept = tuple(c for c, gate in gates.items() if gate.open)
        if kept and kept != asked:
            scores = left_out([[part_of(common, t, share, kept) for t in tables]])[0]  # noqa: PLW2901
        judged = [p for fold in folds for p in fold.test]
        gate = Gate.of_patients(gains_over(found.scores, scores, judged) if kept else [0.0] * len(judged), judged)
        choices.append(_Choice(share, kept, gates, scores, gate))
    best = max(choices, key=lambda c: c.gate.gain)
    if not best.gate.open:
        return replace(found, columns=_record(trusted, replace(best, classes=())))
    weights = part_of(common, whole, best.share, best.classes)
    gain = gain_interval(found.scores, best.scores, folds)
    return replace(found, weights=weights, scores=register([weights])[0], columns=_record(trusted, best, gain))


def by_curves(found: RefinementWeights) -> Propose:
    """Learn columns from real Dice: each structure takes what its own curves say, shrunk by their noise."""

    def propose(pairs: Sequence[PairFiles]) -> tuple[WeightTable, Preferences]:
        trusted = preferences(found.curves, pairs, found.weights.classes)
        return column_table(found.weights, trusted), trusted

    return propose


def preferences(curves: Sequence[Curve], pairs: Sequence[PairFiles], classes: Sequence[int]) -> dict[str, Any]:
    """Return the value of each setting that each structure would choose, by its shrunken curve on some pairs.

    That of the smoothness is a factor on the common one.
    """
    out: dict[str, dict[int, float]] = {}
    for curve in curves:
        known = [p for p in pairs if p.id in curve.scores[curve.common]]
        values = [curve.common, *(v for v in sorted(curve.scores) if v != curve.common)]
        gains = np.stack([shrunken_gains(curve, value, known, classes[1:]) for value in values])
        best = gains.argmax(axis=0)  # of equals the first: the common one
        unit = curve.common if curve.name == SMOOTHNESS else 1.0
        out[curve.name] = {c: values[k] / unit for c, k in zip(classes[1:], best.tolist(), strict=True)}
    return out


def shrunken_gains(curve: Curve, value: float, pairs: Sequence[PairFiles], classes: Sequence[int]) -> Float64Array:
    """Gain of each structure by another value, shrunk towards that of all by the noise of its own, (C,).

    The deviations of the structures from the common gain have the variance τ² beside their standard errors; what is
    seen of a deviation counts with the share τ² / (τ² + σ²) (James and Stein). A common gain above zero counts as
    none: that value was tried for all, and left-out patients did not take it.
    """
    before, after = curve.scores[curve.common], curve.scores[value]
    mean, error = gains_by_structure(before, after, pairs, classes)
    names = [p.id for p in pairs]
    prior = min(overall(after, names) - overall(before, names), 0.0)
    known = np.isfinite(error)
    deviation = np.where(known, mean - prior, 0.0)
    variance = np.square(np.where(known, error, 0.0))
    spread = max(float((deviation**2 - variance)[known].mean()), 0.0) if known.any() else 0.0
    total = spread + variance
    share = np.divide(spread, total, out=np.zeros_like(total), where=total > 0)
    return np.asarray(prior + share * deviation)


def gains_by_structure(
    before: PairScores, after: PairScores, pairs: Sequence[PairFiles], classes: Sequence[int]
) -> tuple[Float64Array, Float64Array]:
    """Mean gain of each structure over the pairs that show it, and its standard error, a jackknife by patient.

    Both are of shape (C,); the mean is NaN where no pair shows the structure, the error infinite below two patients.
    """
    gains = _dice(after, pairs, classes) - _dice(before, pairs, classes)  # (N, C)
    seen = np.isfinite(gains)
    gains = np.where(seen, gains, 0.0)
    patients = sorted({name for p in pairs for name in p.patients})
    shows = np.array([[name in p.patients for p in pairs] for name in patients], dtype=np.float64)  # (P, N)
    count, total = seen.sum(axis=0), gains.sum(axis=0)
    n, own = count - shows @ seen, shows @ seen
    used = (own > 0) & (n > 0)  # without a patient whom every pair shows nothing is left
    means = np.divide(total - shows @ gains, n, out=np.zeros_like(n), where=used)
    k = used.sum(axis=0)
    centre = np.divide(means.sum(axis=0), k, out=np.zeros(len(k)), where=k > 0)
    spread = np.where(used, (means - centre) ** 2, 0.0).sum(axis=0)
    error = np.where(k > 1, np.sqrt((k - 1) / np.maximum(k, 1) * spread), np.inf)
    return np.divide(total, count, out=np.full(len(k), np.nan), where=count > 0), error


def column_table(common: WeightTable, trusted: Preferences) -> WeightTable:
    """Share out the refinement's weight in each structure by its own factors, with its own smoothness.

    What a structure shares with all it keeps of the common table.
    """
    table = common
    for c in common.classes[1:]:
        shares = {member: factors[c] for member, factors in trusted.items() if member != SMOOTHNESS}
        if any(shares.values()):
            own = common.share_out(shares)
            k = common.classes.index(c)
            if not np.allclose(own.matrix[:, k], common.matrix[:, k], rtol=1e-12, atol=0):
                table = table.blend(own, 1.0, (c,))
    smooth = trusted.get(SMOOTHNESS)
    if smooth is None:
        return table
    factors = np.array([1.0, *(smooth[c] for c in common.classes[1:])])
    return replace(table, stiffness=_stiffness(common) * factors)


def part_of(common: WeightTable, whole: WeightTable, share: float, classes: Sequence[int]) -> WeightTable:
    """Go a share of the way from the common table to the columns of some structures; stiffness in its logarithm."""
    kept = np.isin(common.classes, classes)
    ratio = _stiffness(whole) / _stiffness(common)
    stiffness = _stiffness(common) * np.where(kept, ratio**share, 1.0)
    return replace(common.blend(whole, share, classes), stiffness=stiffness)


def _stiffness(table: WeightTable) -> Float64Array:
    return np.ones(len(table.classes)) if table.stiffness is None else table.stiffness


def structure_gates(
    before: PairScores, after: PairScores, folds: Sequence[Fold], classes: Sequence[int]
) -> dict[int, Gate]:
    """Judge the gain of each structure on the left-out pairs that show it, with the patient as the unit of chance."""
    pairs = [p for fold in folds for p in fold.test]
    means, errors = gains_by_structure(before, after, pairs, classes)
    counts = np.isfinite(_dice(after, pairs, classes)).sum(axis=0)
    rows = zip(classes, means.tolist(), errors.tolist(), counts.tolist(), strict=True)
    return {c: Gate(mean, error, n) for c, mean, error, n in rows}


def _dice(scores: PairScores, pairs: Sequence[PairFiles], classes: Sequence[int]) -> Float64Array:
    """Dice by pair and structure, (N, C); NaN where a pair does not count it."""
    rows = []
    for pair in pairs:
        known = {s.label: s.dice_after for s in scores[pair.id].counted}
        rows.append([known.get(c, np.nan) for c in classes])
    return np.array(rows, dtype=np.float64).reshape(len(pairs), len(classes))


def _record(trusted: Preferences, best: _Choice | None, gain: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return what a model keeps: factors by member and structure, gates, share and gain."""
    gates = {} if best is None else best.gates
    used = () if best is None else best.classes
    return {
        "factors": {member: {str(c): f for c, f in row.items()} for member, row in trusted.items()},
        "share": None if best is None else best.share,
        "gates": {
            str(c): {"gain": g.gain, "standard_error": g.standard_error, "n": g.n, "used": c in used}
            for c, g in gates.items()
        },
        "gain": gain,
    }


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
