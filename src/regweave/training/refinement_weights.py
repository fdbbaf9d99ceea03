"""Weights of the refinement, chosen by the Dice of real registrations and judged by left-out patients.

The refinement follows the gradient of a sum over voxels and has no labels, so the structured SVM of the levels does not
apply. Its members are few and a registration is short. Two searches choose their weights:

1. `mix_refinement`: one weight of each member for all structures, by coordinate search.
2. `weigh_by_structure`: weights by structure. All pairs were registered with each value for all structures at once, and
   structures lie apart, so each structure reads its own curve from these registrations. The curve of a structure that
   few pairs show is noisy; it is shrunk towards the common one by empirical Bayes.
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
from regweave.model.record import FactorPoint, GateRecord, MemberTrial, RefinementColumns, RefinementRecord
from regweave.training.candidates import (
    CHOSEN_ERRORS,
    PairScores,
    choose,
    gain_interval,
    gains_over,
    judge_patients,
    overall,
)
from regweave.types import Float64Array, WeightTable

FACTORS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Weights that may be tried for a member, relative to the largest start weight of the refinement."""
MAP_FACTORS = (*FACTORS, 16.0, 32.0)
"""The same for a member that compares structure maps: good maps are worth more than all images together."""
SMOOTHNESS = "smoothness"  # name of the curve over the smoothness of the refinement
SHARES = (0.5, 1.0)
"""Shares of the way from the common column to the column of a structure that are tried on left-out patients."""

Register = Callable[[Sequence[WeightTable]], Sequence[PairScores]]
"""Registers all training pairs with each of the weights."""
RegisterLeftOut = Callable[[Sequence[Sequence[WeightTable]]], Sequence[PairScores]]
"""Registers the left-out pairs: for each set of weights, one for each fold, the scores of all pairs."""
Preferences = Mapping[str, Mapping[int, float]]  # best factor of each member by structure
Propose = Callable[[Sequence[PairFiles]], tuple[WeightTable, Preferences]]
"""Learner of columns from pairs: the weights, and the factors behind them."""
NextValues = Callable[[Sequence[float], Mapping[float, float]], list[float]]
"""Line search: values to try next, from all allowed values and the mean Dice of those that were tried."""


@dataclass(frozen=True)
class Curve:
    """Scores of all pairs at each value of one setting, and the value in use for all structures.

    The setting is the factor of a member of the refinement, or `SMOOTHNESS`.
    """

    name: str
    scores: Mapping[float, PairScores]
    common: float


NOT_SEARCHED = RefinementRecord(members=(), gain=None, smoothness=None, without_mask=None)


@dataclass(frozen=True)
class RefinementWeights:
    """Weights of a training during and after the search over the refinement."""

    weights: WeightTable
    """The start's, with other rows for members of the refinement where left-out patients gained by it."""
    scores: PairScores  # scores of all judged pairs with them
    record: RefinementRecord = NOT_SEARCHED  # values that were tried, and their gains
    curves: tuple[Curve, ...] = field(default=(), repr=False)
    """One for each setting that was searched; `weigh_by_structure` uses them."""
    without_labels: WeightTable | None = None  # weights for pairs without moving labels, where others are better there

    def recorded(self, **parts: Any) -> RefinementWeights:
        """Return the same weights with more parts of the record."""
        return replace(self, record=self.record.model_copy(update=parts))


