"""Windows, tables, means of blocks, regular samples and forces against NumPy's and SciPy's."""

import numpy as np
import pytest
from scipy import ndimage

from regweave import _core
from regweave.threads import kernel_threads

RNG = np.random.default_rng(1)
IMAGE = RNG.random((17, 12, 21), dtype=np.float32)


def test_window_cuts_keeps_nan_and_rounds_no_limit():
    image = IMAGE.copy()
    image[3, 4, 5] = np.nan
    wanted = ((image - np.float32(0.2)) * np.float32(1 / 0.5)).clip(0, 1)
    np.testing.assert_allclose(_core.window(image, 0.2, 0.7), wanted, atol=1e-6)
    # Ranks and bins are steps: a scale that differs in its last bit moves voxels across them.
    low, high = 0.1 + 1e-9, 722.6672940063474
    image = IMAGE * np.float32(800)
    wanted = ((image - np.float32(low)) * np.float32(1 / (high - low))).clip(0, 1)
    np.testing.assert_array_equal(_core.window(image, low, high), wanted)


@pytest.mark.parametrize("n", [1, 2, 40])
def test_lookup_is_interp(n):
    knots, values = np.sort(RNG.random(n)), RNG.random(n)
    np.testing.assert_allclose(_core.lookup(IMAGE, knots, values), np.interp(IMAGE, knots, values), atol=1e-6)


@pytest.mark.parametrize("factors", [(2, 1, 2), (4, 5, 8), (17, 30, 1)])
def test_blocks_have_their_mean(factors):
    padded = np.pad(IMAGE.astype(np.float64), [(0, -n % f) for n, f in zip(IMAGE.shape, factors, strict=True)], "edge")
    (x, a), (y, b), (z, c) = ((n // f, f) for n, f in zip(padded.shape, factors, strict=True))
    wanted = padded.reshape(x, a, y, b, z, c).mean(axis=(1, 3, 5))
    np.testing.assert_allclose(_core.block_mean(IMAGE, factors), wanted, atol=5e-6)
    with kernel_threads(3):
        together = _core.block_mean(IMAGE, factors)
    np.testing.assert_array_equal(together, _core.block_mean(IMAGE, factors))


@pytest.mark.parametrize(("shape", "scale", "offset"), [((40, 42, 9), 0.5, -0.25), ((5, 4, 7), 2.7, 0.6)])
@pytest.mark.parametrize("size", [(13, 11, 12), (1, 11, 1)])
def test_regular_samples_are_trilinear(shape, scale, offset, size):
    u = RNG.random((2, *size), dtype=np.float32)
    axes = [np.clip(np.arange(n) * scale + offset, 0, m - 1) for n, m in zip(shape, size, strict=True)]
    at = np.stack(np.meshgrid(*axes, indexing="ij"))
    wanted = [ndimage.map_coordinates(c.astype(np.float64), at, order=1, mode="nearest") for c in u]
    np.testing.assert_allclose(_core.resample_field(u, shape, (scale,) * 3, (offset,) * 3), wanted, atol=1e-6)


def test_mean_square_of_a_force_is_weighted_by_itself():
    force = RNG.normal(size=(3, 9, 8, 7)).astype(np.float32)
    squares = (force.astype(np.float64) ** 2).sum(axis=0)
    assert _core.mean_square_force(force) == pytest.approx((squares**2).sum() / squares.sum(), rel=1e-12)
    assert _core.mean_square_force(np.zeros_like(force)) == 0
