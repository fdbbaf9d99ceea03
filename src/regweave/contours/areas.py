"""Exact areas of drawn structures: volume and overlap."""

from __future__ import annotations

from regweave.io.dicom.series import Series
from regweave.types import Structure


def volume_ml(structure: Structure, series: Series) -> float:
    """Return the volume: areas of the contours times the share of each slice, in millilitres."""
    raise NotImplementedError


def dice_of_areas(a: Structure, b: Structure, series: Series) -> float:
    """Return the Dice overlap of two structures on one series, by exact areas of their polygons."""
    raise NotImplementedError