def mix_refinement(
    start: WeightTable,
    scores: PairScores,
    members: Mapping[str, Sequence[float]],
    folds: Sequence[Fold],
    register: Register,
    search: NextValues = next_values,
) -> RefinementWeights:
    """Search the weight of each member of the refinement, one after the other, the same for all classes.

    For each fold, the value that is best on its training pairs is judged on its left-out pairs. If these gain by
    `CHOSEN_ERRORS` standard errors, the member takes the value that is best on all pairs. All pairs are registered with
    all values, so folds need no further registrations, and leave-one-out folds are affordable.

    ``scores`` are those of all pairs with the start. ``members`` has the factors that may be tried for each member of
    one stage; a member without factors keeps its own, and takes part in the normalisation. Rows of other members stay.
    Without folds nothing is judged and nothing changes.
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
        while tried := search(values, {f: overall(s, known) for f, s in found.items()}):
            new = register([start.share_out({**factors, member: f}) for f in tried])
            found.update(zip(tried, new, strict=True))
        best, gate = choose(found, partial(_judge, found, now, folds), now)
        trail.append(_trial(member, found, now, best, gate))
        curves.append(Curve(member, found, best))
        factors[member], known = best, found[best]
    if all(line.used == line.before for line in trail):
        return RefinementWeights(start, scores, curves=tuple(curves)).recorded(members=tuple(trail))
    mixed = RefinementWeights(start.share_out(factors), known, curves=tuple(curves))
    return mixed.recorded(members=tuple(trail), gain=gain_interval(scores, known, folds))


def _judge(found: Mapping[float, PairScores], now: float, folds: Sequence[Fold], _best: float) -> GateRecord:
    """Gain of left-out pairs when each fold takes the value that is best on its own training pairs."""
    gains: list[float] = []
    pairs: list[PairFiles] = []
    for fold in folds:
        means = {f: overall(s, (p.id for p in fold.train)) for f, s in found.items()}
        best = max(means, key=lambda f: (means[f], f == now))
        gains += gains_over(found[now], found[best], fold.test)
        pairs += fold.test
    return judge_patients(gains, pairs, CHOSEN_ERRORS)


def _trial(member: str, found: Mapping[float, PairScores], now: float, best: float, gate: GateRecord) -> MemberTrial:
    return MemberTrial(
        member=member,
        curve=tuple(FactorPoint(factor=f, mean_dice=overall(found[f], found[now])) for f in sorted(found)),
        before=now,
        used=best,
        gain=gate.gain,
        standard_error=gate.standard_error,
        n=gate.n,
    )


def weigh_by_structure(
    found: RefinementWeights,
    pairs: Sequence[PairFiles],
    folds: Sequence[Fold],
    propose: Propose,
    left_out: RegisterLeftOut,
    register: Register,
) -> RefinementWeights:
    """Use weights by structure in the refinement where left-out patients gain by it.

    Each fold learns columns from its own training pairs by ``propose``, and its left-out pairs are registered with
    them. A structure keeps its column if its own Dice rises by a standard error; then the mean over all structures must
    rise by one. ``found`` are the common weights, with the curves of their search.
    """
    common = found.weights
    whole, factors = propose(pairs)
    record = RefinementColumns(
        factors={member: {str(c): f for c, f in row.items()} for member, row in factors.items()},
        share=None, gates={}, gain=None,
    )  # fmt: skip
    differs = (whole.matrix != common.matrix).any(axis=0) | (_stiffness(whole) != _stiffness(common))
    changed = tuple(c for c, new in zip(common.classes, differs, strict=True) if new and c != 0)
    if not changed:
        return found.recorded(columns=record)
    tables = [propose(fold.train)[0] for fold in folds]
    judged = [p for fold in folds for p in fold.test]
    tried = left_out([[part_of(common, t, share, changed) for t in tables] for share in SHARES])
    choices = []
    for share, of_all in zip(SHARES, tried, strict=True):
        gates = structure_gates(found.scores, of_all, folds, changed)
        kept = tuple(c for c, gate in gates.items() if gate.used)
        scores = of_all
        if kept and kept != changed:
            scores = left_out([[part_of(common, t, share, kept) for t in tables]])[0]
        gate = judge_patients(gains_over(found.scores, scores, judged) if kept else [0.0] * len(judged), judged)
        choices.append((gate, share, gates, kept, scores))
    gate, share, gates, kept, scores = max(choices, key=lambda choice: choice[0].gain or 0.0)
    used = kept if gate.used else ()
    gates = {c: g.model_copy(update={"used": c in used}) for c, g in gates.items()}
    record = record.model_copy(update={"share": share, "gates": {str(c): g for c, g in gates.items()}})
    if not gate.used:
        return found.recorded(columns=record)
    weights = part_of(common, whole, share, kept)
    record = record.model_copy(update={"gain": gain_interval(found.scores, scores, folds)})
    return replace(found, weights=weights, scores=register([weights])[0]).recorded(columns=record)


def by_curves(found: RefinementWeights) -> Propose:
    """Return the learner of columns from Dice: each structure takes the best values of its shrunken curves."""

    def propose(pairs: Sequence[PairFiles]) -> tuple[WeightTable, Preferences]:
        factors = preferences(found.curves, pairs, found.weights.classes)
        return column_table(found.weights, factors), factors

    return propose


def preferences(curves: Sequence[Curve], pairs: Sequence[PairFiles], classes: Sequence[int]) -> dict[str, Any]:
    """Return the best value of each setting for each structure, by its shrunken curve on some pairs.

    For the smoothness the value is a factor on the common one.
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
    """Gain of each structure by another value, shrunk towards the common gain, (C,).

    The deviations of the structures from the common gain have the variance τ² beside their squared standard errors σ².
    An observed deviation is multiplied by τ² / (τ² + σ²) (James and Stein). A common gain above zero counts as zero:
    `mix_refinement` has tried that value for all structures, and left-out patients rejected it.
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
    used = (own > 0) & (n > 0)  # a patient of all pairs cannot be left out
    means = np.divide(total - shows @ gains, n, out=np.zeros_like(n), where=used)
    k = used.sum(axis=0)
    centre = np.divide(means.sum(axis=0), k, out=np.zeros(len(k)), where=k > 0)
    spread = np.where(used, (means - centre) ** 2, 0.0).sum(axis=0)
    error = np.where(k > 1, np.sqrt((k - 1) / np.maximum(k, 1) * spread), np.inf)
    return np.divide(total, count, out=np.full(len(k), np.nan), where=count > 0), error


def column_table(common: WeightTable, preferred: Preferences) -> WeightTable:
    """Divide the refinement's weight among its members by the factors of each structure, with its own smoothness.

    A structure whose column equals the common one keeps the common bits.
    """
    table = common
    for c in common.classes[1:]:
        shares = {member: factors[c] for member, factors in preferred.items() if member != SMOOTHNESS}
        if any(shares.values()):
            own = common.share_out(shares)
            k = common.classes.index(c)
            if not np.allclose(own.matrix[:, k], common.matrix[:, k], rtol=1e-12, atol=0):
                table = table.blend(own, 1.0, (c,))
    smooth = preferred.get(SMOOTHNESS)
    if smooth is None:
        return table
    factors = np.array([1.0, *(smooth[c] for c in common.classes[1:])])
    return replace(table, stiffness=_stiffness(common) * factors)


def part_of(common: WeightTable, whole: WeightTable, share: float, classes: Sequence[int]) -> WeightTable:
    """Interpolate from the common table towards the columns of some structures; the stiffness in its logarithm."""
    kept = np.isin(common.classes, classes)
    ratio = _stiffness(whole) / _stiffness(common)
    stiffness = _stiffness(common) * np.where(kept, ratio**share, 1.0)
    return replace(common.blend(whole, share, classes), stiffness=stiffness)


def _stiffness(table: WeightTable) -> Float64Array:
    return np.ones(len(table.classes)) if table.stiffness is None else table.stiffness


def structure_gates(
    before: PairScores, after: PairScores, folds: Sequence[Fold], classes: Sequence[int]
) -> dict[int, GateRecord]:
    """Judge the gain of each structure on the left-out pairs that show it, by patient."""
    pairs = [p for fold in folds for p in fold.test]
    means, errors = gains_by_structure(before, after, pairs, classes)
    counts = np.isfinite(_dice(after, pairs, classes)).sum(axis=0)
    rows = zip(classes, means.tolist(), errors.tolist(), counts.tolist(), strict=True)
    return {
        c: GateRecord(gain=mean, standard_error=error, n=n, used=n > 1 and mean > error) for c, mean, error, n in rows
    }


def _dice(scores: PairScores, pairs: Sequence[PairFiles], classes: Sequence[int]) -> Float64Array:
    """Dice by pair and structure, (N, C); NaN where a pair does not count it."""
    rows = []
    for pair in pairs:
        known = {s.label: s.dice_after for s in scores[pair.id].counted}
        rows.append([known.get(c, np.nan) for c in classes])
    return np.array(rows, dtype=np.float64).reshape(len(pairs), len(classes))
