"""Kernels of dense displacement fields, all in voxel units.

A field u (3, X, Y, Z) takes voxel p to p + u(p); a matrix (3, 4) takes that on to the moving grid.
"""

from __future__ import annotations

import numpy as np

from regweave._core import (
    arrange,
    compose,
    ffd,
    ffd_adjoint,
    hold_back,
    invert,
    jacobian,
    list_vectors,
    resample_field,
    round_trip,
    scale_channels,
    turn_vectors,
    warp,
    warp_labels,
    warp_nearest,
    warp_valid,
    zero_field,
)
from regweave.types import Float32Array, Float64Array

__all__ = [
    "arrange",
    "compose",
    "ffd",
    "ffd_adjoint",
    "hold_back",
    "invert",
    "jacobian",
    "list_vectors",
    "resample_field",
    "round_trip",
    "scale_channels",
    "turn_vectors",
    "warp",
    "warp_channels",
    "warp_labels",
    "warp_nearest",
    "warp_valid",
    "zero_field",
]


def warp_channels(channels: Float32Array, matrix: Float64Array, u: Float32Array) -> Float32Array:
    """Pull each of the images (C, X, Y, Z) through matrix ∘ (id + u); beyond the grid the border value holds."""
    return np.stack([warp(np.ascontiguousarray(c), matrix, u, 0.0, True) for c in channels])
