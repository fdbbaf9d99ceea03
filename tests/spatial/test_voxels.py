"""Kernels that take NumPy's place on large images, against NumPy."""

from itertools import permutations, product

import numpy as np
import pytest
from scipy import ndimage

from regweave import _core
from regweave.spatial.warp import determinant
from regweave.threads import kernel_threads
from regweave.types import Field, Geometry

SHAPE = (23, 14, 17)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def test_axes_histogram_and_enclosed_voxels(rng):
    for order, steps in product(permutations(range(3)), product((1, -1), repeat=3)):
        images = rng.random((2, *SHAPE), dtype=np.float32)
        turned = images.transpose(0, *(1 + a for a in order))[:, :: steps[0], :: steps[1], :: steps[2]]
        np.testing.assert_array_equal(_core.arrange(images, order, steps), turned)
    for bins in [1, 7, 256]:
        image = np.round(rng.normal(size=SHAPE) * 50).astype(np.float32)  # whole numbers, many of them on an edge
        edges = np.linspace(-60.0, 77.0, bins + 1)
        np.testing.assert_array_equal(_core.histogram(image, edges), np.histogram(image, edges)[0])
    for axes in [1, 2, 3]:
        mask = rng.random(SHAPE) < 0.05
        count = np.zeros(SHAPE, dtype=int)
        for index in np.ndindex(*SHAPE):
            for axis in range(3):
                line = mask[tuple(slice(None) if a == axis else i for a, i in enumerate(index))]
                count[index] += line[: index[axis] + 1].any() and line[index[axis] :].any()
        found = _core.enclosed(mask.view(np.uint8), axes)
        np.testing.assert_array_equal(found, mask | (count >= axes))
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


def rounded(vectors: np.ndarray, step: float, bound: float) -> np.ndarray:
    """Round component by component; where the errors together pass the bound, the worst gets another bit."""
    near = np.rint(vectors / np.float32(step)) * np.float32(step)
    for _ in range(3):
        error = np.abs(vectors - near)
        far = error[0] * error[0] + error[1] * error[1] + error[2] * error[2] > np.float32(bound) ** 2
        worst = np.where(far, error.argmax(axis=0), 3) == np.arange(3)[:, None, None, None]
        near = np.where(worst, np.rint(vectors / np.float32(step / 2)) * np.float32(step / 2), near)
    return near + np.float32(0)


def test_planes_of_a_field_and_profiles(rng):
    vectors = rng.normal(size=(3, *SHAPE)).astype(np.float32)
    for first, planes in ((0, 17), (4, 6), (16, 1)):
        part = vectors[..., first : first + planes]
        plain, near = (_core.list_vectors(vectors, first, planes, step, 0.1) for step in (0.0, 0.125))
        np.testing.assert_array_equal(plain, part.transpose(3, 2, 1, 0))
        np.testing.assert_array_equal(near, rounded(part, 0.125, 0.1).transpose(3, 2, 1, 0))
    assert np.linalg.norm(near - plain, axis=-1).max() <= 0.1 < np.sqrt(3) / 16
    assert not np.signbit(_core.list_vectors(np.full_like(vectors, -0.01), 0, 1, 0.125, 0.1)).any()
    image = rng.random(SHAPE, dtype=np.float32)
    bright = np.where(image > 0.4, image, 0).astype(np.float64)
    for axis, found in enumerate(_core.profiles(image, 0.4)):
        np.testing.assert_allclose(found, bright.sum(axis=tuple(a for a in range(3) if a != axis)))


def test_determinants_by_slabs_are_those_of_the_whole(rng, monkeypatch):
    assert np.isnan(_core.log_spread(np.float32([1.0, np.nan]), 0.0, 1e-9, 1e9)[1])
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


# Windows, tables, means of blocks, regular samples and forces against NumPy's and SciPy's.
RNG = np.random.default_rng(1)
IMAGE = RNG.random((17, 12, 21), dtype=np.float32)


def test_window_lookup_and_forces():
    image = IMAGE.copy()
    image[3, 4, 5] = np.nan
    wanted = ((image - np.float32(0.2)) * np.float32(1 / 0.5)).clip(0, 1)
    np.testing.assert_allclose(_core.window(image, 0.2, 0.7), wanted, atol=1e-6)
    # Ranks and bins are steps: a scale that differs in its last bit moves voxels across them.
    low, high = 0.1 + 1e-9, 722.6672940063474
    image = IMAGE * np.float32(800)
    wanted = ((image - np.float32(low)) * np.float32(1 / (high - low))).clip(0, 1)
    np.testing.assert_array_equal(_core.window(image, low, high), wanted)
    for n in [1, 2, 40]:
        knots, values = np.sort(RNG.random(n)), RNG.random(n)
        np.testing.assert_allclose(_core.lookup(IMAGE, knots, values), np.interp(IMAGE, knots, values), atol=1e-6)
    force = RNG.normal(size=(3, 9, 8, 7)).astype(np.float32)
    squares = (force.astype(np.float64) ** 2).sum(axis=0)
    assert _core.mean_square_force(force) == pytest.approx((squares**2).sum() / squares.sum(), rel=1e-12)
    assert _core.mean_square_force(np.zeros_like(force)) == 0


# Compiled filters against those of SciPy and NumPy.
IMAGES = np.random.default_rng(0).random((2, 19, 14, 23), dtype=np.float32)


def test_filters_are_those_of_scipy_and_numpy():
    for sigma in [(0.7, 0.7, 0.7), (0.0, 1.3, 3.1), (9.0, 0.2, 0.0)]:
        for truncate in [2.0, 4.0]:
            found = _core.gaussian(IMAGES, sigma, truncate)
            for image, smooth in zip(IMAGES, found, strict=True):
                wanted = ndimage.gaussian_filter(image, sigma, mode="nearest", truncate=truncate)
                np.testing.assert_allclose(smooth, wanted, atol=1e-6)
    for shape in [(19, 14, 23), (2, 5, 8), (7, 2, 2)]:
        image = IMAGES[0][tuple(slice(n) for n in shape)].copy()
        slopes = np.stack(np.gradient(image.astype(np.float64)))
        squares = (slopes**2).sum(axis=0)
        np.testing.assert_allclose(_core.gradient_magnitude(image)[0], np.sqrt(squares), atol=1e-6)
        epsilon = 0.8 * np.sqrt(squares).mean() + 1e-6
        wanted = slopes / np.sqrt(squares + epsilon**2)
        np.testing.assert_allclose(_core.gradient_direction(image, 0.8), wanted, atol=1e-6)
    assert _core.gradient_magnitude(np.ones((1, 1, 1), dtype=np.float32)).item() == 0
    alone = _core.gaussian(IMAGES, (1.0, 1.0, 1.0), 3.0), _core.gradient_direction(IMAGES[0], 1.0)
    with kernel_threads(3):
        together = _core.gaussian(IMAGES, (1.0, 1.0, 1.0), 3.0), _core.gradient_direction(IMAGES[0], 1.0)
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)
