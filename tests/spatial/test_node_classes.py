"""Class rules on shares small enough to check by eye."""

import numpy as np
import pytest

from regweave.spatial.control_grid import ControlGrid
from regweave.spatial.node_classes import RULES, numbers_of, one_hot
from regweave.types import Geometry

SHARES = np.array(
    [
        [1.0, 0.0, 0.0],  # background alone
        [0.5, 0.3, 0.2],  # background has the most, two structures
        [0.2, 0.3, 0.5],
        [0.94, 0.02, 0.04],  # 6 % foreground
        [0.96, 0.03, 0.01],  # 4 % foreground
        [0.4, 0.4, 0.2],  # a tie goes to the first
        [0.0, 0.5, 0.5],
    ],
    dtype=np.float32,
)
WINNERS = {"count": [0, 0, 2, 0, 0, 0, 1], "foreground": [0, 1, 2, 2, 0, 1, 1]}


def test_labels_are_counted_as_their_masks_are_pooled():
    rng = np.random.default_rng(0)
    classes = (0, 5, 2, 40)
    labels = rng.choice([0, 2, 5, 9, 40], size=(17, 12, 15))
    numbers = numbers_of(labels, classes)
    np.testing.assert_array_equal(np.eye(4, dtype=np.float32)[numbers], np.moveaxis(one_hot(labels, classes), 0, -1))
    for support in (2, 5, 9):
        grid = ControlGrid.cover(Geometry(labels.shape, np.diag([2.0, 2.0, 3.0, 1.0])), 9.0, support)
        np.testing.assert_array_equal(grid.shares(numbers, 4), grid.pool(one_hot(labels, classes)).T)


@pytest.mark.parametrize("rule", sorted(WINNERS))
def test_hard_rules(rule):
    np.testing.assert_array_equal(RULES[rule](SHARES), np.eye(3, dtype=np.float32)[WINNERS[rule]])


def test_soft_rule_lets_each_class_vote():
    np.testing.assert_allclose(RULES["share"](SHARES), SHARES, atol=1e-6)
    np.testing.assert_allclose(RULES["share"](3 * SHARES), SHARES, atol=1e-6)
    assert set(RULES) == {*WINNERS, "share"}
    labels = np.array([[[0, 3, 7, 9]]], dtype=np.uint16)
    masks = one_hot(labels, (0, 3, 9))
    assert masks.dtype == np.float32
    assert masks[:, 0, 0].tolist() == [[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_rule_gives_shares_per_node_and_per_label(rule):
    per_label = np.stack([SHARES, SHARES[::-1]], axis=1)
    before = per_label.copy()
    out = RULES[rule](per_label)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out.sum(axis=-1), 1.0, atol=1e-6)
    np.testing.assert_array_equal(out[:, 0], RULES[rule](SHARES))
    np.testing.assert_array_equal(out[:, 1], RULES[rule](SHARES[::-1]))
    np.testing.assert_array_equal(per_label, before)
