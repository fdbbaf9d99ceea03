"""Kernels of voxelwise costs and their derivatives by the displacement, and of the steps along these.

Each cost is returned, and its force (3, X, Y, Z) added to the array that the kernel is given.
"""

from __future__ import annotations

from regweave._core import (
    absolute_force,
    absolute_slope,
    bending_force,
    correlation_force,
    correlation_slope,
    descend,
    diffusion_force,
    mean_square_force,
    pulled_force,
    pulled_image,
    stiff_diffusion_force,
    tensor_force,
)

__all__ = [
    "absolute_force",
    "absolute_slope",
    "bending_force",
    "correlation_force",
    "correlation_slope",
    "descend",
    "diffusion_force",
    "mean_square_force",
    "pulled_force",
    "pulled_image",
    "stiff_diffusion_force",
    "tensor_force",
]
