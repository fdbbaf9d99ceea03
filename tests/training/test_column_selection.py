"""What left-out patients decide, on scores made up for the purpose."""

import math
from pathlib import Path

import numpy as np
import pytest

from regweave.jobs.table import Fold, PairFiles
from regweave.learning.columns import FittedColumns
from regweave.learning.lssvm import LssvmOptions
from regweave.measures.scores import PairScore, StructureScore
from regweave.model.record import Gain, GateRecord
from regweave.training.columns import BALANCES, ColumnSelection, Trial, gains, rebalance, strengthen, try_columns
from regweave.training.state import choose, gain_interval, judge_pairs
from regweave.types import WeightTable

W0 = WeightTable.constant(dict.fromkeys(("a", "b"), 1.0), 0.4, (0, 1, 2))
LEARNED = WeightTable(np.array([[0.9, 0.9, 0.9], [0.1, 0.1, 0.1]]), ("a", "b"), (0, 1, 2), 0.4)
PAIRS = [PairFiles(f"p{n}", *[Path("x")] * 4, f"g{n}") for n in range(4)]
FOLDS = [Fold(tuple(PAIRS[2:]), tuple(PAIRS[:2]), ()), Fold(tuple(PAIRS[:2]), tuple(PAIRS[2:]), ())]
CURVE = [{"predicted_loss": 0.5}, {"predicted_loss": 0.2}]
COLUMNS = [FittedColumns(LEARNED, {"joint": CURVE})] * 2
BOTH = {p.id: frozenset({1, 2}) for p in PAIRS}
OPTIONS = LssvmOptions()


def score(one: float, two: float) -> PairScore:
    return PairScore(tuple(StructureScore(c, str(c), "scored", 0.0, d) for c, d in ((1, one), (2, two))))


UNIFORM = {p.id: score(0.5, 0.5) for p in PAIRS}


def trial(register) -> Trial:
    return Trial(W0, COLUMNS, UNIFORM, FOLDS, register)


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
    attempts = try_columns(OPTIONS, trial(register), BOTH)
    (half, whole), (half_line, whole_line) = zip(*attempts, strict=True)
    assert half.classes == whole.classes == (0, 1)  # the background gains with the mean
    expected = [[0.7] * 3, [0.9] * 3, [0.7, 0.7, 0.5], [0.9, 0.9, 0.5]]
    np.testing.assert_allclose([w.matrix[0] for w in register.seen[::2]], expected)
    assert half.gates[1].gain == pytest.approx(0.2 / 4 + 0.0015)
    assert not half.gates[2].used
    assert whole.value == pytest.approx(0.4 / 4 / 2 + 0.0015)
    assert whole.gain.n == 4
    assert whole_line.dice_gated - whole_line.dice_uniform == pytest.approx(whole.value)
    assert half_line.dice_learned == pytest.approx(0.5015)
    assert (half_line.surrogate_uniform, half_line.surrogate_learned) == (0.5, 0.2)
    assert whole_line.gated_classes == (0, 1)


def test_nothing_is_registered_again_where_no_gate_opens():
    register = Register()
    worse = WeightTable(LEARNED.matrix[::-1].copy(), LEARNED.members, LEARNED.classes, 0.4)
    better_two = {name: score(0.6, 0.9) for name in UNIFORM}
    found = try_columns(OPTIONS, Trial(W0, [FittedColumns(worse)] * 2, better_two, FOLDS, register), BOTH)
    assert len(register.seen) == 4
    for selection, line in found:
        assert (selection.classes, selection.gain, selection.value) == ((), None, 0.0)
        assert line.dice_gated == line.dice_uniform == pytest.approx(0.75)
        assert line.surrogate_learned is None
    # A structure counts where both maps show it.
    shown = {**BOTH, "p0": frozenset({1}), "p3": frozenset()}
    found = gains(UNIFORM, {p.id: score(0.6, 0.4) for p in PAIRS}, shown, (0, 1, 2))
    assert {c: len(values) for c, values in found.items()} == {0: 4, 1: 3, 2: 2}
    assert found[1] == pytest.approx([0.1] * 3)
    assert found[2] == pytest.approx([-0.1] * 2)
    assert found[0] == pytest.approx([0.0] * 4)


