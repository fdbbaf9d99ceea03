"""Shrinkage and gates, recomputed from their words."""

from __future__ import annotations

import math

import numpy as np
import pytest

from regweave.learning.gate import Gate, decide, error_by_patient
from regweave.types import WeightTable

MEMBERS, CLASSES = ("a", "b", "c"), (0, 2, 5)
START = WeightTable.constant(dict.fromkeys(MEMBERS, 1.0), 0.3, CLASSES)


def weights(matrix, pairwise=0.3) -> WeightTable:
    return WeightTable(np.array(matrix, dtype=float), MEMBERS, CLASSES, pairwise)


def test_a_gate_opens_for_a_gain_beyond_its_standard_error():
    gains = {0: [0.01, 0.03, 0.02], 2: [0.05, -0.05, 0.02], 5: [-0.02, -0.03, -0.01]}
    found = decide(gains)
    for c, values in gains.items():
        mean = sum(values) / 3
        error = math.sqrt(sum((v - mean) ** 2 for v in values) / 2 / 3)
        assert (found[c].gain, found[c].standard_error, found[c].n) == pytest.approx((mean, error, 3))
    assert [g.open for g in found.values()] == [True, False, False]
    assert Gate(0.011, 0.01, 2).open
    assert not Gate(0.01, 0.01, 2).open


@pytest.mark.parametrize("values", [[], [0.5], [0.0, 0.0], [float("nan"), 0.5], [float("nan")] * 3])
def test_a_gate_stays_shut_without_evidence(values):
    (gate,) = decide({1: values}).values()
    assert not gate.open
    assert gate.n == sum(not math.isnan(v) for v in values)


def test_nan_does_not_count():
    assert decide({1: [0.1, float("nan"), 0.3]})[1] == decide({1: [0.1, 0.3]})[1]


def test_balanced_keeps_directions_and_the_smoothness_of_the_start():
    learned = weights([[2.0, 0.0, 0.1], [1.0, 0.0, 0.1], [1.0, 0.0, 0.2]], pairwise=0.01)
    found = START.balance(learned)
    np.testing.assert_allclose(found.matrix[:, 0], [0.5, 0.25, 0.25])
    np.testing.assert_allclose(found.matrix[:, 1], 1 / 3)  # nothing was learned there
    np.testing.assert_allclose(found.matrix[:, 2], [0.25, 0.25, 0.5])
    assert (found.pairwise, found.members, found.classes) == (0.3, MEMBERS, CLASSES)


def test_a_signed_column_does_not_explode():
    learned = weights([[1.0, -1.0, 3.0], [-0.999, 0.2, -1.0], [0.0, 0.2, 0.0]])
    found = START.balance(learned).matrix
    np.testing.assert_allclose(np.abs(found).sum(axis=0), 1)
    np.testing.assert_allclose(found[:, 0], [1 / 1.999, -0.999 / 1.999, 0])
    np.testing.assert_allclose(found[:, 1], 1 / 3)  # its sum is below zero
    np.testing.assert_allclose(found[:, 2], [0.75, -0.25, 0])


def test_blend_goes_a_share_of_the_way_in_some_classes():
    learned = weights(np.eye(3), pairwise=9.0)
    found = START.blend(learned, 0.5, (2, 5))
    np.testing.assert_array_equal(found.matrix[:, 0], START.matrix[:, 0])
    np.testing.assert_allclose(found.matrix[:, 1], [1 / 6, 1 / 6 + 1 / 2, 1 / 6])
    np.testing.assert_allclose(found.matrix.sum(axis=0), 1)
    assert found.pairwise == 0.3
    np.testing.assert_array_equal(START.blend(learned, 1.0, ()).matrix, START.matrix)
    np.testing.assert_allclose(START.blend(learned, 1.0, CLASSES).matrix, np.eye(3))
    assert (START.matrix == 1 / 3).all()


def test_embedding_is_undone_by_taking_the_members():
    rows = WeightTable(np.array([[0.7, 0.1, 0.0], [0.3, 0.9, 0.0]]), ("a", "c"), CLASSES, 0.3)
    whole = START.embed(rows)
    np.testing.assert_array_equal(whole.matrix[1], START.matrix[1])
    np.testing.assert_allclose(whole.matrix.sum(axis=0), 1)
    np.testing.assert_allclose(whole.select(("a", "c")).matrix[:, :2], rows.matrix[:, :2])
    np.testing.assert_allclose(whole.matrix[:, 2], 1 / 3)


def test_error_by_patient_is_the_usual_one_where_pairs_share_nobody():
    values = np.random.default_rng(3).normal(0.02, 0.05, 12)
    usual = values.std(ddof=1) / np.sqrt(12)
    assert error_by_patient(values, [(f"p{i}",) for i in range(12)]) == pytest.approx(usual, rel=1e-12)


def test_error_by_patient_against_what_repeated_cohorts_say():
    """Patients with effects of their own, all against all: pairs taken for independent look too sure of themselves."""
    rng = np.random.default_rng(0)
    n, means, estimated, naive = 8, [], [], []
    couples = [(a, b) for a in range(n) for b in range(n) if a != b]
    for _ in range(400):
        effect = rng.normal(0, 0.02, n)
        values = [effect[a] + effect[b] + rng.normal(0, 0.005) for a, b in couples]
        means.append(np.mean(values))
        estimated.append(error_by_patient(values, [(str(a), str(b)) for a, b in couples]))
        naive.append(np.std(values, ddof=1) / np.sqrt(len(values)))
    true = np.std(means)
    assert np.mean(estimated) == pytest.approx(true, rel=0.15)
    assert np.mean(naive) < 0.4 * true


def test_error_by_patient_of_one_patient_or_given_an_atlas():
    assert error_by_patient([0.1, 0.2], [("a",), ("a",)]) == np.inf
    alone = error_by_patient([0.1, 0.2, 0.4], ["a", "b", "c"])
    assert error_by_patient([0.1, 0.2, 0.4], [("a", "atlas"), ("atlas", "b"), ("c", "atlas")]) == pytest.approx(alone)
