from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.ndimage import map_coordinates

from regweave import _core

IDENTITY = np.eye(4)[:3].copy()


def smooth_field(rng, shape, size=1.5, nodes=5):
    coarse = rng.uniform(-size, size, (3, nodes, nodes, nodes))
    axes = [np.linspace(0, nodes - 1, n) for n in shape]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"))
    return np.stack([map_coordinates(c, grid, order=1) for c in coarse]).astype(np.float32)


def oblique_matrix(rng):
    matrix = np.eye(4)[:3] + rng.uniform(-0.15, 0.15, (3, 4))
    matrix[:, 3] += rng.uniform(-1, 1, 3)
    return matrix


def positions(matrix, field):
    x = np.stack(np.meshgrid(*[np.arange(n) for n in field.shape[1:]], indexing="ij")) + field.astype(np.float64)
    return np.tensordot(matrix[:, :3], x, 1) + matrix[:, 3, None, None, None]


def is_inside(p, shape):
    top = np.array(shape)[:, None, None, None] - 0.5
    return ((p >= -0.5) & (p <= top)).all(axis=0)


@pytest.fixture
def case(rng):
    image = rng.normal(size=(13, 9, 17)).astype(np.float32)
    field = smooth_field(rng, (11, 12, 10))
    return image, oblique_matrix(rng), field


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def test_warps_against_scipy(case, rng):
    image, matrix, field = case
    expected = map_coordinates(image.astype(np.float64), positions(matrix, field), order=1, mode="nearest")
    np.testing.assert_allclose(_core.warp(image, matrix, field, 0.0, True), expected, atol=2e-6)
    image, matrix, field = case
    p = positions(matrix, field)
    inside = is_inside(p, image.shape)
    assert 0.2 < inside.mean() < 0.95
    expected = np.where(inside, map_coordinates(image.astype(np.float64), p, order=1, mode="nearest"), -7.5)
    np.testing.assert_allclose(_core.warp(image, matrix, field, -7.5, False), expected, atol=2e-6)
    np.testing.assert_array_equal(_core.warp_valid(image.shape, matrix, field), inside)
    image, matrix, field = case
    labels = rng.integers(0, 5, image.shape).astype(np.int32)
    p = positions(matrix, field)
    top = np.array(labels.shape)[:, None, None, None] - 1
    index = np.clip(np.floor(p + 0.5), 0, top).astype(int)
    expected = np.where(is_inside(p, labels.shape), labels[tuple(index)], -3)
    np.testing.assert_array_equal(_core.warp_nearest(labels, matrix, field, -3), expected)
    image, matrix, field = case
    with pytest.raises(ValueError, match=r"\(3, 4\)"):
        _core.warp(image, np.eye(4), field, 0.0, False)
    with pytest.raises(ValueError, match=r"\(3, X, Y, Z\)"):
        _core.warp(image, matrix, np.zeros((2, 4, 4, 4), np.float32), 0.0, False)
    with pytest.raises(ValueError, match="one shape"):
        _core.compose(field, np.zeros((3, 4, 4, 4), np.float32))
    with pytest.raises(ValueError, match="positive"):
        _core.ffd(field, [0.0, 0.0, 0.0], [0.0, 1.0, 1.0], (4, 4, 4))


def test_the_identity_is_bit_equal(rng):
    image = rng.normal(size=(5, 6, 1)).astype(np.float32)
    zero = np.zeros((3, 5, 6, 1), np.float32)
    np.testing.assert_array_equal(_core.warp(image, IDENTITY, zero, 9.0, False), image)
    labels = rng.integers(0, 9, (4, 5, 6)).astype(np.int32)
    zero = np.zeros((3, 4, 5, 6), np.float32)
    np.testing.assert_array_equal(_core.warp_labels(labels, IDENTITY, zero), labels)
    image = np.ones((4, 4, 4), np.float32)
    field = np.full((3, 4, 4, 4), np.nan, np.float32)
    assert (_core.warp(image, IDENTITY, field, 5.0, False) == 5).all()
    assert np.isfinite(_core.warp(image, IDENTITY, field, 5.0, True)).all()


def vote(labels, p):
    """Count trilinear weights label by label, at one position."""
    top = np.array(labels.shape) - 1
    p = np.clip(p, 0, top)
    low = np.minimum(np.floor(p), np.maximum(top - 1, 0)).astype(int)
    votes: dict[int, float] = {}
    for corner in product((0, 1), repeat=3):
        weight = np.prod([f if c else 1 - f for c, f in zip(corner, p - low, strict=True)])
        value = int(labels[tuple(np.minimum(low + corner, top))])
        votes[value] = votes.get(value, 0.0) + weight
    nearest = int(labels[tuple(np.floor(p + 0.5).astype(int))])
    best = max(votes.values())
    winners = sorted(v for v, w in votes.items() if w > best - 1e-12)
    return nearest if nearest in winners else winners[0]


def test_warp_labels_matches_a_vote_per_voxel(rng):
    labels = rng.integers(0, 3, (6, 5, 7)).astype(np.int32)
    field = smooth_field(rng, (6, 5, 7), nodes=3)
    field = np.round(field * 4) / 4  # quarters make ties happen
    p = positions(IDENTITY, field)
    expected = np.zeros(labels.shape, np.int32)
    for index in np.ndindex(*labels.shape):
        if is_inside(p[(slice(None), *index)][:, None, None, None], labels.shape).item():
            expected[index] = vote(labels, p[(slice(None), *index)])
    np.testing.assert_array_equal(_core.warp_labels(labels, IDENTITY, field), expected)


