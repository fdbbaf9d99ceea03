"""Pairs of images with their companions."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from regweave.types.arrays import Float32Array, Float64Array
from regweave.types.geometry import Geometry
from regweave.types.images import LabelMap, Volume
from regweave.types.transform import Field


@dataclass(frozen=True)
class Anatomy:
    """How likely each structure is at each voxel.

    Parameters
    ----------
    shares : float32 array of shape (K, X, Y, Z)
        In [0, 1]; what is left to 1 is background.
    geometry : Geometry
        Grid of the shares, which may be coarser than that of the image.
    """

    shares: Float32Array
    geometry: Geometry


@dataclass(frozen=True)
class Anatomies:
    """What a model makes out in both images of a pair, the same structures in the same order.

    Parameters
    ----------
    fixed, moving : Anatomy
        As the model sees the images.
    outline : Anatomy
        The moving labels instead, where they are known.
    """

    fixed: Anatomy
    moving: Anatomy
    outline: Anatomy


@dataclass(frozen=True)
class ImagePair:
    """What one registration starts from.

    Parameters
    ----------
    fixed, moving : Volume
        The images, each on its own grid.
    fixed_labels, moving_labels : LabelMap, optional
        Segmentations on the grids of their images. The moving one chooses the weights; the fixed one is used
        by the loss and by the evaluation, never by a prediction.
    initial : float array of shape (4, 4)
        Affine start: takes LPS millimetres of the fixed image to those of the moving image.
    initial_field : Field, optional
        Deformable start, applied before ``initial``: fixed p → initial(p + field(p)).
    anatomies : Anatomies, optional
        What a model makes out in the images, for the members that compare it.
    """

    fixed: Volume
    moving: Volume
    fixed_labels: LabelMap | None = None
    moving_labels: LabelMap | None = None
    initial: Float64Array = dataclasses.field(default_factory=lambda: np.eye(4))
    initial_field: Field | None = None
    anatomies: Anatomies | None = None
