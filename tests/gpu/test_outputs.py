"""Outputs of a registration: the twin of the GPU against the compiled core."""

import numpy as np
import pytest
from scipy import ndimage

from regweave import _core
from regweave.registration.cuda import CudaFields
from regweave.spatial.warp import determinant, inverse_errors_mm, invert, warp_image, warp_labels
from regweave.types import Field, Geometry, LabelMap, Transform, Volume

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


def test_the_inverse_and_determinants_are_those_of_the_core(gpu, transform):
    ours, theirs = invert(transform, MOVING, kernels=gpu), invert(transform, MOVING)
    np.testing.assert_allclose(ours[0].field.data, theirs[0].field.data, atol=5e-3)
    assert ours[1].max() <= 1e-3
    errors = inverse_errors_mm(transform, ours[0])
    np.testing.assert_allclose(inverse_errors_mm(transform, ours[0], kernels=gpu), errors, atol=1e-5)
    assert np.isnan(errors).any()
    np.testing.assert_allclose(determinant(transform.field, kernels=gpu), determinant(transform.field), atol=1e-5)


def test_folds_are_inverted_nearly_as_often_as_by_the_core(gpu, rng):
    u = ndimage.gaussian_filter(rng.normal(size=(3, *FIXED.shape)), (0, 1, 1, 1))
    folding = Transform(Field((5 * u / np.abs(u).max()).astype(np.float32), FIXED))
    assert (determinant(folding.field) < 0).mean() > 0.05
    ours, theirs = ((invert(folding, FIXED, **by)[1] > 1e-3).mean() for by in ({"kernels": gpu}, {}))
    assert 0.01 < theirs < 0.5
    assert ours < 1.5 * theirs
