"""Warps and fields: the twin of each GPU kernel against the compiled core."""

import numpy as np
import pytest
from scipy import ndimage

from regweave import _core
from regweave.registration.cuda import CudaFields
from regweave.spatial.warp import determinant, inverse_errors_mm, invert, warp_channels, warp_image, warp_labels
from regweave.types import Field, Geometry, LabelMap, Transform, Volume

MATRIX = np.array([[0.9, 0.1, 0.0, 0.3], [-0.1, 1.1, 0.05, -0.2], [0.0, 0.02, 0.8, 0.7]])


def field(rng, shape, size=2.0):
    return rng.normal(0, size, (3, *shape)).astype(np.float32)


def test_warps_and_weights_are_those_of_the_core(twin, device, rng):
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
    u, shape = field(rng, (8, 10, 6)), (9, 7, 11)
    there, up = device.upload(u), device.upload
    inside = _core.warp_valid(shape, MATRIX, u).astype(np.float32)
    assert 0.1 < inside.mean() < 0.9
    np.testing.assert_array_equal(twin.warp_valid(shape, MATRIX, there, None, None).numpy(), inside)
    moving, fixed = rng.random(shape, dtype=np.float32), rng.random(u.shape[1:], dtype=np.float32)
    found = twin.warp_valid(shape, MATRIX, there, up(moving), up(fixed)).numpy()
    expected = inside * _core.warp(moving, MATRIX, u, 0.0, True) * fixed
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_compose_levels_and_free_form_deformation_are_those_of_the_core(twin, device, rng):
    u, d = field(rng, (8, 10, 6)), field(rng, (8, 10, 6))
    up = device.upload
    np.testing.assert_allclose(twin.compose(up(u), up(d)).numpy(), _core.compose(u, d), atol=5e-6)
    scale, offset = (0.5, 2.0, 1.0), (-0.25, 0.5, 0.1)
    found = twin.resample_field(up(u), (5, 4, 7), scale, offset, (1.0, 2.0, 0.5)).numpy()
    expected = _core.resample_field(u, (5, 4, 7), scale, offset) * np.float32([1, 2, 0.5])[:, None, None, None]
    np.testing.assert_allclose(found, expected, atol=5e-6)
    origin, spacing, nodes, shape = (-0.7, 0.2, -1.0), (2.3, 1.9, 3.0), (6, 5, 4), (10, 9, 7)
    lattice = twin.Lattice(device.queue, origin, spacing, nodes, shape)
    points, dense = (rng.normal(size=(3, *n)).astype(np.float32) for n in (nodes, shape))
    np.testing.assert_allclose(
        lattice.displacement(device.upload(points)).numpy(), _core.ffd(points, origin, spacing, shape), atol=2e-6
    )
    np.testing.assert_allclose(
        lattice.adjoint(device.upload(dense)).numpy(), _core.ffd_adjoint(dense, origin, spacing, nodes), atol=2e-5
    )


# Dense displacements: the twin of each GPU kernel against the compiled core and SciPy.
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


# Outputs of a registration: the twin of the GPU against the compiled core.
FIXED = Geometry((14, 12, 16), np.diag([1.0, 1.2, 2.0, 1.0]))
MOVING = Geometry((13, 15, 12), np.array([[1.1, 0.1, 0, 0.5], [0, 1.0, 0, -1], [0, 0, 2.4, 0.7], [0, 0, 0, 1]]))
AFFINE = np.array([[1.05, 0.04, 0, 0.3], [-0.03, 0.97, 0, 0.1], [0, 0.02, 1.0, -0.4], [0, 0, 0, 1]])


@pytest.fixture
def gpu(twin, device):
    return CudaFields(twin, device.queue)


@pytest.fixture
def transform(rng):
    u = ndimage.gaussian_filter(rng.normal(size=(3, *FIXED.shape)), (0, 2, 2, 2))
    return Transform(Field((1.5 * u / np.abs(u).max()).astype(np.float32), FIXED), AFFINE)


