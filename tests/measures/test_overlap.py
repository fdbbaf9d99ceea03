from __future__ import annotations

import numpy as np
import pytest

from regweave.measures import dice
from regweave.types import Geometry, LabelMap


def test_dice_counts_voxels():
    a = np.zeros((4, 4, 4), np.uint8)
    b = np.zeros((4, 4, 4), np.int64)
    a[0], b[:2] = 1, 1
    a[3, 3, 3] = b[3, 3, 3] = 9
    assert dice(a, b) == {1: pytest.approx(2 * 16 / (16 + 32)), 9: 1.0}


def test_missing_structures():
    a, b = np.zeros((2, 2, 2), int), np.zeros((2, 2, 2), int)
    a[0] = 3
    scores = dice(a, b, [3, 4])
    assert scores[3] == 0.0
    assert np.isnan(scores[4])


def test_label_maps_are_welcome():
    grid = Geometry((2, 2, 2), np.eye(4))
    labels = LabelMap(np.ones((2, 2, 2), np.uint8), grid)
    assert dice(labels, labels, [1]) == {1: 1.0}


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"\(2, 2, 2\) and \(2, 2, 3\)"):
        dice(np.zeros((2, 2, 2), int), np.zeros((2, 2, 3), int))
