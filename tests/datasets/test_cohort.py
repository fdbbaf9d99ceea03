"""The phantom patients are what they say: individual, moving, and each organ changes its look in its own way."""

import numpy as np
import pytest
from scipy import ndimage

from cohort import COHORT, cohort_pair


@pytest.fixture(scope="module")
def pair():
    return cohort_pair(3)


def inner(volume, labels, organ):
    return volume.data[ndimage.binary_erosion(labels.data == organ)]


def test_organs_are_whole_and_move(pair):
    assert pair.fixed_labels.values() == pair.moving_labels.values() == list(COHORT)
    assert pair.fixed_labels.name(1) == "brainstem"
    for organ in COHORT:
        fixed, moving = pair.fixed_labels.data == organ, pair.moving_labels.data == organ
        assert min(fixed.sum(), moving.sum()) > 300
        assert 0.7 < fixed.sum() / moving.sum() < 1.4
        assert 0.3 < 2 * (fixed & moving).sum() / (fixed.sum() + moving.sum()) < 0.95
        sizes = np.bincount(ndimage.label(moving)[0].ravel())[1:]
        assert sizes.max() > 0.9 * sizes.sum()


def test_each_change_is_there(pair):
    fixed = {v: inner(pair.fixed, pair.fixed_labels, v) for v in COHORT}
    moving = {v: inner(pair.moving, pair.moving_labels, v) for v in COHORT}
    changes = {organ.change: value for value, organ in COHORT.items()}
    body = np.median(
        pair.moving.data[pair.moving_labels.data == 0][pair.moving.data[pair.moving_labels.data == 0] > 0.2]
    )
    agent = changes["agent"]
    assert np.median(moving[agent]) > body + 0.05 > body - 0.05 > np.median(fixed[agent])
    for scan in (fixed, moving):
        metal = scan[changes["metal"]]
        assert np.mean((metal < 0.1) | (metal > 0.95)) > 0.3
    coil = changes["coil"]
    assert np.median(fixed[coil]) > np.median(moving[coil]) + 0.03
    assert {organ.right for organ in COHORT.values()} == {"sad", "mi", "ncc"}


def test_the_seed_decides_and_patients_differ(pair):
    again, other = cohort_pair(3), cohort_pair(4)
    np.testing.assert_array_equal(again.fixed.data, pair.fixed.data)
    np.testing.assert_array_equal(again.moving_labels.data, pair.moving_labels.data)
    assert np.mean(other.moving_labels.data != pair.moving_labels.data) > 0.01
