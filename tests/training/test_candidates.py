"""Gates and choices, recomputed from their words."""

import math

import pytest

from regweave.measures.scores import PairScore, StructureScore
from regweave.model.record import GateRecord
from regweave.training.candidates import choose, judge_pairs


def test_a_gate_opens_for_a_gain_beyond_its_standard_error():
    gains = {0: [0.01, 0.03, 0.02], 2: [0.05, -0.05, 0.02], 5: [-0.02, -0.03, -0.01]}
    found = {c: judge_pairs(values) for c, values in gains.items()}
    for c, values in gains.items():
        mean = sum(values) / 3
        error = math.sqrt(sum((v - mean) ** 2 for v in values) / 2 / 3)
        assert (found[c].gain, found[c].standard_error, found[c].n) == pytest.approx((mean, error, 3))
    assert [g.used for g in found.values()] == [True, False, False]
    even = [0.01, 0.03]  # mean 0.02, standard error 0.01
    assert judge_pairs(even, 1.99).used
    assert not judge_pairs(even, 2.01).used


@pytest.mark.parametrize("values", [[], [0.5], [0.0, 0.0], [float("nan"), 0.5], [float("nan")] * 3])
def test_a_gate_stays_shut_without_evidence(values):
    gate = judge_pairs(values)
    assert not gate.used
    assert gate.n == sum(not math.isnan(v) for v in values)


def test_nan_does_not_count():
    assert judge_pairs([0.1, float("nan"), 0.3]) == judge_pairs([0.1, 0.3])


def scores_of(*dice):
    return {f"p{n}": PairScore((StructureScore(3, "x", "scored", 0.0, d),)) for n, d in enumerate(dice)}


def test_the_best_is_taken_if_its_gate_is_open():
    tried = {2: scores_of(0.5, 0.6), 4: scores_of(0.7, 0.6), 8: scores_of(0.6, 0.7)}
    judged = []

    def judge(candidate, gain=0.1):
        judged.append(candidate)
        return GateRecord(gain=gain, used=gain > 0.05)

    assert choose(tried, judge, 2) == (4, GateRecord(gain=0.1, used=True))  # of equals the first
    assert choose(tried, judge, 8)[0] == 8  # or the current one
    assert choose(tried, lambda _: GateRecord(), 2)[0] == 2
    assert choose(tried, lambda _: GateRecord(), 16)[0] == 16
    assert judged == [4, 8]
