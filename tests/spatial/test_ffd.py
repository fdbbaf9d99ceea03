import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regweave import _core


def basis(t):
    """Cubic B-spline by its definition on |t|."""
    t = abs(t)
    if t < 1:
        return 2 / 3 - t * t + t**3 / 2
    return (2 - t) ** 3 / 6 if t < 2 else 0.0


def axis_matrix(n, nodes, origin, spacing):
    matrix = np.zeros((n, nodes))
    for x in range(n):
        t = (x - origin) / spacing
        for node in range(int(np.floor(t)) - 1, int(np.floor(t)) + 3):
            matrix[x, min(max(node, 0), nodes - 1)] += basis(t - node)
    return matrix


@pytest.fixture
def rng():
    return np.random.default_rng(3)


LATTICES = [
    ((13, 10, 12), (5, 4, 6), (-2.0, 0.5, 1.0), (4.0, 3.3, 2.5)),
    ((5, 5, 5), (1, 2, 9), (0.0, 7.0, -20.0), (6.0, 2.0, 1.5)),
]


@pytest.mark.parametrize(("shape", "nodes", "origin", "spacing"), LATTICES)
def test_ffd_matches_the_definition(rng, shape, nodes, origin, spacing):
    c = rng.normal(size=(3, *nodes)).astype(np.float32)
    matrices = [axis_matrix(*v) for v in zip(shape, nodes, origin, spacing, strict=True)]
    expected = np.einsum("cabd,xa,yb,zd->cxyz", c, *matrices)
    np.testing.assert_allclose(_core.ffd(c, origin, spacing, shape), expected, atol=1e-5)


@pytest.mark.parametrize(("shape", "nodes", "origin", "spacing"), LATTICES)
def test_adjoint_is_the_transpose(rng, shape, nodes, origin, spacing):
    c = rng.normal(size=(3, *nodes)).astype(np.float32)
    d = rng.normal(size=(3, *shape)).astype(np.float32)
    forward = np.vdot(_core.ffd(c, origin, spacing, shape).astype(np.float64), d)
    backward = np.vdot(c.astype(np.float64), _core.ffd_adjoint(d, origin, spacing, nodes))
    assert backward == pytest.approx(forward, rel=1e-5, abs=1e-4)


def test_equal_control_points_translate(rng):
    c = np.ones((3, 4, 5, 3), np.float32) * np.array([1.5, -2.0, 0.25], np.float32)[:, None, None, None]
    u = _core.ffd(c, (-3.0, 1.0, 2.0), (5.0, 4.0, 7.0), (20, 17, 30))
    np.testing.assert_allclose(u, np.broadcast_to(c[:, :1, :1, :1], u.shape), atol=1e-6)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_coefficients_within_four_tenths_of_the_spacing_never_fold(seed):
    rng = np.random.default_rng(seed)
    spacing = np.array([6.0, 8.0, 5.0])
    signs = rng.choice([-0.4, 0.4], size=(3, 6, 5, 6))
    c = (signs * spacing[:, None, None, None]).astype(np.float32)
    u = _core.ffd(c, -spacing, spacing, (24, 24, 20))
    assert _core.jacobian(u).min() > 0