def test_compose_resample_and_jacobian_match_scipy_and_numpy(rng):
    u, d = smooth_field(rng, (9, 8, 10)), smooth_field(rng, (9, 8, 10))
    p = positions(IDENTITY, d)
    expected = d + np.stack([map_coordinates(c.astype(np.float64), p, order=1, mode="nearest") for c in u])
    np.testing.assert_allclose(_core.compose(u, d), expected, atol=2e-6)
    u = smooth_field(rng, (9, 8, 10))
    shape, scale, offset = (15, 4, 12), np.array([0.6, 2.1, 0.9]), np.array([-0.3, 0.2, 0.1])
    grid = np.stack(
        np.meshgrid(*[s * np.arange(n) + o for n, s, o in zip(shape, scale, offset, strict=True)], indexing="ij")
    )
    expected = np.stack([map_coordinates(c.astype(np.float64), grid, order=1, mode="nearest") for c in u])
    np.testing.assert_allclose(_core.resample_field(u, shape, scale, offset), expected, atol=2e-6)
    for shape in [(7, 8, 9), (6, 1, 5)]:
        u = rng.normal(scale=0.2, size=(3, *shape)).astype(np.float32)
        gradient = np.zeros((3, 3, *shape))
        for component, axis in product(range(3), range(3)):
            if shape[axis] > 1:
                gradient[component, axis] = np.gradient(u[component].astype(np.float64), axis=axis)
        matrix = np.moveaxis(gradient, (0, 1), (-2, -1)) + np.eye(3)
        np.testing.assert_allclose(_core.jacobian(u), np.linalg.det(matrix), atol=1e-5)


def test_the_thread_count_does_not_change_a_bit(case, rng):
    image, matrix, field = case
    labels = rng.integers(0, 4, image.shape).astype(np.int32)
    u = smooth_field(rng, field.shape[1:])
    coefficients = rng.normal(size=(3, 5, 4, 6)).astype(np.float32)
    inverse = np.linalg.inv(np.vstack([matrix, [0, 0, 0, 1]]))[:3].copy()
    calls = [
        lambda: _core.warp(image, matrix, field, 0.0, False), lambda: _core.warp_valid(image.shape, matrix, field),
        lambda: _core.warp_labels(labels, matrix, field), lambda: _core.warp_nearest(labels, matrix, field, 0),
        lambda: _core.compose(u, field),
        lambda: _core.resample_field(u, (6, 7, 8), [1.5, 1.1, 1.2], [0.1, 0.0, -0.2]), lambda: _core.jacobian(u),
        lambda: _core.ffd(coefficients, [-1.0, 0.0, 2.0], [3.0, 4.0, 2.5], (11, 12, 10)),
        lambda: _core.ffd_adjoint(u, [-1.0, 0.0, 2.0], [3.0, 4.0, 2.5], (5, 4, 6)),
        lambda: _core.invert(field, matrix, inverse, image.shape, 20, 1e-4)[0],
    ]  # fmt: skip
    before = _core.threads()
    try:
        for call in calls:
            results = []
            for n in (1, 2, 3):
                _core.set_threads(n)
                results.append(call().tobytes())
            assert results[0] == results[1] == results[2]
    finally:
        _core.set_threads(before)


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
def ffd_rng():
    return np.random.default_rng(3)


LATTICES = [
    ((13, 10, 12), (5, 4, 6), (-2.0, 0.5, 1.0), (4.0, 3.3, 2.5)),
    ((5, 5, 5), (1, 2, 9), (0.0, 7.0, -20.0), (6.0, 2.0, 1.5)),
]


@pytest.mark.parametrize(("shape", "nodes", "origin", "spacing"), LATTICES)
def test_ffd_matches_the_definition_and_its_adjoint_the_transpose(ffd_rng, shape, nodes, origin, spacing):
    c = ffd_rng.normal(size=(3, *nodes)).astype(np.float32)
    matrices = [axis_matrix(*v) for v in zip(shape, nodes, origin, spacing, strict=True)]
    expected = np.einsum("cabd,xa,yb,zd->cxyz", c, *matrices)
    np.testing.assert_allclose(_core.ffd(c, origin, spacing, shape), expected, atol=1e-5)
    c = ffd_rng.normal(size=(3, *nodes)).astype(np.float32)
    d = ffd_rng.normal(size=(3, *shape)).astype(np.float32)
    forward = np.vdot(_core.ffd(c, origin, spacing, shape).astype(np.float64), d)
    backward = np.vdot(c.astype(np.float64), _core.ffd_adjoint(d, origin, spacing, nodes))
    assert backward == pytest.approx(forward, rel=1e-5, abs=1e-4)


def test_equal_control_points_translate(ffd_rng):
    c = np.ones((3, 4, 5, 3), np.float32) * np.array([1.5, -2.0, 0.25], np.float32)[:, None, None, None]
    u = _core.ffd(c, (-3.0, 1.0, 2.0), (5.0, 4.0, 7.0), (20, 17, 30))
    np.testing.assert_allclose(u, np.broadcast_to(c[:, :1, :1, :1], u.shape), atol=1e-6)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_coefficients_within_four_tenths_of_the_spacing_never_fold(seed):
    ffd_rng = np.random.default_rng(seed)
    spacing = np.array([6.0, 8.0, 5.0])
    signs = ffd_rng.choice([-0.4, 0.4], size=(3, 6, 5, 6))
    c = (signs * spacing[:, None, None, None]).astype(np.float32)
    u = _core.ffd(c, -spacing, spacing, (24, 24, 20))
    assert _core.jacobian(u).min() > 0
