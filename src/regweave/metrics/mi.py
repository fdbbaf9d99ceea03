"""Mutual information in the support of each node, as the cost H(J) − MI(W, J) = H(J | W).

Zero when the moved intensities determine the fixed ones by any relation; flat fixed patches always cost zero.
"""

from typing import Literal

import numpy as np

from regweave import _core, metrics
from regweave.spatial.control_grid import ControlGrid
from regweave.spatial.voxels import sampled
from regweave.types import Float32Array

SMALL_SUPPORT_VOXELS = 2000
"""Joint histograms of fewer voxels than this take 8 bins, larger ones 16: a sparse histogram overstates MI."""


class Options(metrics.Options):
    """Size of the joint histogram."""

    bins: Literal[8, 16, "auto"] = "auto"
    """Bins along each side; "auto" takes 8 for supports below 2000 voxels, else 16."""


def prepare(image: Float32Array) -> Float32Array:
    """Return the rank of each voxel among the foreground intensities, in [0, 1], (X, Y, Z).

    Bins of equal width on ranks are bins with quantile edges on intensities. The lowest intensity, which fills the
    background of most images, does not count as foreground.
    """
    knots, ranks = rank_knots(sampled(image), image.min())
    return _core.lookup(image, knots.astype(np.float64), ranks.astype(np.float64))


def rank_knots(values: Float32Array, low: np.float32) -> tuple[Float32Array, Float32Array]:
    """Intensities and their ranks, between which the rank is linear; values are a sample, low is the background."""
    foreground = values[values > low]
    if foreground.size == 0:
        return np.array([low]), np.zeros(1, dtype=np.float32)
    quantiles = np.quantile(foreground, np.linspace(0, 1, 65)).astype(np.float32)
    knots, first = np.unique(quantiles, return_index=True)
    ranks = np.linspace(0, 1, 65, dtype=np.float32)[first]
    if low < knots[0]:
        knots, ranks = np.concatenate([[low], knots]), np.concatenate([[np.float32(0)], ranks])
    return knots, ranks


def features(image: Float32Array, options: Options) -> Float32Array:
    """Return the ranks themselves, (1, X, Y, Z)."""
    return image[None]


def n_bins(grid: ControlGrid, options: Options) -> int:
    """Bins along each side of the joint histogram of a support."""
    if options.bins == "auto":
        return 8 if np.prod(grid.support) < SMALL_SUPPORT_VOXELS else 16
    return int(options.bins)


def cost(fixed: Float32Array, moved: Float32Array, grid: ControlGrid, options: Options) -> Float32Array:
    """H(J | W) in nats from the joint histogram of each support, in [0, log bins]."""
    n = n_bins(grid, options)
    w, j = ((a[0] * np.float32(n)).clip(0, n - 1).astype(int) for a in (moved, fixed))
    out = np.empty(grid.n_nodes, dtype=np.float32)
    for node, (pw, pj) in enumerate(zip(grid.patches(w), grid.patches(j), strict=True)):
        joint = np.bincount((pj * n + pw).ravel(), minlength=n * n).reshape(n, n) / pw.size
        out[node] = _entropy(joint) - _entropy(joint.sum(axis=0))
    return out.clip(0)


def _entropy(p: Float32Array) -> float:
    return float(-np.sum(p[p > 0] * np.log(p[p > 0])))


def volume(
    fixed: Float32Array, moved: Float32Array, grid: ControlGrid, offsets: metrics.Offsets, options: Options
) -> Float32Array:
    """Return the cost of every label, (N, L)."""
    n = n_bins(grid, options)
    scale = np.full(1, n, dtype=np.float32)
    w, j = _core.scale_channels(moved, scale), _core.scale_channels(fixed, scale)
    return _core.mi_volume(j, w, *grid.support_arguments, *offsets, n)
