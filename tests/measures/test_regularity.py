from __future__ import annotations

import numpy as np
import pytest

from regweave.measures import folding_fraction, regularity, sdlogj, sdlogj_l2r
from regweave.types import Field, Geometry


@pytest.fixture
def jacobian():
    return np.random.default_rng(2).uniform(-0.2, 2.0, (9, 8, 7)).astype(np.float32)


def test_folds_are_counted_in_the_mask(jacobian):
    mask = np.zeros(jacobian.shape, bool)
    mask[2:5] = True
    assert folding_fraction(jacobian) == pytest.approx((jacobian <= 0).mean())
    assert folding_fraction(jacobian, mask) == pytest.approx((jacobian[2:5] <= 0).mean())
    assert np.isnan(folding_fraction(jacobian, np.zeros_like(mask)))


def test_sdlogj_is_the_deviation_of_the_logarithm(jacobian):
    positive = np.abs(jacobian) + 0.1
    assert sdlogj(positive) == pytest.approx(np.log(positive.astype(float)).std())


def test_learn2reg_value_adds_three_and_drops_the_rim(jacobian):
    inner = jacobian[2:-2, 2:-2, 2:-2].astype(float)
    assert sdlogj_l2r(jacobian) == pytest.approx(np.log(np.clip(inner + 3, 1e-9, 1e9)).std(), rel=1e-5)
    assert np.isnan(sdlogj_l2r(jacobian[:4]))


def test_summary_of_a_uniform_expansion():
    grid = Geometry((8, 8, 8), np.diag([2.0, 1.0, 3.0, 1.0]))
    index = np.stack(np.meshgrid(*[np.arange(8)] * 3, indexing="ij"))
    data = (0.1 * index * np.array([2.0, 1.0, 3.0])[:, None, None, None]).astype(np.float32)
    summary = regularity(Field(data, grid))
    assert summary["min_jacobian"] == pytest.approx(1.1**3, rel=1e-4)
    assert summary["max_jacobian"] == pytest.approx(1.1**3, rel=1e-4)
    assert summary["folding_fraction"] == 0
    assert summary["extreme_fraction"] == 0
    assert summary["sdlogj"] == pytest.approx(0, abs=1e-5)


def test_extreme_voxels_grow_or_shrink_more_than_fivefold():
    # Along x the displacement grows by 5.2 mm a voxel in one half and is still in the other.
    u = np.zeros((3, 8, 4, 4), dtype=np.float32)
    u[0] = (5.2 * np.maximum(np.arange(8) - 4.0, 0.0))[:, None, None]
    found = regularity(Field(u, Geometry((8, 4, 4), np.eye(4))))
    assert found["max_jacobian"] > 5
    assert 0.2 < found["extreme_fraction"] < 0.6
    assert found["folding_fraction"] == 0
