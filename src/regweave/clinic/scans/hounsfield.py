"""Values of a scan that are no Hounsfield units, as those of a cone beam, brought to the plan's by their histograms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave.spatial.pyramid import shrink
from regweave.types import Float64Array, Volume

COARSE_MM = 3.0
"""Voxels of the copies whose histograms are compared: large enough to average noise away."""
MOST_VALUES = 20_000
STEP_HU, BLUR_HU = 10.0, 30.0
EDGES_HU = np.arange(-1300.0, 1701.0, STEP_HU)
AIR_BELOW_HU, AIR_SHARE = -500.0, 0.3
"""Air counts this much in either histogram, however much of it a scan shows."""
LEAST_PART = 0.005
"""A part of the histogram that holds less does not count."""
SLOPES, NEAR_SLOPES = np.arange(0.60, 1.65, 0.05), np.arange(-0.04, 0.05, 0.01)
OFFSETS_HU, NEAR_OFFSETS_HU = np.arange(-1500.0, 1501.0, 20.0), np.arange(-20.0, 21.0, 5.0)
LEAST_GAIN = 0.1
"""The overlap of the histograms must grow by this, or the values are taken as they are."""
LEAST_SHIFT_HU = 80.0
"""Water or air must be off by this; scanners and phantoms differ by less."""


@dataclass(frozen=True)
class HounsfieldMap:
    """Hounsfield units as ``slope`` times a value plus ``offset``."""

    slope: float
    offset: float

    @property
    def words(self) -> str:
        """The map as a reader understands it."""
        return f"{self.slope:.2f} × value {self.offset:+.0f}"

    def of(self, image: Volume) -> Volume:
        """Return a scan in Hounsfield units."""
        data = image.data * np.float32(self.slope) + np.float32(self.offset)
        return Volume(data.astype(np.float32, copy=False), image.geometry, image.modality)


NO_MAP = HounsfieldMap(1.0, 0.0)


def hounsfield_map(today: Volume, plan: Volume, measured: NDArray[np.bool_] | None = None) -> HounsfieldMap | None:
    """Return the map that makes today's histogram most like the plan's; None where the values can stay.

    Parameters
    ----------
    today, plan : Volume
        Two CT of one patient; the plan is in Hounsfield units.
    measured : boolean array of shape (X, Y), optional
        Field of view of today's scan: what lies outside was not measured.

    Examples
    --------
    >>> from regweave.types import Geometry
    >>> rng = np.random.default_rng(0)
    >>> data = np.where(np.indices((30, 30, 8))[0] < 12, -1000.0, 40.0) + rng.normal(0, 9, (30, 30, 8))
    >>> plan = Volume(data.astype(np.float32), Geometry((30, 30, 8), np.diag([3.0, 3.0, 3.0, 1.0])), "ct")
    >>> found = hounsfield_map(HounsfieldMap(0.8, 900.0).of(plan), plan)
    >>> round(found.slope, 1), hounsfield_map(plan, plan) is None
    (1.2, True)
    """
    wanted, values = _shares(_sample(plan, None), NO_MAP), _sample(today, measured)

    def overlap(found: HounsfieldMap) -> float:
        return float(np.minimum(wanted, _shares(values, found)).sum())

    best = max((HounsfieldMap(float(a), float(b)) for a in SLOPES for b in OFFSETS_HU), key=overlap)
    near = [HounsfieldMap(best.slope + a, best.offset + b) for a in NEAR_SLOPES for b in NEAR_OFFSETS_HU]
    best = max(near, key=overlap)
    off = max(abs(hu - (hu - best.offset) / best.slope) for hu in (0.0, -1000.0))
    return best if overlap(best) >= overlap(NO_MAP) + LEAST_GAIN and off >= LEAST_SHIFT_HU else None


def _sample(image: Volume, measured: NDArray[np.bool_] | None) -> Float64Array:
    """Values of a coarse copy in ascending order, `MOST_VALUES` at most; only what was measured counts."""
    x, y, z = (max(1, round(COARSE_MM / s)) for s in image.geometry.spacing_mm.tolist())
    data = shrink(image.data, (x, y, z))
    if measured is not None:
        data = data[shrink(np.ascontiguousarray(measured[..., None], dtype=np.float32), (x, y, 1))[..., 0] > 0.999]
    values = np.sort(data, axis=None)
    return np.asarray(values[:: max(1, len(values) // MOST_VALUES)], dtype=np.float64)


def _shares(values: Float64Array, found: HounsfieldMap) -> Float64Array:
    """Blurred histogram of mapped values, in which air and all else weigh the same for every scan."""
    below = np.searchsorted(values, (EDGES_HU - found.offset) / found.slope) / len(values)
    counts = ndimage.gaussian_filter1d(np.diff(below), BLUR_HU / STEP_HU, mode="constant")
    air = EDGES_HU[:-1] < AIR_BELOW_HU
    shares = np.where(air, AIR_SHARE, 1.0 - AIR_SHARE)
    totals = np.where(air, counts[air].sum(), counts[~air].sum())
    return np.asarray(np.divide(counts * shares, totals, out=np.zeros_like(counts), where=totals > LEAST_PART))
