"""Columns of the refinement: a structure trusts what left-out patients gain by, and noise is shrunk away."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from regweave.jobs.table import PairFiles, one_by_one
from regweave.measures.scores import PairScore, StructureScore
from regweave.measures.statistics import error_by_patient
from regweave.training.refinement import (
    SHARES,
    SMOOTHNESS,
    Curve,
    RefinementWeights,
    by_curves,
    column_table,
    gains_by_structure,
    part_of,
    preferences,
    shrunken_gains,
    weigh_by_structure,
)
from regweave.types import WeightTable

CLASSES = (0, 3, 5)
COMMON = WeightTable(np.repeat([[0.5], [0.25], [0.25]], 3, axis=1), ("a", "wide", "edges"), CLASSES, 0.1)
PAIRS = [PairFiles(f"p{i}", *[Path("x")] * 4, f"g{i}") for i in range(8)]
VALUES = (0.0, 1.0, 4.0)


def score(dice) -> PairScore:
    return PairScore(tuple(StructureScore(c, str(c), "scored", 0.0, d) for c, d in dice.items()))


def table(dice_of, pairs=PAIRS):
    """Scores of pairs from a function of the structure and the pair's number."""
    return {p.id: score({c: dice_of(c, i) for c in CLASSES[1:]}) for i, p in enumerate(pairs)}


def edges(weights: WeightTable, c: int) -> float:
    k = weights.classes.index(c)
    return weights.matrix[2, k] / weights.matrix[1:, k].sum()


def run(dice_of, pairs=PAIRS):
    """Weigh with a Dice that is a function of the share of edges in a structure, the structure and the pair."""
    used: list[WeightTable] = []

    def scores(weights_of):
        return {
            p.id: score({c: dice_of(edges(weights_of(i), c), c, i) for c in CLASSES[1:]}) for i, p in enumerate(pairs)
        }

    def at(value):
        return scores(lambda _: COMMON.share_out({"wide": 1.0, "edges": value}))

    folds = one_by_one(pairs)

    def left_out(models):
        used.extend(w for tables in models for w in tables)
        return [scores(lambda i, tables=tables: tables[i]) for tables in models]

    curves = (Curve("wide", {1.0: at(1.0)}, 1.0), Curve("edges", {v: at(v) for v in VALUES}, 1.0))
    found = RefinementWeights(COMMON, at(1.0), curves=curves)
    register = lambda ts: [scores(lambda _, t=t: t) for t in ts]  # noqa: E731
    return weigh_by_structure(found, pairs, folds, partial(by_curves, found), left_out, register), used


def test_structures_that_want_opposite_things_both_get_them():
    found, used = run(lambda share, c, i: 0.7 + (0.1 if c == 3 else -0.1) * share + 0.001 * i * share)
    assert found.record.columns.factors["edges"] == {"3": 4.0, "5": 0.0}
    assert edges(found.weights, 3) == pytest.approx(0.8)
    assert edges(found.weights, 5) == 0
    assert edges(found.weights, 0) == 0.5
    assert found.record.columns.share == max(SHARES)
    assert all(gate.used for gate in found.record.columns.gates.values())
    assert found.record.columns.gain.mean > 0.03
    assert found.scores["p0"].mean() == pytest.approx(0.74)
    assert len(used) == len(SHARES) * len(PAIRS)
    np.testing.assert_allclose(found.weights.matrix.sum(axis=0), 1)
    assert np.array_equal(found.weights.matrix[0], COMMON.matrix[0])


def test_a_structure_that_gains_in_one_patient_alone_keeps_the_common_column():
    found, _ = run(lambda share, c, i: 0.7 + (0.1 * share if c == 5 else (0.6 if i == 0 else -0.02) * share))
    assert not any(gate.used for c, gate in found.record.columns.gates.items() if c == "3")
    assert edges(found.weights, 3) == 0.5
    assert edges(found.weights, 5) == pytest.approx(0.8)


def test_every_pair_is_judged_with_what_others_chose():
    """Left-out pairs that want the opposite of the others lose, though they gain with their own choice."""
    found, used = run(lambda share, c, i: 0.7 + (0.1 if (i < 4) == (c == 3) else -0.1) * share)
    assert found.weights is COMMON
    assert not found.record.columns.gain
    assert all(w.classes == CLASSES for w in used)


def test_where_no_structure_differs_nothing_is_registered():
    found, used = run(lambda share, c, i: 0.7 - 0.1 * (share - 0.5) ** 2)
    assert not used
    assert found.weights is COMMON
    assert found.record.columns.factors["edges"] == {"3": 1.0, "5": 1.0}
    assert found.record.columns.share is None


