"""Dense displacements: the twin of each GPU kernel against the compiled core and SciPy."""

import numpy as np
from scipy import ndimage

from regweave import _core


def field(rng, shape, size=2.0):
    return rng.normal(0, size, (3, *shape)).astype(np.float32)


def test_labels_determinants_and_smoothing_are_those_of_the_host(twin, device, rng):
    labels, u = rng.integers(0, 4, (9, 7, 11)).astype(np.int32), field(rng, (8, 10, 6))
    u[:, :4] = rng.integers(-2, 3, (3, 4, 10, 6)) / 2  # ties
    found = twin.warp_labels(device.upload(labels), np.eye(3, 4), device.upload(u)).numpy()
    assert np.array_equal(found, _core.warp_labels(labels, np.eye(3, 4), u))
    u = field(rng, (8, 10, 6), 0.5)
    np.testing.assert_allclose(twin.jacobian(device.upload(u)).numpy(), _core.jacobian(u), atol=1e-5)
    assert twin.least(device.upload(u)) == u.min()
    assert twin.least(device.upload(u.reshape(-1)[:3])) == u.reshape(-1)[:3].min()
    image = rng.random((2, 8, 5, 11), dtype=np.float32)
    sigmas, weights = (1.3, 0.0, 2.1), []
    for sigma in sigmas:
        x = np.arange(int(3 * sigma + 0.5) + 1)
        side = np.exp(-0.5 * (x / sigma) ** 2) if sigma else x
        weights.append((side / (2 * side.sum() - side[0])).tolist() if sigma else [])
    found = twin.gaussian(device.upload(image), weights).numpy()
    expected = np.stack([ndimage.gaussian_filter(c, sigmas, mode="nearest", truncate=3.0) for c in image])
    np.testing.assert_allclose(found, expected, atol=1e-7)
