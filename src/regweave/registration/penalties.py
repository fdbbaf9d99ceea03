"""Voxel-wise penalties of the refinement: each returns its cost and adds its force.

A metric names its penalty in ``PENALTY``; the force is the derivative of the cost by a small displacement of the
moved image, (3, X, Y, Z), computed analytically in the core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from regweave.kernels import forces
from regweave.types import Float32Array

SMALL_DIFFERENCE = 0.01
"""Differences of features in [0, 1] below this are penalised quadratically."""

Penalty = Callable[[Float32Array, Float32Array, Float32Array, Float32Array, int, Any], float]


def absolute(
    fixed: Float32Array, moved: Float32Array, weight: Float32Array, force: Float32Array, radius: int, options: Any
) -> float:
    """Sum over voxels of weight × mean over channels of √(d² + ε²) − ε."""
    return float(forces.absolute_force(fixed, moved, weight, force, SMALL_DIFFERENCE))


def correlation(
    fixed: Float32Array, moved: Float32Array, weight: Float32Array, force: Float32Array, radius: int, options: Any
) -> float:
    """Sum over voxels of weight × mean over channels of (1 − correlation, or its square, in that radius)."""
    settings = (radius, options.variance_floor, options.squared)
    share = weight if len(fixed) == 1 else weight * np.float32(1 / len(fixed))
    channels = zip(fixed[:, None], moved[:, None], strict=True)
    return float(sum(forces.correlation_force(f, m, share, force, *settings) for f, m in channels))


def tensor(
    fixed: Float32Array, moved: Float32Array, weight: Float32Array, force: Float32Array, radius: int, options: Any
) -> float:
    """Sum over voxels of weight × ½ |ff' − mm'|²."""
    return float(forces.tensor_force(fixed, moved, weight, force))


PENALTIES: dict[str, Penalty] = {"absolute": absolute, "correlation": correlation, "tensor": tensor}
