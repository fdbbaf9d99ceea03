"""Working copies of two scans: values in Hounsfield units, fields of view, crops round the patient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave import notices
from regweave.clinic.inputs import Scans
from regweave.clinic.patient import (
    cuts_patient,
    field_of_view,
    patient_mask,
    tissue_values,
    trusted,
    trusted_region,
    without_couch,
)
from regweave.contours import Shape
from regweave.errors import RegweaveError
from regweave.measures.body import bright_mask
from regweave.spatial.pyramid import Factors, shrink, shrink_geometry
from regweave.spatial.warp import inverse_of, warp_labels
from regweave.types import Field, Float64Array, Geometry, LabelMap, Transform, Volume

LEAST_RANGE = {"ct": 100.0}
"""Range of values that a scan of a patient has at least, in Hounsfield units; any at all where the scale is its own."""


@dataclass(frozen=True)
class PreparedScans:
    """Both scans, with values of today's in Hounsfield units by the map ``mapped``, and their working copies."""

    scans: Scans
    today: WorkingScan
    plan: WorkingScan
    mapped: HounsfieldMap | None = None


def prepare(scans: Scans, on_part: Callable[[str, float], None] = lambda _words, _share: None) -> PreparedScans:
    """Make the working copies of two scans; ``on_part`` takes the next part and the share that is done.

    Raises E147 for an empty scan. Warns with W236 if today's values are not Hounsfield units, W237 if the field of view
    of a scan cuts the patient.
    """
    mapped, seen = None, {}
    for name, words in (("today", "today's scan"), ("plan", "the plan")):
        image = getattr(scans, name).image
        _require_content(image, words)
        seen[name] = field_of_view(image) if image.modality == "ct" else None
    if scans.today.modality == scans.plan.modality == "CT":
        mapped = hounsfield_map(scans.today.image, scans.plan.image, seen["today"])
    if mapped is not None:
        notices.warn(
            f"W236: the values of today's scan are no Hounsfield units; by its histogram they are taken as "
            f"{mapped.words}"
        )
        scans = replace(scans, today=replace(scans.today, image=mapped.of(scans.today.image)))
    on_part("patient in today's scan", 0.2)
    today = working_scan(scans.today.image, seen["today"])
    on_part("patient in the plan", 0.6)
    plan = working_scan(scans.plan.image, seen["plan"])
    on_part("start", 1.0)
    for words, scan in (("today's scan", today), ("the plan", plan)):
        if scan.seen is not None:
            notices.warn(f"W237: the field of view of {words} cuts the patient; nothing outside of it was measured")
    return PreparedScans(scans, today, plan, mapped)


def _require_content(image: Volume, words: str) -> None:
    low, high = np.percentile(image.data[::2, ::2], (0.5, 99.5))
    if high - low <= LEAST_RANGE.get(image.modality or "", 0.0):
        message = f"{words} shows nothing: 99 % of its values lie between {low:g} and {high:g}"
        raise RegweaveError("E147", message, "name the series that shows the patient")


@dataclass(frozen=True)
class WorkingScan:
    """A scan as it is registered: a crop round the patient, about 2 mm or finer; in a CT all else is air.

    ``region`` is where the image counts, ``body`` the patient, both None if everywhere or unknown. ``seen`` are the
    measured pixels (X, Y) of the scan's own slices, where its field of view cuts the patient.
    """

    image: Volume
    region: LabelMap | None
    body: NDArray[np.bool_] | None
    seen: NDArray[np.bool_] | None = None


def working_scan(scan: Volume, seen: NDArray[np.bool_] | None = None) -> WorkingScan:
    """Make the working copy of a scan; couch and immobilisation of a CT become air.

    Outside a field of view ``seen`` (X, Y) that cuts the patient, nothing counts.
    """
    if scan.modality != "ct":
        image = cropped(scan, None, scan.geometry)
        # What is dark to the end of the scan counts as a gap even where bright tissue encloses it.
        return WorkingScan(image, trusted_region(image, bright_mask(image)) if scan.modality == "mr" else None, None)
    scan = tissue_values(scan)
    x, y, z = (max(1, round(MOST_MM / s)) for s in scan.geometry.spacing_mm.tolist())
    factors = (x, y, z)
    coarse = Volume(shrink(scan.data, factors), shrink_geometry(scan.geometry, factors), scan.modality)
    found = patient_mask(coarse)
    if found is None or (
        seen is not None
        and not cuts_patient(_pixels(seen, scan.geometry, coarse.geometry), found, coarse.geometry.spacing_mm)
    ):
        seen = None
    image = cropped(scan, found, coarse.geometry)
    if found is None:
        return WorkingScan(image, None, None)
    mask = LabelMap(found.astype(np.uint8), coarse.geometry)
    body = np.asarray(warp_labels(mask, Transform(Field.zero(image.geometry))).data != 0)
    region = trusted_region(image, body)
    if seen is not None:
        region = _within(region, seen, scan.geometry, image.geometry)
    return WorkingScan(without_couch(image, body), region, body, seen)


