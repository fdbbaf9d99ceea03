"""When the error of an inverse deserves a word, and what counts as the body."""

import numpy as np
import pytest

from regweave.measures.scores import InverseError, regularity
from regweave.spatial.voxels import body_mask
from regweave.spatial.warp import determinant
from regweave.types import Field, Geometry, LabelMap, Volume

SHAPE = (20, 20, 20)
BODY = np.zeros(SHAPE, dtype=bool)
BODY[5:15, 5:15, 5:15] = True


def error(residual=None, back=None, spacing_mm=2.0):
    nothing = np.zeros(SHAPE, dtype=np.float32)
    left = InverseError.of_residual(nothing if residual is None else residual, BODY)
    return left.with_round_trip(nothing if back is None else back, BODY, spacing_mm)


def inexact(n, size_mm=0.6, start=(5, 5)):
    residual = np.zeros(SHAPE, dtype=np.float32)
    residual[start[0], start[1], 5 : 5 + n] = size_mm
    return residual


def test_what_deserves_a_warning():
    assert not error(inexact(1)).notable
    assert error(inexact(2)).notable
    found = error(inexact(10, start=(0, 0)))
    assert (found.inexact_voxels, found.notable) == (0, False)
    found = error(back=np.full(SHAPE, np.nan, dtype=np.float32))
    assert found.notable
    assert "no voxel of the fixed body" in found.words()
    residual = inexact(3)
    residual[5, 5, 7] = 0.8
    text = error(residual).words()
    assert "3 voxels of the body (0.30%), at most 0.8 mm, near voxel (5, 5, 7)" in text
    for back_mm, notable in [(1.9, False), (2.1, True)]:
        back = np.where(BODY, np.float32(back_mm), np.float32(0.0))
        assert error(back=back).notable == notable


def scan(data):
    return Volume(data.astype(np.float32), Geometry(data.shape, np.eye(4)))


def test_what_is_body():
    ct = np.full(SHAPE, -1000.0)
    ct[3:17, 3:17, :] = 40.0
    ct[8:12, 8:12, :] = -850.0  # a lung that the scan cuts at both ends
    mask = body_mask(scan(ct))
    assert mask[3:17, 3:17].all()
    assert mask.sum() == 14 * 14 * 20
    image = np.zeros(SHAPE)
    image[2:6, 2:6, 2:6] = 100.0
    marked = np.zeros(SHAPE, dtype=np.uint8)
    marked[15, 15, 15] = 3
    mask = body_mask(scan(image), LabelMap(marked, Geometry(SHAPE, np.eye(4))))
    assert mask.sum() == 65
    rng = np.random.default_rng(0)
    image = rng.normal(0.0, 5.0, SHAPE)
    image[5:15, 5:15, 5:15] += 100.0
    mask = body_mask(scan(image))
    np.testing.assert_array_equal(mask, BODY)
    assert body_mask(scan(np.ones(SHAPE))).all()


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
    grid = Geometry((8, 8, 8), np.diag([2.0, 1.0, 3.0, 1.0]))
    data = (0.1 * np.indices(grid.shape) * np.array([2.0, 1.0, 3.0])[:, None, None, None]).astype(np.float32)
    numbers = regularity(determinant(Field(data, grid)))
    assert numbers["min_jacobian"] == pytest.approx(1.1**3, rel=1e-4)
    assert numbers["max_jacobian"] == pytest.approx(1.1**3, rel=1e-4)
    assert (numbers["folding_fraction"], numbers["extreme_fraction"]) == (0, 0)
    assert numbers["sdlogj"] == pytest.approx(0, abs=1e-5)
