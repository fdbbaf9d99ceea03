"""Every loss: zero on equal masks, in [0, 1], a cost volume of its readable definition, a sum over nodes."""

from pathlib import Path

import numpy as np
import pytest

from regweave import _core, losses
from regweave.errors import UsageError
from regweave.spatial.control_grid import ControlGrid, LabelSet, shift
from regweave.types import Geometry

SHAPE = (20, 18, 22)
LABELS = LabelSet((np.array([-2.0, 0.0, 1.5]), np.array([-0.5, 0.0]), np.array([-3.0, 0.0, 1.0])))


def masks(centre: tuple[float, float, float]) -> np.ndarray:
    """A ball, a box and a structure of three voxels, (C, X, Y, Z)."""
    index = np.moveaxis(np.indices(SHAPE), 0, -1) - np.array(centre)
    ball = (index**2).sum(axis=-1) < 25
    box = (np.abs(index + np.array([4, 0, 6])) < [2, 5, 2]).all(axis=-1) & ~ball
    small = np.zeros(SHAPE, dtype=bool)
    small[3:6, 2, 2] = True
    return np.stack([ball, box, small & ~ball & ~box]).astype(np.float32)


def grid_of(support: int | None = None) -> ControlGrid:
    return ControlGrid.cover(Geometry(SHAPE, np.eye(4)), 5.0, support)


@pytest.fixture(params=losses.available())
def loss(request):
    return losses.get(request.param)


def patches(mask: np.ndarray, grid: ControlGrid) -> np.ndarray:
    return grid.patches(mask).reshape(grid.n_nodes, -1).astype(np.float64)


def slow_dice(fixed, moved_by_label, grid):
    """Mean of 1 − Dice over the structures that the node sees in either mask under any label."""
    out = np.zeros((grid.n_nodes, len(moved_by_label)))
    for node in range(grid.n_nodes):
        for label, moved in enumerate(moved_by_label):
            values = []
            for c in range(len(fixed)):
                f = patches(fixed[c], grid)[node]
                seen = f.sum() + max(patches(m[c], grid)[node].sum() for m in moved_by_label) > 0
                m = patches(moved[c], grid)[node]
                total = f.sum() + m.sum()
                if seen:
                    values.append(1 - 2 * (f * m).sum() / total if total > 0 else 0.0)
            out[node, label] = np.mean(values) if values else 0.0
    return out


def slow_voxel(fixed, moved_by_label, grid):
    """Mean over structures of wrong voxels over the structure's mean volume in the nodes that it touches."""
    out = np.zeros((grid.n_nodes, len(moved_by_label)))
    for label, moved in enumerate(moved_by_label):
        for c in range(len(fixed)):
            sizes = patches(fixed[c], grid).sum(axis=1)
            mean = sizes.sum() / max((sizes > 0).sum(), 1)
            wrong = np.abs(patches(fixed[c], grid) - patches(moved[c], grid)).sum(axis=1)
            out[:, label] += np.minimum(wrong / max(mean, 1e-3), 1) / len(fixed)
    return out


SLOW = {"dice": slow_dice, "voxel": slow_voxel}


def test_definition_and_volume_against_loops():
    for name, slow in SLOW.items():
        loss = losses.get(name)
        fixed, moved = masks((10, 9, 11)), masks((11.4, 8, 12))
        grid = grid_of()
        few = LabelSet((np.array([-2.0, 0.0]), np.array([0.0]), np.array([0.0, 1.5])))
        shifted = [shift(moved, d) for d in few.vectors]
        fast = loss.volume(fixed, moved, grid, few.offsets, loss.Options())
        assert fast.shape == (grid.n_nodes, few.n_labels)
        assert fast.dtype == np.float32
        np.testing.assert_allclose(fast, slow(fixed, shifted, grid), atol=2e-5)
        np.testing.assert_allclose(
            loss.cost(fixed, moved, grid, loss.Options()), slow(fixed, [moved], grid)[:, 0], atol=2e-5
        )
    own = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    assert set(losses.available()) <= {*SLOW, *own}
    with pytest.raises(UsageError, match=r"E182: unknown loss 'dise'; did you mean dice\? available: .*dice.*voxel"):
        losses.get("dise")


@pytest.mark.parametrize("support", [None, 3, 9])
def test_volume_of_one_label_equals_the_cost_of_the_shifted_masks(loss, support):
    fixed, moved = masks((10, 9, 11)), masks((11.4, 8, 12))
    grid = grid_of(support)
    for d in LABELS.vectors[::3]:
        one = tuple(np.array([v]) for v in d)
        fast = loss.volume(fixed, moved, grid, one, loss.Options())[:, 0]
        np.testing.assert_allclose(fast, loss.cost(fixed, shift(moved, d), grid, loss.Options()), atol=1e-5)


def test_equal_masks_lose_nothing_and_a_missed_structure_all(loss):
    m = masks((10, 9, 11))
    assert loss.cost(m, m, grid_of(), loss.Options()).max() == pytest.approx(0, abs=1e-6)
    at_zero = int(np.abs(LABELS.vectors).sum(axis=1).argmin())
    volume = loss.volume(m, m, grid_of(), LABELS.offsets, loss.Options())
    assert np.abs(volume[:, at_zero]).max() < 1e-5
    assert volume.sum(axis=0).argmin() == at_zero
    empty = np.zeros((2, *SHAPE), dtype=np.float32)
    assert np.abs(loss.cost(empty, empty, grid_of(), loss.Options())).max() == 0
    assert np.abs(loss.volume(empty, empty, grid_of(), LABELS.offsets, loss.Options())).max() == 0
    fixed = np.ones((1, *SHAPE), dtype=np.float32)
    np.testing.assert_allclose(loss.cost(fixed, np.zeros_like(fixed), grid_of(), loss.Options()), 1.0, atol=1e-6)
    fixed, moved = masks((10, 9, 11)), masks((11, 8, 12))
    before, results = _core.threads(), []
    try:
        for n in (1, 2, 3):
            _core.set_threads(n)
            results.append(loss.volume(fixed, moved, grid_of(), LABELS.offsets, loss.Options()))
    finally:
        _core.set_threads(before)
    assert all(np.array_equal(results[0], r) for r in results[1:])


@pytest.mark.parametrize("support", [None, 3])
def test_within_zero_and_one_per_node(loss, support):
    for moved in (masks((14, 5, 7)), masks((3, 3, 3)), 1 - masks((10, 9, 11)), np.zeros((3, *SHAPE), np.float32)):
        volume = loss.volume(masks((10, 9, 11)), moved, grid_of(support), LABELS.offsets, loss.Options())
        assert volume.min() >= -1e-6
        assert volume.max() <= 1 + 1e-6


def test_a_node_loses_by_its_own_patch_alone(loss):
    """Δ is a sum over nodes: changing voxels that a node does not see changes nothing there."""
    fixed, moved = masks((10, 9, 11)), masks((11, 9, 11))
    grid = grid_of()
    before = loss.cost(fixed, moved, grid, loss.Options())
    changed = moved.copy()
    changed[0, 12:] = 0
    after = loss.cost(fixed, changed, grid, loss.Options())
    same = grid.patches((changed != moved).any(axis=0).astype(np.float32)).reshape(grid.n_nodes, -1).max(axis=1) == 0
    assert same.any()
    assert not same.all()
    np.testing.assert_array_equal(before[same], after[same])
    assert (before != after).any()
