"""Self-similarity context (MIND-SSC; Heinrich, Jenkinson, Papież, Brady, Schnabel, MICCAI 2013).

Each voxel is described by the distances between pairs of its six neighbouring patches, so the description survives
any change of contrast that is smooth over a few voxels.
"""

from itertools import combinations

import numpy as np
from pydantic import Field

from regweave import _core, metrics
from regweave.metrics.sad import cost, volume
from regweave.types import Float32Array

__all__ = ["Options", "cost", "features", "volume"]

PENALTY = "absolute"

SIX = [(d, 0, 0) for d in (-1, 1)] + [(0, d, 0) for d in (-1, 1)] + [(0, 0, d) for d in (-1, 1)]
# The twelve pairs of neighbours at distance √2 from each other; opposite neighbours are left out, as published.
PAIRS = [(p, q) for p, q in combinations(SIX, 2) if sum((a - b) ** 2 for a, b in zip(p, q, strict=True)) == 2]

NOISE_RANGE = (0.001, 1000.0)
"""The local noise level is kept within these factors of its mean over the image, as in the publication."""


class Options(metrics.Options):
    """Size of the neighbourhood."""

    distance_voxels: int = Field(default=1, ge=1, le=4)
    """Distance of the six neighbours from the voxel."""
    radius_voxels: int = Field(default=1, ge=0, le=4)
    """Patches are cubes of 2 · radius + 1 voxels."""


def features(image: Float32Array, options: Options) -> Float32Array:
    """Self-similarity of the twelve pairs of neighbours, (12, X, Y, Z), in (0, 1].

    The distance of two patches is the mean squared difference of their voxels inside the image; from the twelve
    distances of a voxel the smallest is taken off, and their mean is the noise level that they are divided by.
    """
    pairs = np.array(PAIRS, dtype=np.int32) * np.int32(options.distance_voxels)
    return _core.self_similarity(image, pairs, options.radius_voxels, *NOISE_RANGE)
