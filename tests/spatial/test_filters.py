"""Compiled filters against those of SciPy and NumPy."""

import numpy as np
import pytest
from scipy import ndimage

from regweave import _core
from regweave.threads import kernel_threads

IMAGES = np.random.default_rng(0).random((2, 19, 14, 23), dtype=np.float32)


@pytest.mark.parametrize("sigma", [(0.7, 0.7, 0.7), (0.0, 1.3, 3.1), (9.0, 0.2, 0.0)])
@pytest.mark.parametrize("truncate", [2.0, 4.0])
def test_gaussian_is_that_of_scipy(sigma, truncate):
    found = _core.gaussian(IMAGES, sigma, truncate)
    for image, smooth in zip(IMAGES, found, strict=True):
        wanted = ndimage.gaussian_filter(image, sigma, mode="nearest", truncate=truncate)
        np.testing.assert_allclose(smooth, wanted, atol=1e-6)


@pytest.mark.parametrize("shape", [(19, 14, 23), (2, 5, 8), (7, 2, 2)])
def test_gradients_are_those_of_numpy(shape):
    image = IMAGES[0][tuple(slice(n) for n in shape)].copy()
    slopes = np.stack(np.gradient(image.astype(np.float64)))
    squares = (slopes**2).sum(axis=0)
    np.testing.assert_allclose(_core.gradient_magnitude(image)[0], np.sqrt(squares), atol=1e-6)
    epsilon = 0.8 * np.sqrt(squares).mean() + 1e-6
    wanted = slopes / np.sqrt(squares + epsilon**2)
    np.testing.assert_allclose(_core.gradient_direction(image, 0.8), wanted, atol=1e-6)


def test_threads_do_not_change_a_bit():
    assert _core.gradient_magnitude(np.ones((1, 1, 1), dtype=np.float32)).item() == 0
    alone = _core.gaussian(IMAGES, (1.0, 1.0, 1.0), 3.0), _core.gradient_direction(IMAGES[0], 1.0)
    with kernel_threads(3):
        together = _core.gaussian(IMAGES, (1.0, 1.0, 1.0), 3.0), _core.gradient_direction(IMAGES[0], 1.0)
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)
