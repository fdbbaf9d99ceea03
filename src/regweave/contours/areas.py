"""Exact areas of drawn structures: volume and overlap."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from regweave.contours.regions import region_of
from regweave.io.dicom.series import Series
from regweave.types import Float64Array, Structure


def volume_ml(structure: Structure, series: Series) -> float:
    """Return the volume: areas of the contours times the share of each slice, in millilitres."""
    share = _shares_mm(series)
    return float(sum(region.area * share[k] for k, region in _regions(structure, series).items()) / 1e3)


def dice_of_areas(a: Structure, b: Structure, series: Series) -> float:
    """Return the Dice overlap of two structures on one series, by exact areas of polygons; NaN for two empty ones."""
    share, one, other = _shares_mm(series), _regions(a, series), _regions(b, series)
    both = sum(one[k].intersection(other[k]).area * share[k] for k in one.keys() & other.keys())
    total = sum(region.area * share[k] for found in (one, other) for k, region in found.items())
    return float(2 * both / total) if total > 0 else float("nan")


def _regions(structure: Structure, series: Series) -> dict[int, Any]:
    rings: dict[int, list[Float64Array]] = defaultdict(list)
    for contour in structure.contours:
        if contour.image is not None:
            points = contour.points_mm
            rings[contour.image].append(np.stack([points @ series.grid.row, points @ series.grid.column], axis=1))
    return {k: region_of(found) for k, found in rings.items()}


def _shares_mm(series: Series) -> Float64Array:
    """Thickness that each slice stands for: half way to its neighbours."""
    along = np.array([one.along_mm for one in series.slices])
    gaps = np.diff(along)
    return np.asarray((np.append(gaps, gaps[-1]) + np.insert(gaps, 0, gaps[0])) / 2)
