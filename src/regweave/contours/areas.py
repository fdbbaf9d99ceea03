"""Exact areas of drawn structures: volume and overlap."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import shapely

from regweave.contours.regions import region_of
from regweave.io.dicom.series import Series
from regweave.types import Float64Array, Structure


def volume_ml(structure: Structure, series: Series) -> float:
    """Return the volume: areas of the contours times the share of each slice, in millilitres."""
    share = _shares_mm(series)
    return float(sum(region.area * share[k] for k, region in regions_of(structure, series).items()) / 1e3)


def dice_of_areas(a: Structure, b: Structure, series: Series) -> float:
    """Return the Dice overlap of two structures on one series, by exact areas of polygons; NaN for two empty ones."""
    one, other, both = overlap_ml(a, b, series).sum(axis=0).tolist()
    return 2 * both / (one + other) if one + other > 0 else float("nan")


def overlap_ml(a: Structure, b: Structure, series: Series, shown: Mapping[int, Any] | None = None) -> Float64Array:
    """Return the volumes of two structures and of what they share on each slice (K, 3), in millilitres.

    ``shown`` has a region by slice, in millimetres along rows and columns: nothing outside of it counts.
    """
    share, one, other = _shares_mm(series), regions_of(a, series), regions_of(b, series)
    found = np.zeros((len(share), 3))
    for k in one.keys() | other.keys():
        parts = [regions.get(k, shapely.Polygon()) for regions in (one, other)]
        if shown is not None:
            parts = [part.intersection(shown.get(k, shapely.Polygon())) for part in parts]
        found[k] = [part.area * share[k] / 1e3 for part in (*parts, parts[0].intersection(parts[1]))]
    return found


def regions_of(structure: Structure, series: Series) -> dict[int, Any]:
    """Return the regions of a structure by slice, in millimetres along rows and columns."""
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
