"""Voxel grids, and what is on them: scalar images, label maps, displacement fields, transforms, pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
IntArray = NDArray[np.int32]
LabelArray = NDArray[Any]


@dataclass(frozen=True)
class Geometry:
    """Placement of a voxel grid in space.

    Parameters
    ----------
    shape : tuple of three ints
        Number of voxels along each image axis.
    affine : float array of shape (4, 4)
        Takes a voxel index (i, j, k, 1) to LPS millimetres.
    """

    shape: tuple[int, int, int]
    affine: Float64Array

    @property
    def spacing_mm(self) -> Float64Array:
        """Distance between neighbouring voxels along each axis, shape (3,)."""
        return np.asarray(np.linalg.norm(self.affine[:3, :3], axis=0), dtype=np.float64)

    @property
    def longest_mm(self) -> float:
        """Longest side of the grid."""
        return float((self.spacing_mm * self.shape).max())

    @property
    def direction(self) -> Float64Array:
        """Direction cosines, one column for each image axis, shape (3, 3)."""
        return self.affine[:3, :3] / self.spacing_mm

    @property
    def origin_mm(self) -> Float64Array:
        """LPS position of the centre of voxel (0, 0, 0)."""
        return self.affine[:3, 3]

    @property
    def summary(self) -> str:
        """Size and spacing in words.

        Examples
        --------
        >>> Geometry((64, 64, 40), np.diag([1.0, 1.0, 2.5, 1.0])).summary
        '64 × 64 × 40 voxels of 1 × 1 × 2.5 mm'
        """
        size, spacing = (" × ".join(f"{n:.4g}" for n in part) for part in (self.shape, self.spacing_mm))
        return f"{size} voxels of {spacing} mm"

    def points(self, index: Float64Array) -> Float64Array:
        """Take voxel indices (..., 3) to LPS millimetres (..., 3)."""
        return index @ self.affine[:3, :3].T + self.affine[:3, 3]

    def index(self, points_mm: Float64Array) -> Float64Array:
        """Take LPS millimetres (..., 3) to voxel indices (..., 3), whole at the centres of voxels."""
        back = np.linalg.inv(self.affine)
        return np.asarray(points_mm @ back[:3, :3].T + back[:3, 3], dtype=np.float64)

    def corners_mm(self) -> Float64Array:
        """LPS positions of the eight corner voxels, shape (8, 3)."""
        ends = np.array([[0, n - 1] for n in self.shape], dtype=np.float64)
        index = np.stack(np.meshgrid(*ends, indexing="ij"), axis=-1).reshape(8, 3)
        return index @ self.affine[:3, :3].T + self.affine[:3, 3]


@dataclass(frozen=True, repr=False)
class Field:
    """A dense displacement on the fixed grid: a fixed point p goes to ``p + data[:, index of p]``.

    ``data`` is float32 of shape (3, X, Y, Z), LPS millimetres.
    """

    data: Float32Array
    geometry: Geometry

    def __repr__(self) -> str:
        """Size, spacing and the longest vector, not all of them."""
        longest = float(np.sqrt((self.data.astype(np.float64) ** 2).sum(axis=0).max()))
        return f"Field({self.geometry.summary}, up to {longest:.3g} mm)"

    def to_sitk(self) -> Any:
        """Return a SimpleITK image of the displacements, vectors of float32 LPS millimetres."""
        from regweave.io.write import sitk_image

        return sitk_image(self.data.astype(np.float32, copy=False), self.geometry)

    @classmethod
    def zero(cls, geometry: Geometry) -> Field:
        """Return the identity on a grid."""
        return cls(np.zeros((3, *geometry.shape), dtype=np.float32), geometry)


Direction = Literal["fixed_to_moving", "moving_to_fixed"]


@dataclass(frozen=True)
class Ends:
    """The two images that a transform connects: which way its points go, from which grid to which.

    ``start_series`` and ``target_series`` are hashes of DICOM series, empty where they are not known.
    """

    direction: Direction
    start: Geometry
    target: Geometry
    start_series: str = ""
    target_series: str = ""

    def turned(self) -> Ends:
        """Return the ends of the inverse transform."""
        back: Direction = "moving_to_fixed" if self.direction == "fixed_to_moving" else "fixed_to_moving"
        return Ends(back, self.target, self.start, self.target_series, self.start_series)


@dataclass(frozen=True, repr=False)
class Transform:
    """A spatial map: the point p goes to ``affine · (p + field(p))``, all in LPS millimetres.

    A registration's transform takes fixed points to moving points (ITK's resampling convention), so its field is
    on the fixed grid. Outside that grid the field takes the value of the nearest voxel.

    Parameters
    ----------
    field : Field
    affine : float array of shape (4, 4)
    ends : Ends, optional
        The images that the map connects, where that is known.
    knots : Field, optional
        The coarser field that ``field`` is a sample of: at the voxels of ``field`` both agree, between them the knots
        hold. Without them ``field`` itself is trilinear.
    """

    field: Field
    affine: Float64Array = dataclasses.field(default_factory=lambda: np.eye(4))
    ends: Ends | None = None
    knots: Field | None = None

    @property
    def interpolated(self) -> Field:
        """The field whose trilinear interpolation is the map between voxels."""
        return self.field if self.knots is None else self.knots

    def __repr__(self) -> str:
        """Direction where it is known, field and affine part, not their numbers."""
        way = "" if self.ends is None else f"{self.ends.direction.replace('_', ' ')}, "
        return f"Transform({way}{self.field!r}{'' if np.array_equal(self.affine, np.eye(4)) else ', affine'})"

    def __call__(self, points_mm: ArrayLike) -> Float64Array:
        """Map points (..., 3) of LPS millimetres, for a registration from fixed to moving.

        Examples
        --------
        >>> shift = np.full((3, 4, 4, 4), 2.0, dtype=np.float32)
        >>> Transform(Field(shift, Geometry((4, 4, 4), np.eye(4))))([0.5, 1.0, 3.0])
        array([2.5, 3. , 5. ])
        """
        from regweave.spatial.warp import warp_points

        return warp_points(np.asarray(points_mm, dtype=np.float64), self)

    def inverse(self, geometry: Geometry | None = None) -> Transform:
        """Return the numerical inverse.

        Parameters
        ----------
        geometry : Geometry, optional
            Grid for its field; by default that of the image the transform leads to, where that is known.

        Raises
        ------
        UsageError
            E115 where no grid is known.
        """
        from regweave.spatial.warp import invert

        return invert(self, geometry)[0]

    def save(self, path: str | Path) -> None:
        """Write an ITK transform, .h5, .tfm or .txt, that ITK, ANTs and 3D Slicer read; `load` reads it back."""
        from regweave.io.transforms.files import write_transform

        write_transform(path, self)

    @classmethod
    def load(cls, path: str | Path, geometry: Geometry | None = None) -> Transform:
        """Read a transform of ITK or ANTs, or a displacement field, and sample it on a grid where one is given."""
        from regweave.io.transforms.files import read_transform

        return read_transform(path, geometry)

    @classmethod
    def from_sitk(cls, transform: Any, geometry: Geometry | None = None) -> Transform:
        """Take a SimpleITK transform; one that is not linear is sampled on a grid.

        Examples
        --------
        >>> import SimpleITK as sitk
        >>> Transform.from_sitk(sitk.TranslationTransform(3, (1.0, 2.0, 3.0)))([0.0, 0.0, 0.0])
        array([1., 2., 3.])
        """
        from regweave.io.transforms.itk import as_transform

        return as_transform(transform, geometry)

    def to_sitk(self) -> Any:
        """Return a SimpleITK composite of the affine and the displacement field, which it applies first.

        Outside the grid of the field SimpleITK moves nothing; this transform uses the nearest vector there.
        """
        from regweave.io.transforms.itk import sitk_transform

        return sitk_transform(self)


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
