"""Kernels that take NumPy's place on large images, against NumPy."""

from itertools import permutations, product

import numpy as np
import pytest

from regweave import _core
from regweave.spatial.warp import determinant, log_deviation
from regweave.threads import kernel_threads
from regweave.types import Field, Geometry

SHAPE = (23, 14, 17)
IDENTITY = np.eye(4)[:3].tolist()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def test_zeros_factors_and_matrices(rng):
    for _ in range(3):
        array = _core.zero_field((64, 64, 64))
        assert array.shape == (3, 64, 64, 64)
        assert not array.any()
        array[:] = 1.0
        del array
    vectors = rng.normal(size=(3, *SHAPE)).astype(np.float32)
    factors, matrix = np.float32([0.5, -2.0, 3.0]), rng.normal(size=(3, 3))
    matrix[0, 1] = 0.0
    np.testing.assert_array_equal(_core.scale_channels(vectors, factors), vectors * factors[:, None, None, None])
    expected = np.einsum("ab,bxyz->axyz", matrix, vectors)
    np.testing.assert_allclose(_core.turn_vectors(vectors, matrix.tolist()), expected, atol=1e-5)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_axes_in_another_order(rng, order):
    images = rng.random((2, *SHAPE), dtype=np.float32)
    for steps in product((1, -1), repeat=3):
        turned = images.transpose(0, *(1 + a for a in order))[:, :: steps[0], :: steps[1], :: steps[2]]
        np.testing.assert_array_equal(_core.arrange(images, order, steps), turned)


def rounded(vectors: np.ndarray, step: float, bound: float) -> np.ndarray:
    """Round component by component; where the errors together pass the bound, the worst gets another bit."""
    near = np.rint(vectors / np.float32(step)) * np.float32(step)
    for _ in range(3):
        error = np.abs(vectors - near)
        far = error[0] * error[0] + error[1] * error[1] + error[2] * error[2] > np.float32(bound) ** 2
        worst = np.where(far, error.argmax(axis=0), 3) == np.arange(3)[:, None, None, None]
        near = np.where(worst, np.rint(vectors / np.float32(step / 2)) * np.float32(step / 2), near)
    return near + np.float32(0)


def test_planes_of_a_field_as_a_list(rng):
    vectors = rng.normal(size=(3, *SHAPE)).astype(np.float32)
    for first, planes in ((0, 17), (4, 6), (16, 1)):
        part = vectors[..., first : first + planes]
        plain, near = (_core.list_vectors(vectors, first, planes, step, 0.1) for step in (0.0, 0.125))
        np.testing.assert_array_equal(plain, part.transpose(3, 2, 1, 0))
        np.testing.assert_array_equal(near, rounded(part, 0.125, 0.1).transpose(3, 2, 1, 0))
    assert np.linalg.norm(near - plain, axis=-1).max() <= 0.1 < np.sqrt(3) / 16
    assert not np.signbit(_core.list_vectors(np.full_like(vectors, -0.01), 0, 1, 0.125, 0.1)).any()


def test_profiles_are_sums_of_the_bright_voxels(rng):
    image = rng.random(SHAPE, dtype=np.float32)
    bright = np.where(image > 0.4, image, 0).astype(np.float64)
    for axis, found in enumerate(_core.profiles(image, 0.4)):
        np.testing.assert_allclose(found, bright.sum(axis=tuple(a for a in range(3) if a != axis)))


@pytest.mark.parametrize("bins", [1, 7, 256])
def test_histogram_is_that_of_numpy(rng, bins):
    image = np.round(rng.normal(size=SHAPE) * 50).astype(np.float32)  # whole numbers, many of them on an edge
    edges = np.linspace(-60.0, 77.0, bins + 1)
    np.testing.assert_array_equal(_core.histogram(image, edges), np.histogram(image, edges)[0])


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_enclosed_voxels_lie_between_two_of_the_mask(rng, axes):
    mask = rng.random(SHAPE) < 0.05
    count = np.zeros(SHAPE, dtype=int)
    for index in np.ndindex(*SHAPE):
        for axis in range(3):
            line = mask[tuple(slice(None) if a == axis else i for a, i in enumerate(index))]
            count[index] += line[: index[axis] + 1].any() and line[index[axis] :].any()
    found = _core.enclosed(mask.view(np.uint8), axes)
    np.testing.assert_array_equal(found, mask | (count >= axes))


