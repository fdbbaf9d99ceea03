"""Mean absolute difference of intensities (the paper's SAD, as a mean so that it does not grow with the patch)."""

import numpy as np

from regweave import _core, metrics
from regweave.spatial.control_grid import ControlGrid
from regweave.types import Float32Array

PENALTY = "absolute"


class Options(metrics.Options):
    """No options."""


def features(image: Float32Array, options: Options) -> Float32Array:
    """Return the intensities themselves, (1, X, Y, Z)."""
    return image[None]


def cost(fixed: Float32Array, moved: Float32Array, grid: ControlGrid, options: Options) -> Float32Array:
    """Mean absolute difference in the support of each node, in [0, 1]."""
    return grid.pool(np.abs(fixed - moved).mean(axis=0))


def volume(
    fixed: Float32Array, moved: Float32Array, grid: ControlGrid, offsets: metrics.Offsets, options: Options
) -> Float32Array:
    """Return the cost of every label, (N, L)."""
    return _core.sad_volume(fixed, moved, *grid.support_arguments, *offsets)
