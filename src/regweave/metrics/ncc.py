"""Normalised cross-correlation in the support of each node, as the cost 1 − correlation."""

import numpy as np
from pydantic import Field

from regweave import _core, metrics
from regweave.spatial.control_grid import ControlGrid
from regweave.types import Float32Array

PENALTY = "correlation"


class Options(metrics.Options):
    """Guard against flat patches."""

    variance_floor: float = Field(default=1e-4, ge=1e-9, le=1)
    """Added to variances and covariance, so that two flat patches match; intensities are in [0, 1]."""
    squared: bool = False
    """Use 1 − correlation², which an inverted contrast matches as well; flat patches then cost 1."""


def features(image: Float32Array, options: Options) -> Float32Array:
    """Return the intensities themselves, (1, X, Y, Z)."""
    return image[None]


def cost(fixed: Float32Array, moved: Float32Array, grid: ControlGrid, options: Options) -> Float32Array:
    """Mean over channels of 1 − cov(W, J) / √(var W · var J) in the support of each node, in [0, 2]."""
    each = [_cost(f, m, grid, options) for f, m in zip(fixed, moved, strict=True)]
    return each[0] if len(each) == 1 else np.asarray(np.mean(each, axis=0, dtype=np.float32))


def _cost(fixed: Float32Array, moved: Float32Array, grid: ControlGrid, options: Options) -> Float32Array:
    w = grid.patches(moved).reshape(grid.n_nodes, -1).astype(np.float64)
    j = grid.patches(fixed).reshape(grid.n_nodes, -1).astype(np.float64)
    w, j = w - w.mean(axis=1, keepdims=True), j - j.mean(axis=1, keepdims=True)
    cov, var_w, var_j = ((p * q).mean(axis=1) for p, q in ((w, j), (w, w), (j, j)))
    norm = np.sqrt((var_w + options.variance_floor) * (var_j + options.variance_floor))
    if options.squared:
        return np.asarray(1 - (cov / norm) ** 2, dtype=np.float32)
    return np.asarray(1 - (cov + options.variance_floor) / norm, dtype=np.float32)


def volume(
    fixed: Float32Array, moved: Float32Array, grid: ControlGrid, offsets: metrics.Offsets, options: Options
) -> Float32Array:
    """Return the cost of every label, (N, L)."""
    arguments = (*grid.support_arguments, *offsets, options.variance_floor, options.squared)
    channels = zip(fixed[:, None], moved[:, None], strict=True)
    each = [_core.ncc_volume(f, m, *arguments) for f, m in channels]
    return each[0] if len(each) == 1 else np.asarray(np.mean(each, axis=0, dtype=np.float32))
