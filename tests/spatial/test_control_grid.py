"""Where the nodes are and which voxels they see, against loops over nodes."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regweave.spatial.control_grid import SLACK, ControlGrid
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
    np.testing.assert_allclose(grid.means(values[1, 2]), pooled[1, 2], rtol=1e-6)
