"""Transport of shapes through a transform, to outlines on the slices of another series."""

from __future__ import annotations

from regweave.contours.shape import Shape
from regweave.io.dicom.series import Series
from regweave.types import Structure, Transform


def carry(shape: Shape, transform: Transform, today: Series) -> Structure:
    """Bring a shape onto the slices of today's series.

    ``transform`` takes points of today to points of the series that the shape was drawn on. The result has no contours
    where nothing of the shape lies within today's slices.
    """
    raise NotImplementedError
