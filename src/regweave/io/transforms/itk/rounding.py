"""Rounding of a displacement field to few significant bits, which deflate well, within a bound in millimetres."""

from __future__ import annotations

import math

import numpy as np

from regweave.types import Field, Float32Array

FINE_MM, COARSE_MM = 0.0005, 0.0099
"""Largest change of a vector in a field of up to `LARGE` voxels, and in a larger one."""
SMALL, LARGE = 500_000, 3_000_000
"""A field of up to `SMALL` voxels is kept as it is."""
FINE_PER_VOXEL, COARSE_PER_VOXEL = 1 / 1024, 1 / 32
"""The same bounds in units of the smallest spacing, for images of small things."""
PLANES = 8


def rounded(field: Field) -> Float32Array:
    """Round vectors to multiples of a power of two of a millimetre, none farther than `bound_mm` from where it was.

    Components are rounded one by one; where the three errors together pass the bound, the worst gets another bit.
    """
    bound = bound_mm(field)
    if bound == 0:
        return field.data
    step = np.float32(2.0 ** math.floor(math.log2(2 * bound)))
    out = np.empty_like(field.data, dtype=np.float32)
    for start in range(0, field.data.shape[1], PLANES):
        part = field.data[:, start : start + PLANES]
        near = np.rint(part / step) * step
        for _ in range(3):
            error = np.abs(part - near)
            far = np.einsum("c...,c...->...", error, error) > bound * bound
            if not far.any():
                break
            worst = np.where(far, error.argmax(axis=0), 3)
            near = np.where(worst == np.arange(3)[:, None, None, None], np.rint(part / (step / 2)) * (step / 2), near)
        out[:, start : start + PLANES] = near + np.float32(0)  # no negative zeros
    return out


def bound_mm(field: Field) -> float:
    """Return the largest change that rounding may make to a vector of this field."""
    spacing = float(field.geometry.spacing_mm.min())
    voxels = math.prod(field.geometry.shape)
    if voxels <= SMALL:
        return 0.0
    if voxels > LARGE:
        return min(COARSE_MM, spacing * COARSE_PER_VOXEL)
    return min(FINE_MM, spacing * FINE_PER_VOXEL)
