"""Warps and fields: the twin of each GPU kernel against the compiled core."""

from __future__ import annotations

import numpy as np

from regweave.kernels import fields

MATRIX = np.array([[0.9, 0.1, 0.0, 0.3], [-0.1, 1.1, 0.05, -0.2], [0.0, 0.02, 0.8, 0.7]])


def field(rng, shape, size=2.0):
    return rng.normal(0, size, (3, *shape)).astype(np.float32)


def test_warp_pulls_every_channel_as_the_core_does(twin, device, rng):
    images = rng.random((2, 9, 7, 11), dtype=np.float32)
    u = field(rng, (8, 10, 6))
    found = twin.warp(device.upload(images), MATRIX, device.upload(u)).numpy()
    expected = fields.warp_channels(images, MATRIX, u)
    assert expected.std() > 0.1
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_warp_of_an_image_of_one_plane_has_no_neighbour_to_read(twin, device, rng):
    images, u = rng.random((1, 1, 5, 1), dtype=np.float32), field(rng, (2, 5, 3))
    found = twin.warp(device.upload(images), np.eye(3, 4), device.upload(u)).numpy()
    np.testing.assert_allclose(found, fields.warp_channels(images, np.eye(3, 4), u), atol=2e-6)
