"""Images with their companions, and pairs of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from regweave.types.arrays import Float32Array, Float64Array
from regweave.types.geometry import Geometry
from regweave.types.images import LabelMap, Volume
from regweave.types.transform import Field


@dataclass(frozen=True)
class StructureMaps:
    """Probability maps of structures.

    Parameters
    ----------
    shares : float32 array of shape (K, X, Y, Z)
        Probability of each structure, in [0, 1]; what is left to 1 is background.
    geometry : Geometry
        Grid of the maps, which may be coarser than that of the image.
    classes : tuple of ints
        Label value of each structure, (K,).
    """

    shares: Float32Array
    geometry: Geometry
    classes: tuple[int, ...]


@dataclass(frozen=True)
class Image(Volume):
    """Scalar image with its labels, mask and structure maps.

    Parameters
    ----------
    labels : LabelMap, optional
        Segmentation on the grid of the image.
    mask : LabelMap, optional
        Region that counts, on the grid of the image: 0 is outside.
    maps : StructureMaps, optional
        Structure maps that a predictor made from the voxels.
    label_maps : StructureMaps, optional
        Structure maps rasterised from a segmentation, given or predicted; same structures in the same order.
    """

    labels: LabelMap | None = None
    mask: LabelMap | None = None
    maps: StructureMaps | None = None
    label_maps: StructureMaps | None = None

    @classmethod
    def of(cls, volume: Volume, labels: LabelMap | None = None, mask: LabelMap | None = None) -> Image:
        """Return a volume with its companions."""
        return cls(volume.data, volume.geometry, volume.modality, labels, mask)


@dataclass(frozen=True)
class ImagePair:
    """Two images and the start of their registration.

    Parameters
    ----------
    fixed, moving : Image
        The images, each on its own grid. The moving labels choose the weights; the fixed ones are used by the loss
        and by the evaluation, never by a prediction.
    initial : float array of shape (4, 4)
        Affine start: takes LPS millimetres of the fixed image to those of the moving image.
    initial_field : Field, optional
        Deformable start, applied before ``initial``: fixed p → initial(p + field(p)).
    """

    fixed: Image
    moving: Image
    initial: Float64Array = dataclasses.field(default_factory=lambda: np.eye(4))
    initial_field: Field | None = None

    @property
    def fixed_labels(self) -> LabelMap | None:
        """Segmentation of the fixed image."""
        return self.fixed.labels

    @property
    def moving_labels(self) -> LabelMap | None:
        """Segmentation of the moving image."""
        return self.moving.labels

    def with_fixed(self, **companions: Any) -> ImagePair:
        """Return the pair with other companions of the fixed image."""
        return dataclasses.replace(self, fixed=dataclasses.replace(self.fixed, **companions))

    def with_moving(self, **companions: Any) -> ImagePair:
        """Return the pair with other companions of the moving image."""
        return dataclasses.replace(self, moving=dataclasses.replace(self.moving, **companions))