def test_warped_images_and_labels_are_those_of_the_core(gpu, transform, rng):
    image = Volume(rng.random(MOVING.shape, dtype=np.float32), MOVING)
    labels = LabelMap(rng.integers(0, 4, MOVING.shape).astype(np.int32), MOVING)
    expected = warp_image(image, transform, fill=-7.0).data
    assert (expected == -7).any()
    np.testing.assert_allclose(warp_image(image, transform, fill=-7.0, kernels=gpu).data, expected, atol=1e-5)
    found = warp_labels(labels, transform, kernels=gpu)
    assert np.array_equal(found.data, warp_labels(labels, transform).data)
    matrix, u = np.eye(3, 4), transform.field.data
    np.testing.assert_allclose(
        gpu.warp(image.data, matrix, u, 0.0, True), _core.warp(image.data, matrix, u, 0.0, True), atol=1e-5
    )


def test_the_inverse_and_determinants_are_those_of_the_core(gpu, transform, rng):
    ours, theirs = invert(transform, MOVING, kernels=gpu), invert(transform, MOVING)
    np.testing.assert_allclose(ours[0].field.data, theirs[0].field.data, atol=5e-3)
    assert ours[1].max() <= 1e-3
    errors = inverse_errors_mm(transform, ours[0])
    np.testing.assert_allclose(inverse_errors_mm(transform, ours[0], kernels=gpu), errors, atol=1e-5)
    assert np.isnan(errors).any()
    np.testing.assert_allclose(determinant(transform.field, kernels=gpu), determinant(transform.field), atol=1e-5)
    u = ndimage.gaussian_filter(rng.normal(size=(3, *FIXED.shape)), (0, 1, 1, 1))
    folding = Transform(Field((5 * u / np.abs(u).max()).astype(np.float32), FIXED))
    assert (determinant(folding.field) < 0).mean() > 0.05
    ours, theirs = ((invert(folding, FIXED, **by)[1] > 1e-3).mean() for by in ({"kernels": gpu}, {}))
    assert 0.01 < theirs < 0.5
    assert ours < 1.5 * theirs


# Arrays of a GPU: what is copied there comes back, memory is counted, wrong calls are refused.
def test_what_is_uploaded_comes_back_and_memory_goes_back_with_the_last_part(device):
    for dtype in [np.float32, np.float64, np.int32, np.uint8]:
        given = np.arange(24).reshape(2, 3, 4).astype(dtype)
        there = device.upload(given)
        back = device.download(there)
        assert there.shape == (2, 3, 4)
        assert back.dtype == dtype
        np.testing.assert_array_equal(back, given)
    free = device.queue.memory()[0]
    whole = device.upload(np.zeros((4, 1024), dtype=np.float32))
    part = whole.part(1, 3).reshaped([2048])
    del whole
    assert device.queue.memory()[0] < free
    assert part.numpy().shape == (2048,)
    del part
    assert device.queue.memory()[0] == free


def test_memory_that_is_not_there_and_other_shapes_are_refused(twin, device):
    with pytest.raises(twin.OutOfMemory, match="memory"):
        device.queue.zeros([1 << 40])
    u = device.upload(np.zeros((3, 4, 4, 4), dtype=np.float32))
    with pytest.raises(ValueError, match="type d and 4 axes"):
        twin.warp(device.upload(np.zeros((1, 4, 4, 4))), np.eye(3, 4), u)
    with pytest.raises(ValueError, match="3, X, Y, Z"):
        twin.warp(u, np.eye(3, 4), device.upload(np.zeros((2, 4, 4, 4), dtype=np.float32)))
    with pytest.raises(ValueError, match="finite"):
        twin.warp(u, np.full((3, 4), np.nan), u)
    back = twin.Queue(0).upload(np.arange(5, dtype=np.float32)).numpy()
    np.testing.assert_array_equal(back, np.arange(5))
