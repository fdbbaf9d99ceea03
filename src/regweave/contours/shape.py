"""Signed distance of a drawn structure on the true slices."""

from __future__ import annotations

from dataclasses import dataclass, field

from regweave.io.dicom.series import Series, SliceGrid
from regweave.types import Float32Array, Float64Array, Structure


@dataclass(frozen=True)
class Shape:
    """A structure as a signed distance, negative inside.

    Parameters
    ----------
    structure : Structure
    grid : SliceGrid
        Directions of the planes.
    origin_mm : two floats
        In-plane position of the first sample, along ``grid.row`` and ``grid.column`` from the LPS origin.
    step_mm : two floats
        Distance of samples.
    along_mm : float array of shape (K,)
        Planes, ascending along the normal.
    distance_mm : float array of shape (K, V, U)
        In-plane signed distance; a plane without contours closes its neighbour half way.
    """

    structure: Structure
    grid: SliceGrid = field(repr=False)
    origin_mm: tuple[float, float] = field(repr=False)
    step_mm: tuple[float, float] = field(repr=False)
    along_mm: Float64Array = field(repr=False)
    distance_mm: Float32Array = field(repr=False)


def shape_of(structure: Structure, series: Series) -> Shape:
    """Make the signed distance of a structure drawn on a series."""
    raise NotImplementedError
