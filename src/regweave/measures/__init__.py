"""Measures of registration quality: overlap, surface distance, regularity."""

from __future__ import annotations

from regweave.measures.deformation import folding_fraction, regularity, sdlogj, sdlogj_l2r
from regweave.measures.overlap import SurfaceDistances, assd_mm, dice, hd95_mm, surface_distances

__all__ = [
    "SurfaceDistances",
    "assd_mm",
    "dice",
    "folding_fraction",
    "hd95_mm",
    "regularity",
    "sdlogj",
    "sdlogj_l2r",
    "surface_distances",
]
