"""Where the nodes are and which voxels they see, against loops over nodes."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import ndimage

from regweave import _core
from regweave.spatial.control_grid import RULES, SLACK, ControlGrid, LabelSet, numbers_of, one_hot, shift
from regweave.types import Geometry

GEOMETRY = Geometry((13, 9, 22), np.diag([2.0, 3.5, 1.0, 1.0]))
sizes = st.tuples(*[st.integers(4, 40)] * 3)
spacings = st.tuples(*[st.floats(0.3, 6.0)] * 3)


def boxes(grid: ControlGrid) -> list[tuple[slice, ...]]:
    """Support of each node in C order, as slices, from the centre of the node."""
    out = []
    for node in itertools.product(*(range(n) for n in grid.nodes)):
        box = []
        for axis, number in enumerate(node):
            size, n = grid.support[axis], grid.image_shape[axis]
            centre = grid.origin[axis] + number * grid.spacing[axis]
            start = min(max(int(np.rint(np.round(centre - (size - 1) / 2, 4))), 0), n - size)
            box.append(slice(start, start + size))
        out.append(tuple(box))
    return out


@settings(max_examples=60, deadline=None)
@given(sizes, spacings, st.floats(2.0, 60.0), st.one_of(st.none(), st.integers(2, 64)))
def test_cover_reaches_every_voxel_and_no_further_than_a_spacing(shape, voxel_mm, spacing_mm, support):
    geometry = Geometry(shape, np.diag([*voxel_mm, 1.0]))
    grid = ControlGrid.cover(geometry, spacing_mm, support)
    last = grid.origin + (np.array(grid.nodes) - 1) * grid.spacing
    ends = np.array(shape) - 1.0
    slack = SLACK * grid.spacing / 2  # what rounding in a header explains, half of it at each end
    assert (grid.origin <= slack + 1e-6).all()
    assert (last >= ends - slack - 1e-6).all()
    assert (last - ends < grid.spacing / 2 + 1e-6).all()
    np.testing.assert_allclose(-grid.origin, last - ends, atol=1e-6)  # centred
    np.testing.assert_allclose(grid.spacing * geometry.spacing_mm, spacing_mm)
    for axis, start in enumerate(grid.starts):
        assert start.min() >= 0
        assert start.max() + grid.support[axis] <= shape[axis]
        assert len(start) == grid.nodes[axis]
        assert 1 <= grid.support[axis] <= shape[axis]


@settings(max_examples=30, deadline=None)
@given(sizes, st.floats(1.0, 16.0))
def test_every_has_one_spacing_in_voxels(shape, spacing):
    grid = ControlGrid.every(shape, spacing)
    last = grid.origin + (np.array(grid.nodes) - 1) * spacing
    assert grid.spacing.tolist() == [spacing] * 3
    assert (grid.origin <= 1e-6).all()
    assert (last >= np.array(shape) - 1 - 1e-6).all()
    assert ((np.array(grid.nodes) - 2) * spacing < np.array(shape) - 1).all()


def test_supports_of_one_spacing_leave_no_voxel_out():
    assert ControlGrid.cover(GEOMETRY, 7.0).support == (4, 2, 7)  # 7/2 = 3.5 rounds to even
    assert ControlGrid.cover(GEOMETRY, 7.0, 5).support == (5, 5, 5)
    assert ControlGrid.cover(GEOMETRY, 60.0).support == GEOMETRY.shape  # cut to the image
    grid = ControlGrid.cover(Geometry((17, 12, 20), np.eye(4)), 4.0)
    seen = np.zeros(grid.image_shape, dtype=int)
    for box in boxes(grid):
        seen[box] += 1
    assert seen.min() >= 1
    grid = ControlGrid.cover(GEOMETRY, 7.0)
    *starts, size = grid.support_arguments
    assert size == grid.support
    corners = [tuple(s.start for s in box) for box in boxes(grid)]
    assert corners == list(itertools.product(*(s.tolist() for s in starts)))


@pytest.mark.parametrize("support", [None, 3, 8, 64])
def test_pool_and_patches_against_loops(support):
    rng = np.random.default_rng(0)
    grid = ControlGrid.cover(GEOMETRY, 7.0, support)
    values = rng.normal(1000.0, 1.0, (2, 3, *GEOMETRY.shape)).astype(np.float32)
    pooled, patches = grid.pool(values), grid.patches(values[1, 2])
    assert pooled.shape == (2, 3, grid.n_nodes)
    assert pooled.dtype == patches.dtype == np.float32
    for node, box in enumerate(boxes(grid)):
        expected = values[(..., *box)].astype(np.float64).mean(axis=(-1, -2, -3))
        np.testing.assert_allclose(pooled[..., node], expected, rtol=1e-6)
        np.testing.assert_array_equal(patches[node], values[(1, 2, *box)])
    np.testing.assert_allclose(_core.support_means(values[1, 2], *grid.support_arguments), pooled[1, 2], rtol=1e-6)


# The label set in its order, and shifts against scipy.
def test_cubes_and_shifts():
    labels = LabelSet.cube(5, np.array([0.5, 1.0, 2.0]))
    assert labels.n_labels == 125
    expected = list(itertools.product(*([k * s for k in (-2, -1, 0, 1, 2)] for s in (0.5, 1.0, 2.0))))
    assert labels.vectors.tolist() == [list(v) for v in expected]
    assert labels.vectors[62].tolist() == [0.0, 0.0, 0.0]
    units = labels.in_units_of(np.array([2.0, 4.0, 8.0]))
    for offsets in units:
        assert offsets.tolist() == [-0.5, -0.25, 0.0, 0.25, 0.5]
    for per_axis in [1, 3, 7]:
        vectors = LabelSet.cube(per_axis, np.full(3, 0.3)).vectors
        assert np.abs(vectors[per_axis**3 // 2]).max() == 0
        np.testing.assert_allclose(vectors, -vectors[::-1])
    for displacement in [(0.0, 0.0, 0.0), (1.0, -2.0, 3.0), (0.25, -1.75, 2.5), (-0.999, 0.001, 0.5)]:
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
    image = np.arange(5, dtype=np.float32).reshape(1, 5, 1, 1)
    assert shift(image, np.array([3.0, 0.0, 0.0])).ravel().tolist() == [3, 4, 4, 4, 4]
    assert shift(image, np.array([-30.0, 2.5, -7.0])).ravel().tolist() == [0, 0, 0, 0, 0]


# Class rules on shares small enough to check by eye.
SHARES = np.array(
    [
        [1.0, 0.0, 0.0],  # background alone
        [0.5, 0.3, 0.2],  # background has the most, two structures
        [0.2, 0.3, 0.5],
        [0.94, 0.02, 0.04],  # 6 % foreground
        [0.96, 0.03, 0.01],  # 4 % foreground
        [0.4, 0.4, 0.2],  # a tie goes to the first
        [0.0, 0.5, 0.5],
    ],
    dtype=np.float32,
)
WINNERS = {"count": [0, 0, 2, 0, 0, 0, 1], "foreground": [0, 1, 2, 2, 0, 1, 1]}


def test_labels_are_counted_as_their_masks_are_pooled():
    rng = np.random.default_rng(0)
    classes = (0, 5, 2, 40)
    labels = rng.choice([0, 2, 5, 9, 40], size=(17, 12, 15))
    numbers = numbers_of(labels, classes)
    np.testing.assert_array_equal(np.eye(4, dtype=np.float32)[numbers], np.moveaxis(one_hot(labels, classes), 0, -1))
    for support in (2, 5, 9):
        grid = ControlGrid.cover(Geometry(labels.shape, np.diag([2.0, 2.0, 3.0, 1.0])), 9.0, support)
        np.testing.assert_array_equal(grid.shares(numbers, 4), grid.pool(one_hot(labels, classes)).T)


def test_rules_of_classes():
    for rule in sorted(WINNERS):
        np.testing.assert_array_equal(RULES[rule](SHARES), np.eye(3, dtype=np.float32)[WINNERS[rule]])
    np.testing.assert_allclose(RULES["share"](SHARES), SHARES, atol=1e-6)
    np.testing.assert_allclose(RULES["share"](3 * SHARES), SHARES, atol=1e-6)
    assert set(RULES) == {*WINNERS, "share"}
    labels = np.array([[[0, 3, 7, 9]]], dtype=np.uint16)
    masks = one_hot(labels, (0, 3, 9))
    assert masks.dtype == np.float32
    assert masks[:, 0, 0].tolist() == [[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]]
    for rule in sorted(RULES):
        per_label = np.stack([SHARES, SHARES[::-1]], axis=1)
        before = per_label.copy()
        out = RULES[rule](per_label)
        assert out.dtype == np.float32
        np.testing.assert_allclose(out.sum(axis=-1), 1.0, atol=1e-6)
        np.testing.assert_array_equal(out[:, 0], RULES[rule](SHARES))
        np.testing.assert_array_equal(out[:, 1], RULES[rule](SHARES[::-1]))
        np.testing.assert_array_equal(per_label, before)