def test_spread_of_logarithms(rng):
    values = rng.normal(1.0, 0.5, size=200_000).astype(np.float32)
    for shift in (0.0, 3.0):
        logs = np.log(np.clip(values.astype(np.float64) + shift, 1e-9, 1e9))
        mean, deviation = _core.log_spread(values, shift, 1e-9, 1e9)
        np.testing.assert_allclose((mean, deviation), (logs.mean(), logs.std()), rtol=1e-10)
    assert np.isnan(log_deviation(np.float32([1.0, np.nan]), 1e-9, 1e9))


def test_round_trip_of_each_point(rng):
    u = rng.uniform(-3, 3, (3, *SHAPE)).astype(np.float32)
    v = np.ones((3, 9, 9, 9), dtype=np.float32) * np.float32([[[[0.5]]], [[[1.0]]], [[[-2.0]]]])
    there, back = np.eye(4), np.eye(4)
    there[:3] += rng.normal(0, 0.05, (3, 4))
    back[:3] += rng.normal(0, 0.05, (3, 4))
    place, to_voxel = np.diag([2.0, 1.0, 1.5, 1.0]), np.diag([0.3, 0.5, 0.4, 1.0])
    found = _core.round_trip(u, v, *(m[:3].tolist() for m in (place, there, to_voxel, back)))
    for i, j, k in rng.integers(0, SHAPE, (200, 3)):
        p = place @ [i, j, k, 1.0]
        q = there @ (p + np.append(u[:, i, j, k], 0.0))
        voxel = (to_voxel @ q)[:3]
        end = back @ (q + np.array([0.5, 1.0, -2.0, 0.0]))
        if np.all((voxel >= -0.5) & (voxel <= 8.5)):
            assert found[i, j, k] == pytest.approx(np.linalg.norm(end - p), rel=1e-6)
        else:
            assert np.isnan(found[i, j, k])


def test_determinants_by_slabs_are_those_of_the_whole(rng, monkeypatch):
    geometry = Geometry(SHAPE, np.diag([1.0, 1.5, 2.0, 1.0]))
    field = Field(rng.normal(size=(3, *SHAPE)).astype(np.float32), geometry)
    whole = determinant(field)
    monkeypatch.setattr("regweave.spatial.warp.SLAB_VOXELS", 5 * SHAPE[1] * SHAPE[2])
    np.testing.assert_array_equal(determinant(field), whole)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_normal_equations_are_those_of_centred_columns(rng, threads):
    shape, gradient = (9, 12, 7), rng.normal(size=(3, 9, 12, 7)).astype(np.float32)
    bins = rng.integers(0, 5, shape, dtype=np.int32)
    weight, residual = rng.random(shape), rng.normal(size=shape)
    axes = [(np.arange(n) - (n - 1) / 2) / 6.0 for n in shape]
    position = [*np.meshgrid(*axes, indexing="ij"), np.ones(shape)]
    columns = np.stack([(g * x).ravel() for g in gradient.astype(float) for x in position])
    for b in range(5):
        here = (bins == b).ravel()
        columns[:, here] -= np.average(columns[:, here], axis=1, weights=weight.ravel()[here])[:, None]
    weighted = columns * weight.ravel()
    with kernel_threads(threads):
        matrix, slope = _core.normal_equations(gradient, np.eye(4)[:3].copy(), bins, weight, residual, 5)
    np.testing.assert_allclose(matrix, weighted @ columns.T, atol=1e-9)
    np.testing.assert_allclose(slope, weighted @ residual.ravel(), atol=1e-9)
