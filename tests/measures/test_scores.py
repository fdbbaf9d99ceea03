"""One score: which structures count, what their mean is."""

import math

import numpy as np
import pytest

from regweave.measures.scores import STATES, PairScore, dice, score_labels
from regweave.types import Geometry, LabelMap

FIXED = Geometry((8, 8, 8), np.eye(4))
MOVING = Geometry((8, 8, 8), np.diag([2.0, 1.0, 1.0, 1.0]))


def labels(geometry=FIXED, names=None, **where):
    data = np.zeros(geometry.shape, dtype=np.int16)
    for name, plane in where.items():
        data[:, :, plane] = int(name[1:])
    return LabelMap(data, geometry, names or {})


@pytest.fixture
def score():
    """Cord in all; lens lost by warping; node without a fixed contour; eye in the fixed image alone."""
    fixed = labels(l1=1, l2=3, l4=5, names={1: "cord", 4: "eye"})
    moving = labels(MOVING, l1=2, l2=3, l3=6, names={1: "myelon", 2: "lens", 3: "node"})
    start, warped = labels(l1=2, l2=3, l3=6), labels(l1=1, l3=6)
    return score_labels(fixed, moving, start, warped)


def test_each_structure_has_its_state_volumes_and_record(score):
    assert {s.name: s.state for s in score.structures} == {
        "cord": "scored", "lens": "vanished", "node": "no reference", "eye": "not in moving"
    }  # fmt: skip
    cord = score.structures[0]
    assert (cord.volume_fixed_ml, cord.volume_before_ml, cord.volume_after_ml) == (0.064, 0.128, 0.064)
    for s in score.of("no reference", "not in moving"):
        assert math.isnan(s.dice_before)
        assert math.isnan(s.dice_after)
    found = score.with_surfaces(labels(l1=1, l2=3, l4=5), labels(l1=1, l3=6))
    assert found.structures[0].hd95_mm == 0.0
    assert all(math.isnan(s.hd95_mm) for s in found.structures[1:])
    rows = score.rows()
    assert all(row["state"] in STATES for row in rows)
    assert PairScore.model_validate(rows).rows() == rows
    odd = {**rows[0], "state": "no reference"}
    with pytest.raises(ValueError, match="a structure with the state 'no reference' has no Dice"):
        PairScore.model_validate([odd])
    a, b = np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 4), np.int64)
    a[0], b[:2] = 1, 1
    a[3, 3, 3] = b[3, 3, 3] = 9
    assert dice(a, b) == {1: pytest.approx(2 * 16 / (16 + 32)), 9: 1.0}
    b[3, 3, 3] = 0
    found = dice(LabelMap(a, Geometry(a.shape, np.eye(4))), b, [9, 4])
    assert found[9] == 0.0
    assert np.isnan(found[4])
    with pytest.raises(ValueError, match=r"\(2, 2, 2\) and \(2, 2, 3\)"):
        dice(np.zeros((2, 2, 2), int), np.zeros((2, 2, 3), int))


def test_the_mean_is_over_the_same_structures_before_and_after(score):
    # Before: cord 0, lens 1. After: cord 1, and the lens that vanished counts 0.
    assert [s.name for s in score.counted] == ["cord", "lens"]
    assert score.means() == {"before": 0.5, "start": 0.5, "after": 0.5}
    without = PairScore(tuple(s for s in score.structures if s.counted))
    assert without.means() == score.means()
    found = score_labels(labels(l1=1), labels(l2=1), labels(l2=1), labels(l2=1))
    assert found.means() == {}
    assert math.isnan(found.mean())
    kept = score_labels(
        labels(l1=1, l2=3), labels(l1=2, l2=3), start=labels(l1=2, l2=3), warped=labels(l1=1, l2=4)
    )  # a lens in the wrong place: Dice 0 as well
    assert kept.mean() == PairScore(score.counted).mean()
    # A start that finds the structure is a gain of the start: it shows between before and start.
    fixed, moving = labels(l1=1), labels(l1=5)
    found = score_labels(fixed, moving, start=fixed, warped=fixed, loaded=moving)
    assert found.means() == {"before": 0.0, "start": 1.0, "after": 1.0}
