"""The label set in its order, and shifts against scipy."""

import itertools

import numpy as np
import pytest
from scipy import ndimage

from regweave.spatial.control_grid import LabelSet, shift


def test_cube_is_centred_and_in_c_order():
    labels = LabelSet.cube(5, np.array([0.5, 1.0, 2.0]))
    assert labels.n_labels == 125
    expected = list(itertools.product(*([k * s for k in (-2, -1, 0, 1, 2)] for s in (0.5, 1.0, 2.0))))
    assert labels.vectors.tolist() == [list(v) for v in expected]
    assert labels.vectors[62].tolist() == [0.0, 0.0, 0.0]
    units = labels.in_units_of(np.array([2.0, 4.0, 8.0]))
    for offsets in units:
        assert offsets.tolist() == [-0.5, -0.25, 0.0, 0.25, 0.5]


@pytest.mark.parametrize("per_axis", [1, 3, 7])
def test_zero_is_always_a_label(per_axis):
    vectors = LabelSet.cube(per_axis, np.full(3, 0.3)).vectors
    assert np.abs(vectors[per_axis**3 // 2]).max() == 0
    np.testing.assert_allclose(vectors, -vectors[::-1])


@pytest.mark.parametrize("displacement", [(0.0, 0.0, 0.0), (1.0, -2.0, 3.0), (0.25, -1.75, 2.5), (-0.999, 0.001, 0.5)])
def test_shift_against_scipy(displacement):
    image = np.random.default_rng(0).normal(size=(2, 12, 13, 14)).astype(np.float32)
    moved = shift(image, np.array(displacement))
    slow = [ndimage.shift(c.astype(np.float64), np.negative(displacement), order=1, mode="nearest") for c in image]
    inside = (..., *[slice(4, -4)] * 3)
    np.testing.assert_allclose(moved[inside], np.stack(slow)[inside], atol=1e-5)
    assert moved.dtype == np.float32
    assert moved.flags.c_contiguous
    voxel = moved[0, 5, 6, 7]
    index = np.array([5, 6, 7]) + displacement
    expected = ndimage.map_coordinates(image[0], index[:, None], order=1)[0]
    assert voxel == pytest.approx(expected, abs=1e-5)  # the sign: v shows what lay at v + displacement


def test_edge_voxels_repeat_outside():
    image = np.arange(5, dtype=np.float32).reshape(1, 5, 1, 1)
    assert shift(image, np.array([3.0, 0.0, 0.0])).ravel().tolist() == [3, 4, 4, 4, 4]
    assert shift(image, np.array([-30.0, 2.5, -7.0])).ravel().tolist() == [0, 0, 0, 0, 0]
