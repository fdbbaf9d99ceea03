"""Kernels of cost volumes (N, L): nodes by displacement labels.

Each takes features of both images (C, X, Y, Z), starts and size of the supports, and the offsets along each axis.
"""

from __future__ import annotations

from regweave._core import (
    dwt_volume,
    mean_volume,
    mi_volume,
    ncc_volume,
    ngf_volume,
    overlap_volume,
    sad_volume,
    self_similarity,
    support_means,
    support_shares,
    weighted_unaries,
)

__all__ = [
    "dwt_volume",
    "mean_volume",
    "mi_volume",
    "ncc_volume",
    "ngf_volume",
    "overlap_volume",
    "sad_volume",
    "self_similarity",
    "support_means",
    "support_shares",
    "weighted_unaries",
]
