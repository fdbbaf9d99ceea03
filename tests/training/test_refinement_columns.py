"""Columns of the refinement: a structure trusts what left-out patients gain by, and noise is shrunk away."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from regweave.jobs.table import PairFiles, one_by_one
from regweave.measures.scores import PairScore, StructureScore
from regweave.training.refinement import (
    SHARES,
    SMOOTHNESS,
    Curve,
    RefinementWeights,
    by_curves,
    column_table,
    part_of,
    preferences,
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


def test_a_structure_that_gains_in_one_patient_or_not_in_others_keeps_the_common_column():
    found, _ = run(lambda share, c, i: 0.7 + (0.1 * share if c == 5 else (0.6 if i == 0 else -0.02) * share))
    assert not any(gate.used for c, gate in found.record.columns.gates.items() if c == "3")
    assert edges(found.weights, 3) == 0.5
    assert edges(found.weights, 5) == pytest.approx(0.8)
    # Left-out pairs that want the opposite of the others lose, though they gain with their own choice.
    found, used = run(lambda share, c, i: 0.7 + (0.1 if (i < 4) == (c == 3) else -0.1) * share)
    assert found.weights is COMMON
    assert not found.record.columns.gain
    assert all(w.classes == CLASSES for w in used)


def test_without_a_difference_beyond_the_noise_no_structure_has_a_column_of_its_own():
    found, used = run(lambda share, c, i: 0.7 - 0.1 * (share - 0.5) ** 2)
    assert not used  # nothing is registered
    assert found.weights is COMMON
    assert found.record.columns.factors["edges"] == {"3": 1.0, "5": 1.0}
    assert found.record.columns.share is None
    noise = [-0.05, 0.05] * 4  # all structures alike gain within it
    curve = Curve("edges", {1.0: table(lambda c, i: 0.7), 4.0: table(lambda c, i: 0.7 + 0.001 + noise[i])}, 1.0)
    assert preferences([curve], PAIRS, CLASSES) == {"edges": {3: 1.0, 5: 1.0}}
    # Nor has one without a weight for any member.
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
    # It counts from that of all.
    common = WeightTable(COMMON.matrix, COMMON.members, CLASSES, 0.1, np.full(3, 0.25))
    whole = column_table(common, {SMOOTHNESS: {3: 2.0, 5: 1.0}})
    np.testing.assert_allclose(whole.stiffness, [0.25, 0.5, 0.25])
    np.testing.assert_allclose(part_of(common, whole, 1.0, (3, 5)).stiffness, [0.25, 0.5, 0.25])
    few = PAIRS[:4]  # a curve of some pairs is read on these
    curve = Curve(SMOOTHNESS, {1.0: table(lambda c, i: 0.5, few), 2.0: table(lambda c, i: 0.6 * (c == 3), few)}, 1.0)
    assert preferences([curve], PAIRS, CLASSES) == {SMOOTHNESS: {3: 2.0, 5: 1.0}}
