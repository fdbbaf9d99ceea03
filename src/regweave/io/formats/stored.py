"""Voxel array as stored, with its grid and intensity scaling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regweave.io.formats.validate import require_scalar, require_unmasked, volume_shape
from regweave.io.geometry import make_geometry
from regweave.kernels import fields
from regweave.types import Float32Array, Geometry, Modality


@dataclass(frozen=True)
class Stored:
    """Voxels of an image before its values are checked.

    Parameters
    ----------
    data : array of shape (X, Y, Z)
        Voxels in the stored type.
    geometry : Geometry
    subject : str
        How messages call the image.
    scaling : tuple of two floats
        Slope and intercept that take voxels to values.
    facts : mapping
        What the format says beyond that, as plain values for an inspection.
    modality : str, optional
        Where the format states it, as DICOM does.
    """

    data: NDArray[Any]
    geometry: Geometry
    subject: str
    scaling: tuple[float, float] = (1.0, 0.0)
    facts: Mapping[str, Any] = field(default_factory=dict)
    modality: Modality | None = None

    @classmethod
    def of_array(cls, data: NDArray[Any], affine: ArrayLike, subject: str) -> Stored:
        """Check that an array is a scalar volume, and place it by an affine from index to LPS millimetres."""
        require_scalar(data.dtype, 1, subject)
        require_unmasked(data, subject)
        shape = volume_shape(data.shape, subject)
        return cls(np.asarray(data).reshape(shape), make_geometry(shape, affine, subject), subject)

    def values(self) -> NDArray[Any]:
        """Return the voxels in the stored type, or in float64 where the file asks for scaling."""
        return self._scaled(self.data)

    def _scaled(self, data: NDArray[Any]) -> NDArray[Any]:
        if self.scaling == (1.0, 0.0):
            return np.ascontiguousarray(data).astype(data.dtype.newbyteorder("="), copy=False)
        slope, inter = self.scaling
        return np.ascontiguousarray(data, dtype=np.float64) * slope + inter

    def intensities(self) -> Float32Array:
        """Return the values as float32; what does not fit becomes infinite and is caught as non-finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self.data.flags.c_contiguous or not self.data.flags.f_contiguous or not self.data.size:
                return self.values().astype(np.float32)
            # NIfTI runs along x first; its voxels are scaled as they lie, and turned by a kernel.
            lying: Float32Array = self._scaled(self.data.T).astype(np.float32, copy=False)
        turned: Float32Array = fields.arrange(lying[None], (2, 1, 0), (1, 1, 1))[0]
        return turned
