import numpy as np
import pytest

from regweave import _core
from regweave.spatial.warp import inverse_errors_mm, invert, summary_mm, to_field, warp_points
from regweave.types import Field, Geometry, Transform


def oblique(shape, spacing, angle, origin):
    c, s = np.cos(angle), np.sin(angle)
    affine = np.eye(4)
    affine[:3, :3] = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]) @ np.array([[1, 0, 0], [0, c, s], [0, -s, c]])
    affine[:3, :3] *= spacing
    affine[:3, 3] = origin
    return Geometry(shape, affine)


FIXED = oblique((40, 36, 24), (1.0, 1.2, 2.5), 0.4, (5.0, -20.0, 11.0))
MOVING = oblique((34, 40, 30), (1.3, 1.0, 2.0), 0.3, (3.0, -18.0, 8.0))


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.fixture
def transform(rng):
    spacing = np.array([10.0, 10.0, 8.0])
    coefficients = (rng.uniform(-0.4, 0.4, (3, 7, 7, 6)) * spacing[:, None, None, None]).astype(np.float32)
    u = _core.ffd(coefficients, -spacing, spacing, FIXED.shape)
    affine = np.eye(4)
    affine[:3, :3] += rng.uniform(-0.05, 0.05, (3, 3))
    affine[:3, 3] = [2.0, 1.0, -1.5]
    return Transform(to_field(u, FIXED), affine)


def test_every_moving_voxel_comes_from_its_fixed_point_even_where_space_expands(transform):
    inverse = invert(transform, MOVING)[0]
    q = MOVING.points(np.argwhere(np.ones(MOVING.shape)).astype(float))
    p = warp_points(q, inverse)
    # Outside the fixed grid as well: the tolerance and float32 are all that is lost.
    error = np.linalg.norm(warp_points(p, transform) - q, axis=1)
    assert error.max() < 2e-3
    # Steeper than a plain fixed point can follow: du/dx reaches 2.
    x = np.arange(60, dtype=np.float64)
    u = np.zeros((3, 60, 4, 4), np.float32)
    u[0] = (4 * np.tanh((x - 30) / 2))[:, None, None]
    grid = Geometry((60, 4, 4), np.eye(4))
    transform = Transform(Field(u, grid))
    inverse = invert(transform, grid)[0]
    q = np.argwhere(np.ones(grid.shape)).astype(float)
    error = np.linalg.norm(warp_points(warp_points(q, inverse), transform) - q, axis=1)
    assert error.max() < 2e-3


def test_there_and_back_and_what_is_not_solved(transform):
    # Between voxels the inverse is interpolated, so the field is smooth, and still at the border.
    x = np.stack(np.meshgrid(*[np.linspace(0, np.pi, n) for n in FIXED.shape], indexing="ij"))
    bump = np.prod(np.sin(x) ** 2, axis=0)
    u = np.array([0.9, -0.7, 0.4])[:, None, None, None] * bump
    transform = Transform(to_field(u.astype(np.float32), FIXED))
    consistency = summary_mm(inverse_errors_mm(transform, invert(transform, FIXED)[0]))
    assert 0 < consistency["mean"] <= consistency["p95"] <= consistency["max"]
    assert consistency["max"] < 0.01 * FIXED.spacing_mm.max()
    assert consistency["mean"] < 0.01 * FIXED.spacing_mm.min()
    solved, cut = invert(transform, MOVING), invert(transform, MOVING, max_iter=1)
    assert solved[1].shape == MOVING.shape
    assert solved[1].max() < 2e-3
    q = MOVING.points(np.argwhere(np.ones(MOVING.shape)).astype(float))
    error = np.linalg.norm(warp_points(warp_points(q, cut[0]), transform) - q, axis=1)
    assert cut[1].max() > 0.1
    # The residual is a number of voxels times the largest spacing: it bounds the error, but for the affine.
    assert (error <= 1.1 * cut[1].ravel() + 1e-3).all()


def test_consistency_is_measured_where_points_stay_inside_and_nan_elsewhere(transform):
    inverse = invert(transform, MOVING)[0]
    p = FIXED.points(np.argwhere(np.ones(FIXED.shape)).astype(float))
    q = warp_points(p, transform)
    to_index = np.linalg.inv(MOVING.affine)
    index = q @ to_index[:3, :3].T + to_index[:3, 3]
    inside = ((index >= -0.5) & (index <= np.array(MOVING.shape) - 0.5)).all(axis=1)
    error = np.linalg.norm(warp_points(q, inverse) - p, axis=1)[inside]
    measured = summary_mm(inverse_errors_mm(transform, inverse))
    assert 0.2 < inside.mean() < 0.99
    assert measured["mean"] == pytest.approx(error.mean(), rel=1e-2)
    assert measured["max"] == pytest.approx(error.max(), rel=1e-2)
    inverse = invert(transform, MOVING)[0]
    errors = inverse_errors_mm(transform, inverse)
    assert errors.shape == FIXED.shape
    assert 0.01 < np.isnan(errors).mean() < 0.8
    assert summary_mm(inverse_errors_mm(transform, inverse))["max"] == np.nanmax(errors)
    grid = Geometry((4, 4, 4), np.eye(4))
    away = np.eye(4)
    away[:3, 3] = 100.0
    forward = Transform(Field.zero(grid), away)
    assert np.isnan(summary_mm(inverse_errors_mm(forward, Transform(Field.zero(grid))))["max"])
