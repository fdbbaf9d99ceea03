import numpy as np
import pytest

from regweave.measures.deformation import regularity
from regweave.spatial.warp import determinant
from regweave.types import Field, Geometry


def test_numbers_against_plain_formulas():
    jacobian = np.random.default_rng(2).uniform(-0.2, 2.0, (9, 8, 7)).astype(np.float32)
    jacobian[4, 4, 4] = 7.0
    mask = np.zeros(jacobian.shape, bool)
    mask[2:5] = True
    for numbers, inside, inner in (
        (regularity(jacobian), jacobian, jacobian[2:-2, 2:-2, 2:-2]),
        (regularity(jacobian, mask), jacobian[2:5], jacobian[2:5, 2:-2, 2:-2]),
    ):
        assert numbers["folding_fraction"] == pytest.approx((inside <= 0).mean())
        assert numbers["low_fraction"] == pytest.approx((inside < 0.2).mean())
        assert numbers["high_fraction"] == pytest.approx((inside > 5).mean())
        assert numbers["sdlogj"] == pytest.approx(np.log(np.clip(inside.astype(float), 1e-9, 1e9)).std(), rel=1e-5)
        learn2reg = np.log(np.clip(inner.astype(float) + 3, 1e-9, 1e9)).std()
        assert numbers["sdlogj_l2r"] == pytest.approx(learn2reg, rel=1e-5)
        assert (numbers["min_jacobian"], numbers["max_jacobian"]) == (inside.min(), inside.max())
        assert numbers["jacobian_p99"] == pytest.approx(np.percentile(inside, 99))
    assert all(np.isnan(number) for number in regularity(jacobian, np.zeros_like(mask)).values())
    assert np.isnan(regularity(jacobian[:4])["sdlogj_l2r"])


def test_a_uniform_expansion_has_one_determinant():
    grid = Geometry((8, 8, 8), np.diag([2.0, 1.0, 3.0, 1.0]))
    data = (0.1 * np.indices(grid.shape) * np.array([2.0, 1.0, 3.0])[:, None, None, None]).astype(np.float32)
    numbers = regularity(determinant(Field(data, grid)))
    assert numbers["min_jacobian"] == pytest.approx(1.1**3, rel=1e-4)
    assert numbers["max_jacobian"] == pytest.approx(1.1**3, rel=1e-4)
    assert (numbers["folding_fraction"], numbers["extreme_fraction"]) == (0, 0)
    assert numbers["sdlogj"] == pytest.approx(0, abs=1e-5)
