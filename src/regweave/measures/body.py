"""Foreground of an image: Otsu's threshold, closed along its axes."""

import numpy as np
from numpy.typing import NDArray

from regweave import _core
from regweave.types import Float32Array, LabelMap, Volume

BINS = 256
ENCLOSED = 2  # A voxel between two of the foreground along this many axes is inside the body, as lungs do


def body_mask(image: Volume, labels: LabelMap | None = None) -> NDArray[np.bool_]:
    """Segment the body from the air by Otsu's threshold, which parts the histogram in two of least variance.

    ``labels`` are structures on the same grid, which always count as body. All True where the image has one value only.
    """
    bright = np.ascontiguousarray(bright_mask(image)).view(np.uint8)
    mask = np.asarray(_core.enclosed(bright, ENCLOSED)).view(np.bool_)
    return mask if labels is None else mask | (labels.data != 0)


def bright_mask(image: Volume) -> NDArray[np.bool_]:
    """Return the voxels above Otsu's threshold; all where the image has one value only."""
    low, high = float(image.data.min()), float(image.data.max())
    if low == high:
        return np.ones(image.data.shape, dtype=bool)
    return np.asarray(image.data > _otsu(image.data, low, high))


def _otsu(data: Float32Array, low: float, high: float) -> float:
    edges = np.linspace(low, high, BINS + 1)
    counts = _core.histogram(np.ascontiguousarray(data, dtype=np.float32), edges)
    share = counts / counts.sum()
    centres = (edges[:-1] + edges[1:]) / 2
    below, mean = np.cumsum(share), np.cumsum(share * centres)
    with np.errstate(divide="ignore", invalid="ignore"):
        between = (mean[-1] * below - mean) ** 2 / (below * (1 - below))
    # Between two far peaks all thresholds are as good: take the middle one, not the edge of the air.
    best = np.flatnonzero(np.isclose(between, np.nanmax(between), rtol=1e-9, atol=0.0))
    return float(edges[1:][best].mean())
