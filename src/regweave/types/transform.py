"""Dense displacement fields and spatial transforms."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import numpy as np

from regweave.types.arrays import Float32Array, Float64Array
from regweave.types.geometry import Geometry


@dataclass(frozen=True)
class Field:
    """A dense displacement on the fixed grid: a fixed point p goes to ``p + data[:, index of p]``.

    ``data`` is float32 of shape (3, X, Y, Z), LPS millimetres.
    """

    data: Float32Array
    geometry: Geometry

    @classmethod
    def zero(cls, geometry: Geometry) -> Field:
        """Return the identity on a grid."""
        return cls(np.zeros((3, *geometry.shape), dtype=np.float32), geometry)


Direction = Literal["fixed_to_moving", "moving_to_fixed"]


@dataclass(frozen=True)
class Ends:
    """The two images that a transform connects: which way its points go, from which grid to which.

    Examples
    --------
    >>> there = Ends("fixed_to_moving", Geometry((4, 4, 4), np.eye(4)), Geometry((5, 5, 5), np.eye(4)))
    >>> there.turned().direction, there.turned().start.shape
    ('moving_to_fixed', (5, 5, 5))
    """

    direction: Direction
    start: Geometry
    target: Geometry

    def turned(self) -> Ends:
        """Return the ends of the inverse transform."""
        back: Direction = "moving_to_fixed" if self.direction == "fixed_to_moving" else "fixed_to_moving"
        return Ends(back, self.target, self.start)


@dataclass(frozen=True)
class Transform:
    """A spatial map: the point p goes to ``affine · (p + field(p))``, all in LPS millimetres.

    A registration's transform takes fixed points to moving points (ITK's resampling convention), so its field lies
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
