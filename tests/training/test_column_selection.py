"""What left-out patients decide, on scores made up for the purpose."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from regweave.datasets.folds import Fold
from regweave.datasets.manifest import PairFiles
from regweave.learning.columns import Columns
from regweave.learning.gate import Gate
from regweave.learning.lssvm import Hyper
from regweave.training.column_selection import BALANCES, Choice, gain_interval, gains, rebalance, try_columns
from regweave.types import WeightTable

W0 = WeightTable.constant(dict.fromkeys(("a", "b"), 1.0), 0.4, (0, 1, 2))
LEARNED = WeightTable(np.array([[0.9, 0.9, 0.9], [0.1, 0.1, 0.1]]), ("a", "b"), (0, 1, 2), 0.4)
PAIRS = [PairFiles(f"p{n}", *[Path("x")] * 4, f"g{n}") for n in range(4)]
FOLDS = [Fold(tuple(PAIRS[2:]), tuple(PAIRS[:2]), ()), Fold(tuple(PAIRS[:2]), tuple(PAIRS[2:]), ())]
CURVE = [{"predicted_loss": 0.5}, {"predicted_loss": 0.2}]
COLUMNS = [Columns(LEARNED, {"joint": CURVE})] * 2
BOTH = {p.id: frozenset({1, 2}) for p in PAIRS}
HYPER = Hyper()


def score(one: float, two: float) -> dict:
    return {"labels": {"1": {"dice_after": one}, "2": {"dice_after": two}}}


UNIFORM = {p.id: score(0.5, 0.5) for p in PAIRS}


class Register:
    """Structure 1 gains with its column, structure 2 loses; less smoothness gains a little, but 0.1 most."""

    def __init__(self) -> None:
        self.seen: list[WeightTable] = []

    def __call__(self, models):
        out = []
        for of_folds in models:
            self.seen += of_folds
            w = of_folds[0]
            smooth = {1.0: 0.0, 0.3: 0.01, 0.1: 0.02, 0.03: -0.1}[round(w.pairwise / 0.4, 6)]
            one, two = (w.matrix[0, k] - 0.5 for k in (1, 2))
            noise = (0.001 * n for n in range(4))
            out.append(
                {p.id: score(0.5 + one / 4 + smooth + e, 0.5 - two / 4 + e) for p, e in zip(PAIRS, noise, strict=True)}
            )
        return out


def test_gates_by_structure_and_what_is_tried():
    register = Register()
    (half, half_line), (whole, whole_line) = try_columns(HYPER, W0, COLUMNS, UNIFORM, BOTH, FOLDS, register)
    assert half.classes == whole.classes == (0, 1)  # the background gains with the mean
    expected = [[0.7] * 3, [0.9] * 3, [0.7, 0.7, 0.5], [0.9, 0.9, 0.5]]
    np.testing.assert_allclose([w.matrix[0] for w in register.seen[::2]], expected)
    assert half.gates[1].gain == pytest.approx(0.2 / 4 + 0.0015)
    assert not half.gates[2].open
    assert whole.value == pytest.approx(0.4 / 4 / 2 + 0.0015)
    assert whole.gain["n"] == 4
    assert whole_line["dice_gated"] - whole_line["dice_uniform"] == pytest.approx(whole.value)
    assert half_line["dice_learned"] == pytest.approx(0.5015)
    assert (half_line["surrogate_uniform"], half_line["surrogate_learned"]) == (0.5, 0.2)
    assert whole_line["gated_classes"] == [0, 1]


def test_nothing_is_registered_again_where_no_gate_opens():
    register = Register()
    worse = WeightTable(LEARNED.matrix[::-1].copy(), LEARNED.members, LEARNED.classes, 0.4)
    better_two = {name: score(0.6, 0.9) for name in UNIFORM}
    found = try_columns(HYPER, W0, [Columns(worse)] * 2, better_two, BOTH, FOLDS, register)
    assert len(register.seen) == 4
    for choice, line in found:
        assert (choice.classes, choice.gain, choice.value) == ((), None, 0.0)
        assert line["dice_gated"] == line["dice_uniform"] == pytest.approx(0.75)
        assert line["surrogate_learned"] is None


def test_a_structure_counts_where_both_maps_show_it():
    shown = {**BOTH, "p0": frozenset({1}), "p3": frozenset()}
    found = gains(UNIFORM, {p.id: score(0.6, 0.4) for p in PAIRS}, shown, (0, 1, 2))
    assert {c: len(values) for c, values in found.items()} == {0: 4, 1: 3, 2: 2}
    assert found[1] == pytest.approx([0.1] * 3)
    assert found[2] == pytest.approx([-0.1] * 2)
    assert found[0] == pytest.approx([0.0] * 4)


def test_less_smoothness_with_the_same_columns():
    choice = Choice(HYPER, 1.0, (1,), {1: Gate(0.1, 0.01, 4)}, {"mean": 0.05, "low": 0.0, "high": 0.1, "n": 4})
    found = rebalance(choice, W0, COLUMNS, UNIFORM, FOLDS, Register(), least=0.0)
    assert [c.balance for c, _ in found] == list(BALANCES)
    best = max((c for c, _ in found), key=lambda c: c.value)
    assert best.balance == 0.1
    made = best.apply(W0, LEARNED)
    assert made.pairwise == pytest.approx(0.04)
    np.testing.assert_allclose(made.matrix[0], [0.5, 0.9, 0.5])
    for c, line in found:
        assert (c.classes, c.share) == ((1,), 1.0)
        assert (line["balance"], line["dice_learned"]) == (c.balance, None)


def test_no_less_smoothness_than_the_uniform_bank_was_tried_with():
    """A gain beyond the end of the curve could be that of the smoothness alone."""
    choice = Choice(HYPER, 1.0, (1,), {}, {"mean": 0.05, "low": 0.0, "high": 0.1, "n": 4})

    def tried(least: float) -> list[float]:
        return [c.balance for c, _ in rebalance(choice, W0, COLUMNS, UNIFORM, FOLDS, Register(), least=least)]

    assert tried(0.4) == []
    assert tried(0.05) == [0.3]
    assert tried(0.4 * 10**-1.5) == [0.3, 0.1, 0.03]  # from the middle of the curve to its end
    closed = Choice(HYPER, 1.0, (), {})
    assert rebalance(closed, W0, COLUMNS, UNIFORM, FOLDS, Register(), least=0.0) == []


def test_interval_goes_by_patient():
    scores = {p.id: score(0.5 + 0.1 * n, 0.5) for n, p in enumerate(PAIRS)}
    found = gain_interval(UNIFORM, scores, FOLDS)
    assert found["mean"] == pytest.approx(0.075)
    assert 0 <= found["low"] < 0.075 < found["high"] <= 0.15
