"""Gates and choices, recomputed from their words."""

from __future__ import annotations

import math

import pytest

from regweave.measures.scores import PairScore, StructureScore
from regweave.training.candidates import Gate, choose


def test_a_gate_opens_for_a_gain_beyond_its_standard_error():
    gains = {0: [0.01, 0.03, 0.02], 2: [0.05, -0.05, 0.02], 5: [-0.02, -0.03, -0.01]}
    found = {c: Gate.of_pairs(values) for c, values in gains.items()}
    for c, values in gains.items():
        mean = sum(values) / 3
        error = math.sqrt(sum((v - mean) ** 2 for v in values) / 2 / 3)
        assert (found[c].gain, found[c].standard_error, found[c].n) == pytest.approx((mean, error, 3))
    assert [g.open for g in found.values()] == [True, False, False]
    assert Gate(0.011, 0.01, 2).open
    assert not Gate(0.01, 0.01, 2).open


@pytest.mark.parametrize("values", [[], [0.5], [0.0, 0.0], [float("nan"), 0.5], [float("nan")] * 3])
def test_a_gate_stays_shut_without_evidence(values):
    gate = Gate.of_pairs(values)
    assert not gate.open
    assert gate.n == sum(not math.isnan(v) for v in values)


def test_nan_does_not_count():
    assert Gate.of_pairs([0.1, float("nan"), 0.3]) == Gate.of_pairs([0.1, 0.3])


def scores_of(*dice):
    return {f"p{n}": PairScore((StructureScore(3, "x", "scored", 0.0, d),)) for n, d in enumerate(dice)}


def test_the_best_is_taken_if_its_gate_is_open():
    tried = {2: scores_of(0.5, 0.6), 4: scores_of(0.7, 0.6), 8: scores_of(0.6, 0.7)}
    judged = []

    def judge(candidate, gain=0.1):
        judged.append(candidate)
        return Gate(gain, 0.05, 2)

    assert choose(tried, judge, 2) == (4, Gate(0.1, 0.05, 2))  # of equals the first
    assert choose(tried, judge, 8)[0] == 8  # or the current one
    assert choose(tried, lambda _: Gate(0.1, 0.1, 2), 2)[0] == 2
    assert choose(tried, lambda _: Gate(0.1, 0.1, 2), 16)[0] == 16
    assert judged == [4, 8]
