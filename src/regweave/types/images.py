"""Scalar images and label maps on a voxel grid."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from regweave.types.arrays import Float32Array, LabelArray
from regweave.types.geometry import Geometry

Modality = Literal["ct", "mr", "t1", "t2", "pd", "flair", "pet", "us"]
"""CT in Hounsfield units, or an image on a scale of its own; ``mr`` is any of these of which no more is said."""


@dataclass(frozen=True)
class Volume:
    """A scalar image on a grid: ``data`` float32 of shape ``geometry.shape``, and its modality once that is decided."""

    data: Float32Array
    geometry: Geometry
    modality: Modality | None = None


@dataclass(frozen=True)
class LabelMap:
    """A segmentation on a grid: ``data`` of any integer dtype, 0 is background, ``names`` by label value."""

    data: LabelArray
    geometry: Geometry
    names: Mapping[int, str] = dataclasses.field(default_factory=dict)

    def values(self) -> list[int]:
        """Labels present other than background, ascending."""
        return [int(v) for v in np.unique(self.data) if v != 0]

    def name(self, value: int) -> str:
        """Name of a label, or its number where it has none."""
        return self.names.get(value, str(value))
