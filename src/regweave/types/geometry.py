"""NumPy array types by element."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
        return self.points(index)
