"""The surface loss: against loops, and that it ranks as surface distances do."""

import numpy as np
import pytest
from scipy import ndimage

from regweave.losses import surface
from regweave.spatial.control_grid import ControlGrid, LabelSet, shift
from regweave.types import Geometry

DEFAULTS = surface.Options()

SHAPE = (16, 14, 18)


def ball(centre, radius, shape=SHAPE):
    index = np.moveaxis(np.indices(shape), 0, -1) - np.array(centre)
    return ((index**2).sum(axis=-1) < radius**2).astype(np.float32)


def grid_of(spacing_mm=5.0, affine=None, support=None, shape=SHAPE):
    return ControlGrid.cover(Geometry(shape, np.eye(4) if affine is None else affine), spacing_mm, support)


def slow_weights(mask, spacing):
    """Distance to the nearest voxel of the other kind, less half a voxel, by trying all of them."""
    inside, outside = np.argwhere(mask) / spacing, np.argwhere(~mask) / spacing
    out = np.ones(mask.shape)
    if len(inside) == 0 or len(outside) == 0:
        return out
    half = 0.5 / max(spacing)
    depths = np.array([np.sqrt(((outside - p) ** 2).sum(axis=1).min()) - half for p in inside])
    heights = np.array([np.sqrt(((inside - p) ** 2).sum(axis=1).min()) - half for p in outside])
    out[mask] = np.minimum(depths / min(1.0, depths.max()), 1)
    out[~mask] = np.minimum(heights, 1)
    return out


def slow_cost(fixed, moved, grid):
    out = np.zeros(grid.n_nodes)
    for f, m in zip(fixed, moved, strict=True):
        wrong = grid.patches((slow_weights(f > 0, grid.spacing) * np.abs(f - m)).astype(np.float32))
        sizes = grid.patches(f).reshape(grid.n_nodes, -1).mean(axis=1)
        mean = sizes[sizes > 0].mean() if (sizes > 0).any() else 1.0
        out += np.minimum(wrong.reshape(grid.n_nodes, -1).mean(axis=1) / mean, 1) / len(fixed)
    return out


@pytest.mark.parametrize("affine", [np.eye(4), np.diag([1.0, 1.0, 2.5, 1.0])])
@pytest.mark.parametrize("support", [None, 4])
def test_cost_and_volume_against_loops(affine, support):
    thin = np.zeros(SHAPE, dtype=np.float32)
    thin[4:12, 5, 6:8] = 1
    fixed = np.stack([ball((8, 7, 9), 5), thin, np.zeros(SHAPE, np.float32), ball((0, 0, 0), 4)])
    moved = np.stack([ball((9, 6, 10), 4), thin, ball((4, 4, 4), 2), ball((0, 1, 1), 4)])
    grid = grid_of(affine=affine, support=support)
    np.testing.assert_allclose(surface.cost(fixed, moved, grid, DEFAULTS), slow_cost(fixed, moved, grid), atol=2e-6)
    labels = LabelSet((np.array([-2.0, 0.0]), np.array([0.5]), np.array([-1.0, 0.0, 1.5])))
    volume = surface.volume(fixed, moved, grid, labels.offsets, DEFAULTS)
    assert volume.dtype == np.float32
    for n, d in enumerate(labels.vectors):
        np.testing.assert_allclose(volume[:, n], slow_cost(fixed, shift(moved, d), grid), atol=2e-5)


def test_far_errors_and_lost_structures_cost_more():
    fixed = ball((8, 7, 9), 4)[None]
    near, far = fixed.copy(), fixed.copy()
    rim = ndimage.binary_dilation(fixed[0]) & (fixed[0] == 0)
    near[0][tuple(np.argwhere(rim)[:20].T)] = 1
    far[0, :5, :2, :2] = 1
    grid = grid_of()
    assert (near - fixed).sum() == (far - fixed).sum()
    assert surface.cost(fixed, far, grid, DEFAULTS).sum() > 3 * surface.cost(fixed, near, grid, DEFAULTS).sum()
    fixed = np.zeros((1, *SHAPE), dtype=np.float32)
    fixed[0, 3:13, 7, 9] = 1
    cost = surface.cost(fixed, np.zeros_like(fixed), grid_of(), DEFAULTS)
    assert cost.max() > 0.5
    mask = ball((20, 9, 9), 3, (40, 18, 20))
    whole = np.minimum(ndimage.distance_transform_edt(mask == 0, sampling=1 / 5.0) - 0.1, 1)
    weights = surface.weights(mask[None], np.full(3, 5.0), 1.0)[0]
    np.testing.assert_allclose(weights[mask == 0], whole[mask == 0], atol=1e-6)
    # A face that moves by δ voxels costs about (δ / spacing)² where it cuts the supports in halves.
    fixed = np.zeros((1, 48, 48, 48), dtype=np.float32)
    fixed[:, :24] = 1
    grid = ControlGrid((48, 48, 48), (4, 4, 4), np.full(3, 5.5), np.full(3, 12.0), (12, 12, 12))
    face = ControlGrid((48, 48, 48), (1, 4, 4), np.array([23.5, 5.5, 5.5]), grid.spacing, grid.support)
    for delta in (2, 4, 6):
        moved = np.roll(fixed, delta, axis=1)
        moved[:, :delta] = 1
        np.testing.assert_allclose(surface.cost(fixed, moved, face, DEFAULTS), (delta / 12) ** 2, rtol=1e-5)
