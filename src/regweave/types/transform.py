"""Dense displacement fields and spatial transforms."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from regweave.types.geometry import Float32Array, Float64Array, Geometry


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
        from regweave.spatial.deformation import invert

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
