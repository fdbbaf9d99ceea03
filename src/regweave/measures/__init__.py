"""Measures of registration quality: overlap, surface distance, regularity."""

from __future__ import annotations

from regweave.measures.deformation import regularity
from regweave.measures.overlap import SurfaceDistances, dice, surface_distances

__all__ = ["SurfaceDistances", "dice", "regularity", "surface_distances"]
