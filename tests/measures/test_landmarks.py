from __future__ import annotations

import numpy as np
import pytest

from regweave.measures.landmarks import target_registration_error_mm
from regweave.types import Field, Geometry, Transform


def linear_field():
    """u(p) = 0.1·(p_y, p_z, p_x) on a grid of 2 mm voxels with an offset origin."""
    affine = np.array([[2.0, 0, 0, -5], [0, 2, 0, 3], [0, 0, 2, 1], [0, 0, 0, 1]])
    grid = Geometry((12, 11, 10), affine)
    p = grid.points(np.moveaxis(np.indices(grid.shape), 0, -1).astype(np.float64))
    return Field(np.ascontiguousarray(np.moveaxis(0.1 * p[..., [1, 2, 0]], -1, 0), dtype=np.float32), grid)


def test_distances_against_a_loop():
    rng = np.random.default_rng(0)
    fixed = rng.uniform([-4, 4, 2], [15, 20, 17], (40, 3))
    moving = fixed + rng.normal(size=fixed.shape)
    affine = np.eye(4)
    affine[:3, :3] = [[0, -1, 0], [1, 0, 0], [0, 0, 1]]
    affine[:3, 3] = [1, 2, 3]
    errors = target_registration_error_mm(fixed, moving, Transform(linear_field(), affine))
    expected = []
    for (x, y, z), q in zip(fixed, moving, strict=True):
        warped = np.array([x + 0.1 * y, y + 0.1 * z, z + 0.1 * x])
        there = np.array([-warped[1] + 1, warped[0] + 2, warped[2] + 3])
        expected.append(np.sqrt(((there - q) ** 2).sum()))
    np.testing.assert_allclose(errors.distances_mm, expected, atol=1e-5)
    assert errors.mean_mm == pytest.approx(np.mean(expected), abs=1e-5)
    assert errors.p95_mm == pytest.approx(np.percentile(expected, 95), abs=1e-5)
    assert errors.max_mm == pytest.approx(max(expected), abs=1e-5)


def test_no_points_is_nan():
    errors = target_registration_error_mm(np.empty((0, 3)), np.empty((0, 3)), Transform(linear_field()))
    assert errors.distances_mm.shape == (0,)
    assert np.isnan([errors.mean_mm, errors.p95_mm, errors.max_mm]).all()


def test_lists_of_different_length_are_refused():
    with pytest.raises(ValueError, match=r"shapes \(2, 3\) and \(1, 3\)"):
        target_registration_error_mm([[0, 0, 0], [1, 1, 1]], [[0, 0, 0]], Transform(linear_field()))
