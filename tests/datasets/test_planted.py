"""The planted phantoms do what they say: each organ is right for one metric by construction."""

import numpy as np
import pytest
from planted import PLANTED, PLANTED_RIGHT, planted_pair
from scipy import ndimage


@pytest.fixture(scope="module")
def pair():
    return planted_pair(3)


def values(volume, labels, organ):
    return volume.data[ndimage.binary_erosion(labels.data == organ)]


def test_organs_are_there_and_move(pair):
    assert pair.fixed_labels.values() == pair.moving_labels.values() == list(PLANTED)
    assert set(PLANTED_RIGHT) == set(PLANTED.values())
    for organ in PLANTED:
        a, b = pair.fixed_labels.data == organ, pair.moving_labels.data == organ
        assert 0.4 < 2 * (a & b).sum() / (a.sum() + b.sum()) < 0.95


def test_contrast_of_each_organ(pair):
    background = np.median(pair.moving.data[pair.moving_labels.data == 0])
    moving = {o: values(pair.moving, pair.moving_labels, o) for o in PLANTED}
    fixed = {o: values(pair.fixed, pair.fixed_labels, o) for o in PLANTED}
    assert np.median(moving[2]) > background + 0.05 > background - 0.05 > np.median(fixed[2])  # inverted
    far = [np.mean(np.abs(v - 0.75) > 0.15) for v in (moving[1], fixed[1])]
    assert min(far) > 0.3  # random greys
    assert np.median(fixed[3]) > np.median(moving[3]) + 0.05  # offset
    assert fixed[3].std() < 0.2


def test_seed_decides(pair):
    again, other = planted_pair(3), planted_pair(4)
    assert np.array_equal(again.fixed.data, pair.fixed.data)
    assert not np.array_equal(other.fixed.data, pair.fixed.data)
