"""Weights of the refinement's members: used where left-out patients gain, and nowhere else."""

from pathlib import Path

import numpy as np
import pytest

from regweave.jobs.table import Fold, PairFiles, one_by_one
from regweave.measures.scores import PairScore, StructureScore
from regweave.training.refinement import FACTORS, MAP_FACTORS, mix_refinement
from regweave.types import WeightTable

START = WeightTable(
    np.array([[0.5, 0.5], [0.25, 0.25], [0.25, 0.25], [0, 0]]), ("a", "wide", "fine", "edges"), (0, 3), 0.1
)
REFINED = ("wide", "fine", "edges")
PAIRS = [PairFiles(f"p{i}", *[Path("x")] * 4, f"g{i}") for i in range(6)]
FOLDS = [Fold(tuple(p for p in PAIRS if p not in PAIRS[i : i + 2]), tuple(PAIRS[i : i + 2]), ()) for i in (0, 2, 4)]


def scores_of(dice):
    return {p.id: PairScore((StructureScore(3, "x", "scored", 0.0, d),)) for p, d in zip(PAIRS, dice, strict=True)}


def shares(weights: WeightTable) -> dict[str, float]:
    rows = [weights.members.index(m) for m in REFINED]
    column = weights.matrix[rows, 0]
    return dict(zip(REFINED, column / column.sum(), strict=True))


def run(dice_of, folds=FOLDS, members=REFINED):
    """Train with a Dice that is a function of the shares and the pair's number."""
    tried: list[WeightTable] = []

    def register(weights):
        tried.extend(weights)
        return [scores_of([dice_of(shares(w), i) for i in range(6)]) for w in weights]

    start = scores_of([dice_of(shares(START), i) for i in range(6)])
    return mix_refinement(START, start, dict.fromkeys(members, FACTORS), folds, register), tried


def test_a_member_that_waits_is_used_where_it_helps_everybody():
    found, tried = run(lambda s, i: 0.7 + 0.1 * s["edges"] - 0.001 * i)
    line = found.record.members[2]
    assert line.member == "edges"
    assert (line.before, line.used) == (0.0, max(FACTORS))
    assert shares(found.weights)["edges"] == pytest.approx(0.8)  # 8 of 1 + 1 + 8
    assert found.record.gain.mean == pytest.approx(0.08)
    assert found.scores["p0"].mean() == pytest.approx(0.78)
    assert [row["factor"] for row in line.curve] == list(FACTORS)
    for w in (found.weights, *tried):  # weights of the levels and the total of each class stay
        assert np.array_equal(w.matrix[0], START.matrix[0])
        assert np.allclose(w.matrix.sum(axis=0), 1)
        assert w.pairwise == START.pairwise
        assert w.classes == START.classes


def test_uphill_as_long_as_it_is_better_and_no_further():
    """A member that waits and does harm costs one value; one at its best two."""
    found, _ = run(lambda s, i: 0.7 - (s["edges"] - 0.6) ** 2)  # between 2 of 4 and 4 of 6
    assert [row["factor"] for row in found.record.members[2].curve] == list(FACTORS)
    assert found.record.members[2].used == 4.0
    found, tried = run(lambda s, i: 0.7 - s["edges"] - (s["fine"] - 0.5) ** 2)
    factors = [[row["factor"] for row in line.curve] for line in found.record.members]
    assert factors == [[0.5, 1, 2], [0.5, 1, 2], [0, 0.5]]
    assert len(tried) == 2 + 2 + 1


def test_gains_of_one_patient_or_couple_change_nothing():
    # Mean over all pairs rises, but only because of one: left out, it does not.
    found, _ = run(lambda s, i: 0.7 + (0.3 if i == 0 else -0.01) * s["edges"])
    assert found.weights is START
    assert found.record.gain is None
    assert [line.used == line.before for line in found.record.members] == [True] * 3
    curve = {row["factor"]: row["mean_dice"] for row in found.record.members[2].curve}
    assert max(curve, key=curve.get) == max(FACTORS)  # the best on all pairs, and still not used
    # Four pairs both ways of two couples: a gain of one couple alone is the luck of one couple.
    people = ["a+b", "a+b", "a+b", "c+d", "c+d", "c+d"]
    pairs = [PairFiles(p.id, *[Path("x")] * 4, group) for p, group in zip(PAIRS, people, strict=True)]
    found, _ = run(lambda s, i: 0.7 + (0.3 if i < 3 else 0.02) * s["edges"], one_by_one(pairs))
    line = found.record.members[2]
    assert line.gain > 2 * np.std([0.8 * 0.3] * 3 + [0.8 * 0.02] * 3, ddof=1) / np.sqrt(6)  # as if all were apart
    assert line.n == 6
    assert found.weights is START


def test_a_member_that_harms_is_dropped_but_never_the_last():
    found, _ = run(lambda s, i: 0.7 - 0.1 * s["fine"] + 0.0001 * i)
    assert shares(found.weights) == {"wide": 1.0, "fine": 0.0, "edges": 0.0}
    # Any weight makes it worse: the shares of one member alone are 1 whatever its factor.
    found, tried = run(lambda s, i: 0.7 - 0.1 * s["wide"] - 0.1 * s["fine"])
    assert all(w.matrix[1:].sum() > 0 for w in (*tried, found.weights))


def test_without_folds_or_with_one_member_nothing_is_tried():
    for folds, members in (([], REFINED), (FOLDS, ("wide",))):
        found, tried = run(lambda s, i: 0.7, folds, members)
        assert found.weights is START
        assert not tried
        assert not found.record.members
    start = WeightTable(np.array([[1.0], [0], [0]]), ("a", "wide", "fine"), (0,), 0.1)  # all wait
    found = mix_refinement(start, {}, {"wide": FACTORS, "fine": FACTORS}, FOLDS, lambda w: pytest.fail("tried"))
    assert found.weights is start


def test_members_have_their_own_factors_or_none():
    tried = []

    def register(weights):
        tried.extend(weights)
        return [scores_of([0.7 + 0.1 * shares(w)["edges"]] * 6) for w in weights]

    members = {"wide": FACTORS, "fine": FACTORS, "edges": MAP_FACTORS}
    found = mix_refinement(START, scores_of([0.7] * 6), members, FOLDS, register)
    assert found.record.members[2].used == max(MAP_FACTORS) > max(FACTORS)
    assert [curve.name for curve in found.curves] == list(REFINED)
    assert found.curves[2].common == max(MAP_FACTORS)
    assert set(found.curves[2].scores) == {row["factor"] for row in found.record.members[2].curve}
    # Members without factors, as those of the levels, only give a part of their weight to another one.
    tried.clear()
    found = mix_refinement(START, scores_of([0.7] * 6), {"wide": (), "fine": (), "edges": (0.0, 2.0)}, FOLDS, register)
    assert [line.member for line in found.record.members] == ["edges"]
    assert len(tried) == 1
    assert shares(found.weights) == {"wide": 0.25, "fine": 0.25, "edges": 0.5}
