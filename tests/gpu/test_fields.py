"""Warps and fields: the twin of each GPU kernel against the compiled core."""

import numpy as np

from regweave import _core
from regweave.spatial.warp import warp_channels

MATRIX = np.array([[0.9, 0.1, 0.0, 0.3], [-0.1, 1.1, 0.05, -0.2], [0.0, 0.02, 0.8, 0.7]])


def field(rng, shape, size=2.0):
    return rng.normal(0, size, (3, *shape)).astype(np.float32)


def test_warp_pulls_every_channel_as_the_core_does(twin, device, rng):
    images = rng.random((2, 9, 7, 11), dtype=np.float32)
    u = field(rng, (8, 10, 6))
    found = twin.warp(device.upload(images), MATRIX, device.upload(u)).numpy()
    expected = warp_channels(images, MATRIX, u)
    assert expected.std() > 0.1
    np.testing.assert_allclose(found, expected, atol=2e-6)
    images, u = rng.random((1, 1, 5, 1), dtype=np.float32), field(rng, (2, 5, 3))
    found = twin.warp(device.upload(images), np.eye(3, 4), device.upload(u)).numpy()
    np.testing.assert_allclose(found, warp_channels(images, np.eye(3, 4), u), atol=2e-6)
    labels, u = rng.integers(0, 9, (9, 7, 11), dtype=np.int32), field(rng, (8, 10, 6))
    found = twin.warp_nearest(device.upload(labels), MATRIX, device.upload(u), 4).numpy()
    np.testing.assert_array_equal(found, _core.warp_nearest(labels, MATRIX, u, 4))


def test_valid_weighs_the_inside_by_both_masks(twin, device, rng):
    u, shape = field(rng, (8, 10, 6)), (9, 7, 11)
    there, up = device.upload(u), device.upload
    inside = _core.warp_valid(shape, MATRIX, u).astype(np.float32)
    assert 0.1 < inside.mean() < 0.9
    np.testing.assert_array_equal(twin.warp_valid(shape, MATRIX, there, None, None).numpy(), inside)
    moving, fixed = rng.random(shape, dtype=np.float32), rng.random(u.shape[1:], dtype=np.float32)
    found = twin.warp_valid(shape, MATRIX, there, up(moving), up(fixed)).numpy()
    expected = inside * _core.warp(moving, MATRIX, u, 0.0, True) * fixed
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_compose_and_change_of_level_are_those_of_the_core(twin, device, rng):
    u, d = field(rng, (8, 10, 6)), field(rng, (8, 10, 6))
    up = device.upload
    np.testing.assert_allclose(twin.compose(up(u), up(d)).numpy(), _core.compose(u, d), atol=5e-6)
    scale, offset = (0.5, 2.0, 1.0), (-0.25, 0.5, 0.1)
    found = twin.resample_field(up(u), (5, 4, 7), scale, offset, (1.0, 2.0, 0.5)).numpy()
    expected = _core.resample_field(u, (5, 4, 7), scale, offset) * np.float32([1, 2, 0.5])[:, None, None, None]
    np.testing.assert_allclose(found, expected, atol=5e-6)


def test_free_form_deformation_and_its_transpose_are_those_of_the_core(twin, device, rng):
    origin, spacing, nodes, shape = (-0.7, 0.2, -1.0), (2.3, 1.9, 3.0), (6, 5, 4), (10, 9, 7)
    lattice = twin.Lattice(device.queue, origin, spacing, nodes, shape)
    points, dense = (rng.normal(size=(3, *n)).astype(np.float32) for n in (nodes, shape))
    np.testing.assert_allclose(
        lattice.displacement(device.upload(points)).numpy(), _core.ffd(points, origin, spacing, shape), atol=2e-6
    )
    np.testing.assert_allclose(
        lattice.adjoint(device.upload(dense)).numpy(), _core.ffd_adjoint(dense, origin, spacing, nodes), atol=2e-5
    )
