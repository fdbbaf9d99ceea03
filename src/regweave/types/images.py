"""Scalar images and label maps on a voxel grid."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regweave.types.geometry import Float32Array, Float64Array, Geometry, LabelArray
from regweave.types.transform import Field

Modality = Literal["ct", "mr", "t1", "t2", "pd", "flair", "pet", "us"]
"""CT in Hounsfield units, or an image on its own scale; ``mr`` is any of these where no more is known."""


Frame = Literal["LPS", "RAS"]
"""Directions of the axes of space: left, posterior, superior as in ITK and DICOM, or right, anterior, superior."""


class _Gridded:
    """Exchange of a voxel array on a grid with other libraries."""

    data: NDArray[Any]
    geometry: Geometry

    def numpy(self) -> NDArray[Any]:
        """Return the voxels [i, j, k], not copied."""
        return self.data

    def to_sitk(self) -> Any:
        """Return a SimpleITK image with the same voxels and place.

        >>> grid = Geometry((4, 5, 6), np.diag([1.0, 2.0, 3.0, 1.0]))
        >>> Volume(np.zeros((4, 5, 6), np.float32), grid).to_sitk().GetSpacing()
        (1.0, 2.0, 3.0)
        """
        from regweave.io.write import sitk_image

        return sitk_image(self.data, self.geometry)

    def to_nibabel(self) -> Any:
        """Return a NIfTI image of nibabel with the same voxels and place, its affine in RAS.

        >>> image = Volume(np.zeros((4, 4, 4), np.float32), Geometry((4, 4, 4), np.eye(4))).to_nibabel()
        >>> image.affine.diagonal()
        array([-1., -1.,  1.,  1.])
        """
        from regweave.io.write import nibabel_image

        return nibabel_image(self.data, self.geometry)

    def to_ants(self) -> Any:
        """Return an image of ANTsPy with the same voxels and place; both packages count in LPS millimetres."""
        from regweave.io.write import ants_image

        return ants_image(self.data, self.geometry)


@dataclass(frozen=True, repr=False)
class Volume(_Gridded):
    """A scalar image on a grid.

    Parameters
    ----------
    data : float32 array of shape ``geometry.shape``
        Not checked; `from_array` checks.
    geometry : Geometry
    modality : str, optional
        ``ct``, ``mr``, …, once that is decided.
    """

    data: Float32Array
    geometry: Geometry
    modality: Modality | None = None

    def __repr__(self) -> str:
        """Size, spacing and modality, not the voxels."""
        return f"Volume({self.geometry.summary}{f', {self.modality}' if self.modality else ''})"

    @classmethod
    def from_array(
        cls, array: ArrayLike, affine: ArrayLike | None = None, *,
        spacing_mm: ArrayLike | None = None, frame: Frame = "LPS", modality: Modality | None = None,
    ) -> Volume:  # fmt: skip
        """Build an image from an array, checked as a file is.

        Parameters
        ----------
        array : array of shape (X, Y, Z)
            Real numbers, finite, not all equal; at least 4 along each axis.
        affine : array of shape (4, 4), optional
            Takes an index (i, j, k, 1) to millimetres; its axes are at right angles.
        spacing_mm : three numbers, optional
            Instead of the affine: axes along those of ``frame``, the first voxel at 0.
        frame : {"LPS", "RAS"}
            Where the millimetres of ``affine`` point; RAS is nibabel's.
        modality : str, optional

        Raises
        ------
        RegweaveError
            E103 shape or type, E104 NaN, E105 constant, E108 no place, E111 skew axes.

        Examples
        --------
        >>> Volume.from_array(np.arange(64).reshape(4, 4, 4), spacing_mm=(1, 1, 3), modality="mr")
        Volume(4 × 4 × 4 voxels of 1 × 1 × 3 mm, mr)
        """
        from regweave.io.geometry import array_affine
        from regweave.io.images import read_image

        volume = read_image((array, array_affine(affine, spacing_mm, frame)))
        return dataclasses.replace(volume, modality=modality)


@dataclass(frozen=True, repr=False)
class LabelMap(_Gridded):
    """A segmentation on a grid: ``data`` of any integer dtype, 0 is background, ``names`` by label value."""

    data: LabelArray
    geometry: Geometry
    names: Mapping[int, str] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        """Size, spacing and structures, not the voxels."""
        return f"LabelMap({self.geometry.summary}, {', '.join(map(self.name, self.values())) or 'empty'})"

    @classmethod
    def from_array(
        cls, array: ArrayLike, affine: ArrayLike | None = None, *,
        spacing_mm: ArrayLike | None = None, frame: Frame = "LPS", names: Mapping[int, str] | None = None,
    ) -> LabelMap:  # fmt: skip
        """Build a label map from an array of whole numbers from 0 on, checked as a file is.

        Parameters are those of `Volume.from_array`, and ``names`` by label value.

        Examples
        --------
        >>> LabelMap.from_array(np.eye(4, dtype=int)[None].repeat(4, 0), spacing_mm=(1, 1, 1), names={1: "liver"})
        LabelMap(4 × 4 × 4 voxels of 1 × 1 × 1 mm, liver)
        """
        from regweave.io.geometry import array_affine
        from regweave.io.images import read_labels

        labels = read_labels((array, array_affine(affine, spacing_mm, frame)))
        return dataclasses.replace(labels, names=dict(names or {}))

    def values(self) -> list[int]:
        """Labels present other than background, ascending."""
        return [int(v) for v in np.unique(self.data) if v != 0]

    def name(self, value: int) -> str:
        """Name of a label, or its number where it has none."""
        return self.names.get(value, str(value))


@dataclass(frozen=True)
class StructureMaps:
    """Probability maps of structures."""

    shares: Float32Array  # Probability of each structure, in [0, 1]; what is left to 1 is background, (K, X, Y, Z)
    geometry: Geometry  # Grid of the maps, which may be coarser than that of the image
    classes: tuple[int, ...]  # Label value of each structure, (K,)


@dataclass(frozen=True)
class Guides:
    """Structures drawn on both images that guide a registration, as ramps of the signed distance to their borders."""

    fixed: StructureMaps
    moving: StructureMaps  # The same structures in the same order, each on the grid of its image or a coarser one
    weights: tuple[float, ...]  # Weight of each structure against the others, (K,)


@dataclass(frozen=True)
class Image(Volume):
    """Scalar image with its labels, mask and structure maps."""

    labels: LabelMap | None = None  # Segmentation on the grid of the image
    mask: LabelMap | None = None  # Region that counts, on the grid of the image: 0 is outside
    maps: StructureMaps | None = None  # Structure maps that a predictor made from the voxels
    label_maps: StructureMaps | None = None  # Those of a segmentation, given or predicted; same structures and order

    @classmethod
    def of(cls, volume: Volume, labels: LabelMap | None = None, mask: LabelMap | None = None) -> Image:
        """Return a volume with its companions."""
        return cls(volume.data, volume.geometry, volume.modality, labels, mask)


@dataclass(frozen=True)
class ImagePair:
    """Two images and the start of their registration."""

    fixed: Image
    """The images, each on its own grid. The moving labels choose the weights; the fixed ones are used by the loss
    and by the evaluation, never by a prediction.
    """
    moving: Image
    initial: Float64Array = dataclasses.field(default_factory=lambda: np.eye(4))
    """Affine start: takes LPS millimetres of the fixed image to those of the moving image, (4, 4)."""
    initial_field: Field | None = None  # Deformable start, applied before ``initial``: fixed p → initial(p + field(p))
    guides: Guides | None = None  # Structures of both images that guide

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