def test_less_smoothness_with_the_same_columns():
    gates = {1: GateRecord(gain=0.1, standard_error=0.01, n=4, used=True)}
    chosen = ColumnSelection(OPTIONS, 1.0, (1,), gates, Gain(mean=0.05, low=0.0, high=0.1, n=4))
    found = rebalance(chosen, trial(Register()), least=0.0)
    assert [c.balance for c, _ in found] == list(BALANCES)
    best = max((c for c, _ in found), key=lambda c: c.value)
    assert best.balance == 0.1
    made = best.apply(W0, LEARNED)
    assert made.pairwise == pytest.approx(0.04)
    np.testing.assert_allclose(made.matrix[0], [0.5, 0.9, 0.5])
    for c, line in found:
        assert (c.classes, c.share) == ((1,), 1.0)
        assert (line.balance, line.dice_learned) == (c.balance, None)
    # A gain beyond the end of the curve that the uniform bank was tried with could be that of the smoothness alone.
    for least, tried in ((0.4, []), (0.05, [0.3]), (0.4 * 10**-1.5, [0.3, 0.1, 0.03])):
        assert [c.balance for c, _ in rebalance(chosen, trial(Register()), least=least)] == tried
    assert rebalance(ColumnSelection(OPTIONS, 1.0, (), {}), trial(Register()), least=0.0) == []


def test_stronger_columns_one_class_after_the_other():
    """Class 1 gains by strength and keeps it while class 2, which does not, is tried."""
    seen = []

    def register(models):
        factors = [of_folds[0].matrix.sum(axis=0) for of_folds in models]
        seen.extend(factors)
        dice = [(0.5 + 0.02 * (f[1] > 1) - 0.02 * (f[1] < 1), 0.5 - 0.01 * (f[2] != 1)) for f in factors]
        return [{p.id: score(*d) for p in PAIRS} for d in dice]

    found = strengthen(ColumnSelection(OPTIONS, 1.0, (), {}), trial(register))
    np.testing.assert_allclose(seen, [[0.3, 1, 1], [3, 1, 1], [1, 0.3, 1], [1, 3, 1], [1, 3, 0.3], [1, 3, 3]])
    assert [selection.strengths for selection, _ in found if selection.gain is not None] == [{1: 3.0}]
    assert found[3][0].value == pytest.approx(0.01)
    assert all(line.surrogate_uniform is None for _, line in found)


def test_a_class_that_all_pairs_together_did_not_teach_is_dropped():
    chosen = ColumnSelection(OPTIONS, 1.0, (1, 2), {}, Gain(mean=0.05, low=0.0, high=0.1, n=4), 0.3)
    partly = WeightTable(np.array([[0.5, 0.9, 0.5], [0.5, 0.1, 0.5]]), W0.members, W0.classes, W0.pairwise)
    assert chosen.where_learned(W0, partly).classes == (1,)
    assert chosen.where_learned(W0, W0) == chosen.unused()
    assert (chosen.unused().gain, chosen.unused().balance) == (None, 1.0)
    # The interval of a gain goes by patient.
    found = gain_interval(UNIFORM, {p.id: score(0.5 + 0.1 * n, 0.5) for n, p in enumerate(PAIRS)}, FOLDS)
    assert found.mean == pytest.approx(0.075)
    assert 0 <= found.low < 0.075 < found.high <= 0.15


# Gates and choices, recomputed from their words.
def test_gates_open_for_a_gain_beyond_its_standard_error_alone():
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
    nan = float("nan")
    for values in ([], [0.5], [0.0, 0.0], [nan, 0.5], [nan] * 3):
        gate = judge_pairs(values)
        assert not gate.used, values
        assert gate.n == sum(not math.isnan(v) for v in values)
    assert judge_pairs([0.1, nan, 0.3]) == judge_pairs([0.1, 0.3])


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
