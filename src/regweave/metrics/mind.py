"""Self-similarity context (MIND-SSC; Heinrich, Jenkinson, Papież, Brady, Schnabel, MICCAI 2013).

Each voxel is described by the distances between pairs of its six neighbouring patches, so the description survives
any change of contrast that is smooth over a few voxels.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from pydantic import Field
from scipy import ndimage

from regweave import metrics
from regweave.metrics.sad import cost, volume
from regweave.types import Float32Array

__all__ = ["Options", "cost", "features", "volume"]

PENALTY = "absolute"

SIX = [(d, 0, 0) for d in (-1, 1)] + [(0, d, 0) for d in (-1, 1)] + [(0, 0, d) for d in (-1, 1)]
# The twelve pairs of neighbours at distance √2 from each other; opposite neighbours are left out, as published.
PAIRS = [(p, q) for p, q in combinations(SIX, 2) if sum((a - b) ** 2 for a, b in zip(p, q, strict=True)) == 2]


class Options(metrics.Options):
    """Size of the neighbourhood.

    Parameters
    ----------
    distance_voxels : int
        Distance of the six neighbours from the voxel.
    radius_voxels : int
        Patches are cubes of 2 · radius + 1 voxels.
    """

    distance_voxels: int = Field(default=1, ge=1, le=4)
    radius_voxels: int = Field(default=1, ge=0, le=4)


def features(image: Float32Array, options: Options) -> Float32Array:
    """Self-similarity of the twelve pairs of neighbours, (12, X, Y, Z), in (0, 1]."""
    reach = options.distance_voxels
    padded = np.pad(image, reach, mode="edge")

    def neighbour(offset: tuple[int, int, int]) -> Float32Array:
        x, y, z = (slice(reach + o * reach, reach + o * reach + n) for o, n in zip(offset, image.shape, strict=True))
        return padded[x, y, z]

    size = 2 * options.radius_voxels + 1
    distances = np.stack(
        [ndimage.uniform_filter((neighbour(p) - neighbour(q)) ** 2, size, mode="nearest") for p, q in PAIRS]
    ).astype(np.float32)
    distances -= distances.min(axis=0)
    variance = distances.mean(axis=0)
    # The local noise estimate is kept within three decades of its mean, as in the publication.
    typical = variance.mean() + np.float32(1e-9)
    variance = variance.clip(0.001 * typical, 1000 * typical)
    return np.asarray(np.exp(-distances / variance), dtype=np.float32)