def test_a_gain_that_the_gate_of_all_refused_is_no_reason():
    """All structures alike gain by another value, within the noise: no structure asks for a column of its own."""
    noise = [-0.05, 0.05] * 4
    curve = Curve("edges", {1.0: table(lambda c, i: 0.7), 4.0: table(lambda c, i: 0.7 + 0.001 + noise[i])}, 1.0)
    assert preferences([curve], PAIRS, CLASSES) == {"edges": {3: 1.0, 5: 1.0}}


def test_errors_are_those_of_the_jackknife_by_patient():
    rng = np.random.default_rng(1)
    people = ["a+b", "a+c", "b+c", "d+e", "a+e", "c+d", "b+e", "e+f"]
    pairs = [PairFiles(p.id, *[Path("x")] * 4, g) for p, g in zip(PAIRS, people, strict=True)]
    drawn = rng.normal(size=(8, 2))
    after = {
        p.id: score({c: drawn[i, k] for k, c in enumerate((3, 5)) if (i, c) not in ((2, 5), (7, 5))})
        for i, p in enumerate(pairs)
    }
    before = {p.id: score({3: 0.0, 5: 0.0}) for p in pairs}
    mean, error = gains_by_structure(before, after, pairs, (3, 5, 9))
    for k, kept in enumerate(([*range(8)], [0, 1, 3, 4, 5, 6])):
        gains = [drawn[i, k] for i in kept]
        assert mean[k] == pytest.approx(np.mean(gains))
        assert error[k] == pytest.approx(error_by_patient(gains, [pairs[i].patients for i in kept]))
    assert np.isnan(mean[2])
    assert np.isinf(error[2])


def test_shrinkage_is_that_of_the_formula():
    rng = np.random.default_rng(2)
    drawn = {3: 0.10 + rng.normal(0, 0.02, 8), 5: -0.12 + rng.normal(0, 0.2, 8)}
    curve = Curve("edges", {1.0: table(lambda c, i: 0.5), 4.0: table(lambda c, i: 0.5 + drawn[c][i])}, 1.0)
    found = shrunken_gains(curve, 4.0, PAIRS, (3, 5))
    mean = np.array([drawn[c].mean() for c in (3, 5)])
    error = np.array([drawn[c].std(ddof=1) / np.sqrt(8) for c in (3, 5)])
    prior = min(mean.mean(), 0.0)
    spread = np.mean((mean - prior) ** 2 - error**2)
    np.testing.assert_allclose(found, prior + spread / (spread + error**2) * (mean - prior))
    assert abs(found[0] - mean[0]) < abs(found[1] - mean[1])  # the noisier one is shrunk more


def test_a_structure_that_trusts_nothing_keeps_the_common_column():
    assert column_table(COMMON, {"wide": {3: 0.0, 5: 1.0}, "edges": {3: 0.0, 5: 1.0}}) is COMMON


def test_a_structure_may_ask_for_another_smoothness():
    dice = {0.1: {3: 0.70, 5: 0.70}, 0.2: {3: 0.75, 5: 0.60}, 0.05: {3: 0.60, 5: 0.75}}
    curve = Curve(SMOOTHNESS, {v: table(lambda c, i, of=of: of[c] + 0.001 * i) for v, of in dice.items()}, 0.1)
    trusted = preferences([curve], PAIRS, CLASSES)
    assert trusted == {SMOOTHNESS: {3: 2.0, 5: 0.5}}
    whole = column_table(COMMON, trusted)
    assert whole.stiffness.tolist() == [1.0, 2.0, 0.5]
    assert np.array_equal(whole.matrix, COMMON.matrix)
    np.testing.assert_allclose(part_of(COMMON, whole, 0.5, (3,)).stiffness, [1.0, np.sqrt(2), 1.0])
    assert part_of(COMMON, whole, 0.5, ()).stiffness is None


def test_stiffness_counts_from_that_of_all():
    common = WeightTable(COMMON.matrix, COMMON.members, CLASSES, 0.1, np.full(3, 0.25))
    whole = column_table(common, {SMOOTHNESS: {3: 2.0, 5: 1.0}})
    np.testing.assert_allclose(whole.stiffness, [0.25, 0.5, 0.25])
    np.testing.assert_allclose(part_of(common, whole, 1.0, (3, 5)).stiffness, [0.25, 0.5, 0.25])


def test_a_curve_of_some_pairs_is_read_on_these():
    few = PAIRS[:4]
    curve = Curve(SMOOTHNESS, {1.0: table(lambda c, i: 0.5, few), 2.0: table(lambda c, i: 0.6 * (c == 3), few)}, 1.0)
    assert preferences([curve], PAIRS, CLASSES) == {SMOOTHNESS: {3: 2.0, 5: 1.0}}
