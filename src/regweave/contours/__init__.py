"""Drawn structures as shapes: signed distances on the true slices, and sub-voxel outlines again."""

from __future__ import annotations

from regweave.contours.carry import carry, carry_set
from regweave.contours.labels import draw_labels, label_values
from regweave.contours.regions import dice_of_areas, overlap_ml, regions_of, volume_ml
from regweave.contours.shape import Shape, shape_of

__all__ = [
    "Shape",
    "carry",
    "carry_set",
    "dice_of_areas",
    "draw_labels",
    "label_values",
    "overlap_ml",
    "regions_of",
    "shape_of",
    "volume_ml",
]