def _pixels(seen: NDArray[np.bool_], whole: Geometry, part: Geometry) -> NDArray[np.bool_]:
    """Return a mask of the slices of a scan on the slices of its working copy."""
    mask = LabelMap(np.repeat(seen[..., None], whole.shape[2], axis=2).astype(np.uint8), whole)
    return np.asarray(warp_labels(mask, Transform(Field.zero(part))).data[..., 0] != 0)


def _within(region: LabelMap | None, seen: NDArray[np.bool_], whole: Geometry, part: Geometry) -> LabelMap:
    """Return where an image counts: in the region, and well inside the field of view."""
    inner = trusted(_pixels(seen, whole, part), part.spacing_mm)[..., None]
    counted = np.broadcast_to(inner, part.shape) if region is None else inner & (region.data != 0)
    return LabelMap(counted.astype(np.uint8), part)


def box_round(points_mm: Float64Array, geometry: Geometry) -> tuple[tuple[slice, ...], Float64Array] | None:
    """Return the voxels of a grid round points, with a margin of one, and their LPS places (n, 3); None outside it."""
    back = inverse_of(geometry.affine)
    index = np.asarray(points_mm, dtype=np.float64) @ back[:3, :3].T + back[:3, 3]
    low = np.maximum(np.floor(index.min(axis=0)).astype(int) - 1, 0)
    high = np.minimum(np.ceil(index.max(axis=0)).astype(int) + 2, geometry.shape)
    if (high <= low).any():
        return None
    axes = [np.arange(a, b, dtype=np.float64) for a, b in zip(low, high, strict=True)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
    return tuple(slice(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True)), geometry.points(grid)


def label_map(
    shapes: Sequence[Shape], geometry: Geometry, values: Mapping[int, int], names: Mapping[str, str]
) -> LabelMap:
    """Draw shapes on a grid with label ``values`` by number; the smaller one wins where two overlap."""
    data = np.zeros(geometry.shape, dtype=np.uint16)
    drawn = [s for s in shapes if len(s.along_mm)]
    for shape in sorted(drawn, key=_size, reverse=True):
        points = np.concatenate([c.points_mm for c in shape.structure.contours])
        box = box_round(points, geometry)
        if box is not None:
            voxels, places = box
            part = data[voxels]
            part[(shape.at(places) < 0).reshape(part.shape)] = values[shape.structure.number]
    called = {values[s.structure.number]: s.structure.name for s in drawn}
    return LabelMap(data, geometry, {value: names.get(name, name) for value, name in called.items()})


def _size(shape: Shape) -> float:
    return float((shape.distance < 0).sum() * np.prod(shape.step_mm))


MOST_MM = 2.0
"""A working copy is about as fine as this, however large the scan."""
MOST_VOXELS = 3_000_000
"""A scan that has fewer voxels round the patient is registered as fine as it is."""
MARGIN_MM = 15.0
"""Air that is kept round the patient."""


def cropped(image: Volume, body: NDArray[np.bool_] | None, coarse: Geometry) -> Volume:
    """Cut a scan to the box round the patient, at the finest affordable voxels.

    ``body`` is the patient on the grid ``coarse``, the scan's grid shrunk by whole factors; None keeps the whole scan.
    """
    geometry, spacing = image.geometry, image.geometry.spacing_mm
    first, last = np.zeros(3, dtype=int), np.array(geometry.shape)
    if body is not None and body.any():
        step = np.rint(coarse.spacing_mm / spacing).astype(int)
        margin = np.ceil(MARGIN_MM / spacing).astype(int)
        for axis in range(2):
            held = np.flatnonzero(body.any(axis=tuple(a for a in range(3) if a != axis)))
            first[axis] = max(0, held[0] * step[axis] - margin[axis])
            last[axis] = min(geometry.shape[axis], (held[-1] + 1) * step[axis] + margin[axis])
    factors = affordable_factors(last - first, spacing)
    box = tuple(slice(a, b) for a, b in zip(first.tolist(), last.tolist(), strict=True))
    affine = geometry.affine.copy()
    affine[:3, 3] = geometry.points(first.astype(np.float64))
    i, j, k = (last - first).tolist()
    data = shrink(np.ascontiguousarray(image.data[box]), factors)
    grid = shrink_geometry(Geometry((i, j, k), affine), factors)
    return Volume(np.ascontiguousarray(data), grid, image.modality)


def affordable_factors(size: NDArray[np.int64], spacing_mm: Float64Array) -> Factors:
    """Return the smallest whole factors by which a box of voxels is shrunk to `MOST_VOXELS`, or to about `MOST_MM`."""
    for voxel_mm in np.geomspace(spacing_mm.min(), max(MOST_MM, spacing_mm.min()), 5):
        x, y, z = np.maximum(1, np.rint(voxel_mm / spacing_mm)).astype(int).tolist()
        if prod(-(-size // np.array([x, y, z]))) <= MOST_VOXELS:
            break
    return x, y, z


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
        """The map as a formula."""
        return f"{self.slope:.2f} × value {self.offset:+.0f}"

    def of(self, image: Volume) -> Volume:
        """Return a scan in Hounsfield units."""
        data = image.data * np.float32(self.slope) + np.float32(self.offset)
        return Volume(data.astype(np.float32, copy=False), image.geometry, image.modality)


NO_MAP = HounsfieldMap(1.0, 0.0)


def hounsfield_map(today: Volume, plan: Volume, measured: NDArray[np.bool_] | None = None) -> HounsfieldMap | None:
    """Return the map that makes today's histogram most like the plan's; None if the values can stay.

    Both are CT of one patient, the plan in Hounsfield units. Only ``measured`` pixels (X, Y) of today count.

    Examples
    --------
    >>> from regweave.types import Geometry
    >>> rng = np.random.default_rng(0)
    >>> data = np.where(np.indices((30, 30, 8))[0] < 12, -1000.0, 40.0) + rng.normal(0, 9, (30, 30, 8))
    >>> plan = Volume(data.astype(np.float32), Geometry((30, 30, 8), np.diag([3.0, 3.0, 3.0, 1.0])), "ct")
    >>> found = hounsfield_map(HounsfieldMap(0.8, 900.0).of(plan), plan)
    >>> round(float(found.slope), 1), hounsfield_map(plan, plan) is None
    (1.3, True)
    """
    wanted, values = _shares(_sample(plan, None), NO_MAP), _sample(today, measured)

    def overlap(one: HounsfieldMap) -> float:
        return float(np.minimum(wanted, _shares(values, one)).sum())

    best = max((HounsfieldMap(float(a), float(b)) for a in SLOPES for b in OFFSETS_HU), key=overlap)
    near = [HounsfieldMap(best.slope + a, best.offset + b) for a in NEAR_SLOPES for b in NEAR_OFFSETS_HU]
    best = max(near, key=overlap)
    off = max(abs(hu - (hu - best.offset) / best.slope) for hu in (0.0, -1000.0))
    return best if overlap(best) >= overlap(NO_MAP) + LEAST_GAIN and off >= LEAST_SHIFT_HU else None


def _sample(image: Volume, measured: NDArray[np.bool_] | None) -> Float64Array:
    """Values of a coarse copy in ascending order, at most `MOST_VALUES`, of measured pixels only."""
    x, y, z = (max(1, round(COARSE_MM / s)) for s in image.geometry.spacing_mm.tolist())
    data = shrink(image.data, (x, y, z))
    if measured is not None:
        data = data[shrink(np.ascontiguousarray(measured[..., None], dtype=np.float32), (x, y, 1))[..., 0] > 0.999]
    values = np.sort(data, axis=None)
    return np.asarray(values[:: max(1, len(values) // MOST_VALUES)], dtype=np.float64)


def _shares(values: Float64Array, used: HounsfieldMap) -> Float64Array:
    """Blurred histogram of mapped values, in which air and all else weigh the same for every scan."""
    below = np.searchsorted(values, (EDGES_HU - used.offset) / used.slope) / len(values)
    counts = ndimage.gaussian_filter1d(np.diff(below), BLUR_HU / STEP_HU, mode="constant")
    air = EDGES_HU[:-1] < AIR_BELOW_HU
    shares = np.where(air, AIR_SHARE, 1.0 - AIR_SHARE)
    totals = np.where(air, counts[air].sum(), counts[~air].sum())
    return np.asarray(np.divide(counts * shares, totals, out=np.zeros_like(counts), where=totals > LEAST_PART))
