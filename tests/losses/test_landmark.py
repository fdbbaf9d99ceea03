"""The landmark loss: against loops, planted shifts, and its edges."""

import numpy as np
import pytest

from regweave.losses import landmark
from regweave.spatial.control_grid import ControlGrid, LabelSet, shift
from regweave.types import Geometry

DEFAULTS = landmark.Options()

SHAPE = (24, 20, 22)
LABELS = LabelSet((np.array([-2.0, 0.0, 1.5]), np.array([-1.0, 0.0, 0.5]), np.array([-3.0, 0.0, 2.0])))


def blobs(*starts, size=3):
    out = np.zeros((len(starts), *SHAPE), dtype=np.float32)
    for mask, (x, y, z) in zip(out, starts, strict=True):
        mask[x : x + size, y : y + size, z : z + size] = 1
    return out


def grid_of(spacing_mm=6.0, spacing=(1.0, 1.0, 1.0), support=None):
    return ControlGrid.cover(Geometry(SHAPE, np.diag([*spacing, 1.0])), spacing_mm, support)


def slow_cost(fixed, moved, grid):
    """Mean capped distance over the landmarks whose fixed centroid is among the voxels of the support."""
    out = np.zeros(grid.n_nodes)
    index = np.moveaxis(np.indices(SHAPE), 0, -1).astype(np.float64)
    boxes = np.stack([grid.patches(np.ascontiguousarray(index[..., a])).reshape(grid.n_nodes, -1) for a in range(3)], 2)
    for node, voxels in enumerate(boxes):
        values = []
        for f, m in zip(fixed, moved, strict=True):
            place, found = (np.average(index.reshape(-1, 3), axis=0, weights=w.ravel()) for w in (f, m))
            if (np.rint(place) == voxels).all(axis=1).any():
                values.append(min(1.0, np.sqrt((((found - place) / grid.spacing) ** 2).sum()) / 2.0))
        out[node] = np.mean(values) if values else 0.0
    return out


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (1.0, 1.0, 2.0)])
@pytest.mark.parametrize("support", [None, 9])
def test_cost_and_volume_against_loops(spacing, support):
    fixed = blobs((4, 5, 6), (5, 6, 6), (15, 10, 12))
    moved = blobs((6, 5, 7), (5, 8, 6), (11, 9, 9))
    grid = grid_of(spacing=spacing, support=support)
    volume = landmark.volume(fixed, moved, grid, LABELS.offsets, DEFAULTS)
    assert volume.shape == (grid.n_nodes, LABELS.n_labels)
    assert volume.dtype == np.float32
    for n, d in list(enumerate(LABELS.vectors))[::4]:
        np.testing.assert_allclose(volume[:, n], slow_cost(fixed, shift(moved, d), grid), atol=1e-6)
        np.testing.assert_allclose(volume[:, n], landmark.cost(fixed, shift(moved, d), grid, DEFAULTS), atol=1e-6)


def test_planted_shifts_and_missing_landmarks():
    fixed = blobs((10, 8, 9))
    moved = shift(fixed, -LABELS.vectors[7])
    volume = landmark.volume(fixed, moved, grid_of(), LABELS.offsets, DEFAULTS)
    holder = volume.max(axis=1).argmax()
    assert volume[holder].argmin() == 7
    assert volume[holder, 7] == pytest.approx(0, abs=1e-6)
    assert (np.delete(volume, holder, axis=0) == 0).all()
    fixed = blobs((10, 8, 9))
    grid = grid_of(6.0, (1.0, 1.0, 2.0))
    along_x, along_z = (
        landmark.cost(fixed, shift(fixed, np.array(d)), grid, DEFAULTS).max() for d in ((4.0, 0, 0), (0, 0, 2.0))
    )
    assert along_x == pytest.approx(4 / 6 / 2, abs=1e-6)
    assert along_z == pytest.approx(along_x, abs=1e-6)
    assert landmark.cost(blobs((0, 0, 0)), blobs((20, 16, 18)), grid_of(), DEFAULTS).max() == 1
    grid = grid_of(6.0, support=2)
    between = (grid.starts[0][1] + 2.5, float(grid.starts[1][1]), float(grid.starts[2][1]))
    held = landmark.holders(np.array(between), grid).reshape(grid.nodes)
    assert held.sum() == 1
    assert held[1, 1, 1]
    one, none = blobs((10, 8, 9)), np.zeros((1, *SHAPE), np.float32)
    grid = grid_of()
    assert landmark.volume(none, one, grid, LABELS.offsets, DEFAULTS).max() == 0
    lost = landmark.volume(one, none, grid, LABELS.offsets, DEFAULTS)
    np.testing.assert_array_equal(lost, np.where(grid.pool(one[0]) > 0, 1.0, 0.0)[:, None].repeat(27, axis=1))
    fixed, moved = blobs((4, 5, 6), (15, 10, 12)), blobs((6, 5, 7), (14, 10, 12))
    gone = fixed.copy()
    gone[0] = 0
    both, second = (landmark.volume(f, moved, grid_of(), LABELS.offsets, DEFAULTS) for f in (fixed, gone))
    np.testing.assert_array_equal(both[second.max(axis=1) > 0], second[second.max(axis=1) > 0])
