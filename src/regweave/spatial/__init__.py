"""Spatial maps: free-form deformations, dense fields, their composition, inverse and effect on images."""

from __future__ import annotations

from regweave.spatial.deformation import adjoint, compose, determinant, evaluate, resample
from regweave.spatial.invert import Inversion, inverse_consistency_mm, inverse_errors_mm, invert
from regweave.spatial.warp import to_field, to_voxels, voxel_matrix, warp_image, warp_labels, warp_points

__all__ = [
    "Inversion",
    "adjoint",
    "compose",
    "determinant",
    "evaluate",
    "inverse_consistency_mm",
    "inverse_errors_mm",
    "invert",
    "resample",
    "to_field",
    "to_voxels",
    "voxel_matrix",
    "warp_image",
    "warp_labels",
    "warp_points",
]
