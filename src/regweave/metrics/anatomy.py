"""Correlation of learned structure maps: one minus the local correlation, averaged over the structures.

What is compared is not the image but how likely each structure is at each voxel, as the predictor of a model tells from
the image alone (`regweave.predictors`). It makes the same mistakes in both images, so that maps which are
wrong still match where the anatomy does.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from regweave import metrics
from regweave.metrics import ncc
from regweave.spatial.control_grid import ControlGrid
from regweave.types import Float32Array

PENALTY = "correlation"
SEES = "anatomy"


class Options(metrics.Options):
    """Options: what stands for the moving image, and the guard against flat patches.

    Parameters
    ----------
    outline : bool
        Take the moving labels instead of what the model makes of the moving image.
    variance_floor : float
        As in `ncc`; shares are in [0, 1], and differences of a tenth are noise.
    """

    outline: bool = False
    variance_floor: float = Field(default=1e-2, ge=1e-9, le=1)

    @property
    def squared(self) -> bool:
        """Signed correlation: the squared variant would also match inverted maps."""
        return False


def features(shares: Float32Array, options: Options) -> Float32Array:
    """Return the shares of the structures, (K, X, Y, Z), as they are."""
    return shares


def cost(fixed: Float32Array, moved: Float32Array, grid: ControlGrid, options: Options) -> Float32Array:
    """Mean over structures of 1 − correlation in the support of each node, in [0, 2]."""
    each = [ncc.cost(f[None], m[None], grid, _alone(options)) for f, m in zip(fixed, moved, strict=True)]
    return np.asarray(np.mean(each, axis=0, dtype=np.float32))


def volume(
    fixed: Float32Array, moved: Float32Array, grid: ControlGrid, offsets: metrics.Offsets, options: Options
) -> Float32Array:
    """Return the cost of every label, (N, L)."""
    each = [ncc.volume(f[None], m[None], grid, offsets, _alone(options)) for f, m in zip(fixed, moved, strict=True)]
    return np.asarray(np.mean(each, axis=0, dtype=np.float32))


def _alone(options: Options) -> ncc.Options:
    return ncc.Options(variance_floor=options.variance_floor)
