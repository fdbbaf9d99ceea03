"""Parsed header of an image, in one form for all formats: axes, type, frame in LPS millimetres, voxels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.io.formats.payload import Payload, read_payload
from regweave.types import Float64Array


@dataclass(frozen=True)
class ImageHeader:
    """A checked header.

    Parameters
    ----------
    subject : str
        How messages call the file.
    shape : tuple of int
        Sizes of the axes in space and beyond, the fastest first; axes of length one at the end are left out.
    components : int
        Numbers of a voxel.
    component_axis : int
        Where the components stand among the axes of the file, 0 for the fastest.
    dtype : dtype
        Stored type with the byte order of the file.
    affine : float array of shape (4, 4), optional
        From indices to LPS millimetres; None where there are not three axes.
    payload : Payload
        Where the voxels are.
    vectors_lps : bool
        Whether components of a vector are along the axes of LPS.
    keys : mapping
        Further keys of the file that are no fields of its format.
    """

    subject: str
    shape: tuple[int, ...]
    components: int
    component_axis: int
    dtype: np.dtype[Any]
    affine: Float64Array | None
    payload: Payload
    vectors_lps: bool = True
    keys: Mapping[str, str] = field(default_factory=dict)

    def read_voxels(self) -> NDArray[Any]:
        """Read the voxels: an array of the shape, with the components before it where there are several."""
        data = read_payload(self.payload, self.dtype, math.prod(self.shape) * self.components, self.subject)
        axes = list(self.shape)
        axes.insert(self.component_axis, self.components)
        moved = np.moveaxis(data.reshape(axes, order="F"), self.component_axis, 0)
        return moved[0] if self.components == 1 else moved
