"""Decomposable Dice loss, eq. (3): one minus the Dice of the patches of each node, mean over the structures there.

A node where neither mask has a voxel of any structure under any label loses nothing.
"""

import numpy as np

from regweave import _core
from regweave.losses import Offsets, Options
from regweave.spatial.control_grid import ControlGrid
from regweave.types import Float32Array

EMPTY = 1e-6  # Patch volumes below this share are empty; empty against empty counts as Dice 1


def _loss(overlap: Float32Array, sizes: Float32Array) -> Float32Array:
    return np.where(sizes > EMPTY, 1 - 2 * overlap / np.maximum(sizes, np.float32(EMPTY)), np.float32(0))


def _mean_over_present(losses: Float32Array, present: Float32Array) -> Float32Array:
    total = np.maximum(present.sum(axis=0), 1)
    return np.asarray((losses * present).sum(axis=0) / total, dtype=np.float32)


def cost(fixed: Float32Array, moved: Float32Array, grid: ControlGrid, options: Options) -> Float32Array:
    """Patch-wise Dice loss of each node, (N,), over the structures that either mask shows there."""
    sizes = grid.pool(fixed) + grid.pool(moved)
    losses = _loss(grid.pool(fixed * moved), sizes)
    return _mean_over_present(losses, (sizes > EMPTY).astype(np.float32))


def volume(
    fixed: Float32Array, moved: Float32Array, grid: ControlGrid, offsets: Offsets, options: Options
) -> Float32Array:
    """Loss of every label, (N, L); the structures that count at a node are the same for all its labels."""
    shape = (len(fixed), grid.n_nodes, int(np.prod([len(o) for o in offsets])))
    losses, present = np.empty(shape, dtype=np.float32), np.empty((*shape[:2], 1), dtype=np.float32)
    for c in range(len(fixed)):
        arguments = (fixed[c : c + 1], moved[c : c + 1], *grid.support_arguments, *offsets)
        sizes = _core.mean_volume(*arguments) + grid.pool(fixed[c])[:, None]
        losses[c] = _loss(_core.overlap_volume(*arguments), sizes)
        present[c] = (sizes > EMPTY).any(axis=1, keepdims=True)
    return _mean_over_present(losses, present)
