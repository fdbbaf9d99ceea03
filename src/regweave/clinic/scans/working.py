"""Working copies: crops round the patient at a voxel size that the registration can afford."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from regweave.spatial.pyramid import Factors, shrink, shrink_geometry
from regweave.types import Geometry, Volume

MOST_MM = 2.0
"""A working copy is about as fine as this, however large the scan."""
MOST_VOXELS = 3_000_000
"""A scan that has fewer voxels round the patient is registered as fine as it is."""
MARGIN_MM = 15.0
"""Air that is kept round the patient."""


@dataclass(frozen=True)
class Crop:
    """Box of voxels ``first`` to ``last`` (not included), and the whole factors that shrink it."""

    first: tuple[int, int, int]
    last: tuple[int, int, int]
    factors: Factors

    def geometry(self, whole: Geometry) -> Geometry:
        """Grid of the working copy."""
        affine = whole.affine.copy()
        affine[:3, 3] = whole.points(np.array(self.first, dtype=np.float64))
        x, y, z = (b - a for a, b in zip(self.first, self.last, strict=True))
        return shrink_geometry(Geometry((x, y, z), affine), self.factors)

    def of(self, image: Volume) -> Volume:
        """Cut and shrink an image."""
        box = tuple(slice(a, b) for a, b in zip(self.first, self.last, strict=True))
        data = shrink(np.ascontiguousarray(image.data[box]), self.factors)
        return Volume(np.ascontiguousarray(data), self.geometry(image.geometry), image.modality)


def crop_round(geometry: Geometry, body: NDArray[np.bool_] | None, coarse: Geometry) -> Crop:
    """Choose the box round a patient, and the finest voxels that keep it affordable.

    Parameters
    ----------
    geometry : Geometry
        Grid of the scan.
    body : boolean array, optional
        Patient on the grid ``coarse``; None keeps the whole scan.
    coarse : Geometry
        The scan's grid shrunk by whole factors.
    """
    first, last = np.zeros(3, dtype=int), np.array(geometry.shape)
    if body is not None and body.any():
        step = np.rint(coarse.spacing_mm / geometry.spacing_mm).astype(int)
        margin = np.ceil(MARGIN_MM / geometry.spacing_mm).astype(int)
        for axis in range(2):
            found = np.flatnonzero(body.any(axis=tuple(a for a in range(3) if a != axis)))
            first[axis] = max(0, found[0] * step[axis] - margin[axis])
            last[axis] = min(geometry.shape[axis], (found[-1] + 1) * step[axis] + margin[axis])
    size = last - first
    spacing = geometry.spacing_mm
    for voxel_mm in np.geomspace(spacing.min(), max(MOST_MM, spacing.min()), 5):
        factors = np.maximum(1, np.rint(voxel_mm / spacing)).astype(int)
        if prod(-(-size // factors)) <= MOST_VOXELS:
            break
    a, b, f = (tuple(int(n) for n in v) for v in (first, last, factors))
    return Crop(a, b, f)  # type: ignore[arg-type]
