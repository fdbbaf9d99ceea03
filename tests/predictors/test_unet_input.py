"""Input channels of a network: fixed windows for CT, percentiles of what is above the minimum for MR."""

import numpy as np
import pytest

from regweave.predictors.unet import channels, n_channels, strides_for


def test_ct_channels_are_two_fixed_windows():
    hu = np.linspace(-2000, 3000, 501).reshape(3, 167, 1)

    found = channels(hu, "ct")

    wanted = [np.clip((hu + 160) / 400, 0, 1) * 2 - 1, np.clip((hu + 1000) / 2500, 0, 1) * 2 - 1]
    assert found.dtype == np.float32
    assert found.shape == (n_channels("ct"), 3, 167, 1)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_mr_percentiles_do_not_count_what_surrounds_the_body():
    body = np.random.default_rng(0).uniform(100, 200, (10, 10, 10))
    padded = np.zeros((20, 20, 20))
    padded[:10, :10, :10] = body

    found = channels(padded, "mr")

    low, high = np.percentile(body, [0.5, 99.5])
    np.testing.assert_allclose(found[0, :10, :10, :10], (body - low) / (high - low) * 2 - 1, atol=1e-5)
    assert found[0, -1, -1, -1] == np.float32(-1.2)
    assert found.shape[0] == n_channels("mr")


@pytest.mark.parametrize("scale", [0.01, 30.0])
def test_mr_channel_does_not_depend_on_the_scale_of_the_image(scale):
    image = np.random.default_rng(1).normal(500, 100, (12, 12, 12))

    np.testing.assert_allclose(channels(image * scale, "mr"), channels(image, "mr"), atol=1e-5)


@pytest.mark.parametrize("image", [np.full((3, 3, 3), 7.0), np.array([[[0.0, 0.0, 5.0]]])], ids=["one", "two values"])
def test_mr_image_without_a_range_stays_finite(image):
    assert np.isfinite(channels(image, "mr")).all()


@pytest.mark.parametrize(
    ("spacing_mm", "shape", "strides"),
    [
        ((1, 1, 1), (64, 64, 64), ((2, 2, 2), (2, 2, 2), (2, 2, 2))),
        ((2.5, 2.5, 10), (64, 64, 12), ((2, 2, 1), (2, 2, 1), (2, 2, 2))),
        ((3.2, 3.2, 7.7), (96, 80, 36), ((2, 2, 1), (2, 2, 2), (2, 2, 2))),
        ((1, 1, 1), (5, 16, 64), ((1, 2, 2), (1, 2, 2), (1, 1, 2))),
        ((1, 1, 1), (5, 5, 5), ((1, 1, 1), (1, 1, 1), (1, 1, 1))),
    ],
    ids=["cubes", "thick slices", "thicker slices", "a short axis", "small"],
)
def test_pooling_makes_cubes_first_and_keeps_four_voxels(spacing_mm, shape, strides):
    assert strides_for(spacing_mm, shape) == strides
