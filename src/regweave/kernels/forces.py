"""Kernels of voxelwise costs and their derivatives by the displacement.

Each returns its cost and adds its force (3, X, Y, Z) to the array that it is given.
"""

from __future__ import annotations

from regweave._core import (
    absolute_force,
    correlation_force,
    diffusion_force,
    stiff_diffusion_force,
    tensor_force,
)

__all__ = ["absolute_force", "correlation_force", "diffusion_force", "stiff_diffusion_force", "tensor_force"]
