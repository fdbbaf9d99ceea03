"""Kernels that measure images, surfaces of masks, and the equations of an affine fit."""

from __future__ import annotations

from regweave._core import (
    distance_to_surface,
    enclosed,
    histogram,
    log_spread,
    normal_equations,
    plane_distance,
    profiles,
    surface_net,
)

__all__ = [
    "distance_to_surface", "enclosed", "histogram", "log_spread", "normal_equations", "plane_distance", "profiles",
    "surface_net"
]  # fmt: skip
