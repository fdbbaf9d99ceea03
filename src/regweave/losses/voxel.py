"""Voxel loss: wrong voxels of each node over the mean volume of the structure per node that it touches.

Nodes that hold a few voxels of an organ weigh as little as those voxels do in the final Dice, so this loss ranks
deformations as the final Dice ranks them; the patch-wise Dice of ``dice`` does not.
"""

import numpy as np

from regweave import _core
from regweave.losses import Offsets, Options
from regweave.spatial.control_grid import ControlGrid
from regweave.types import Float32Array


def _normalise(errors: Float32Array, sizes: Float32Array) -> Float32Array:
    """Divide errors (C, N, ...) by the mean size of the structure over the nodes that it touches."""
    touched = np.maximum((sizes > 0).sum(axis=1), 1)
    mean = np.maximum(sizes.sum(axis=1) / touched, np.float32(1e-6))
    scaled = errors / mean.reshape(-1, *(1,) * (errors.ndim - 1))
    return np.asarray(np.minimum(scaled, 1).mean(axis=0), dtype=np.float32)


def cost(fixed: Float32Array, moved: Float32Array, grid: ControlGrid, options: Options) -> Float32Array:
    """Voxel loss of each node, (N,)."""
    return _normalise(grid.pool(np.abs(fixed - moved)), grid.pool(fixed))


def volume(
    fixed: Float32Array, moved: Float32Array, grid: ControlGrid, offsets: Offsets, options: Options
) -> Float32Array:
    """Loss of every label, (N, L)."""
    errors = np.stack(
        [
            _core.sad_volume(fixed[c : c + 1], moved[c : c + 1], *grid.support_arguments, *offsets)
            for c in range(len(fixed))
        ]
    )
    return _normalise(errors, grid.pool(fixed))
