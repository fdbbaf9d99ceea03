"""Two scans of one patient: read, checked against each other, their working copies, and the start between these.

A start is a fit, the headers, or an existing registration, and is refused where it makes things worse.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave import notices
from regweave.contours import Shape
from regweave.errors import RegweaveError, UsageError
from regweave.io.dicom.parse import looks_like_dicom, require_same_patient, scan
from regweave.io.dicom.reg import read_reg, require_frames
from regweave.io.dicom.rtstruct import read_rtstruct, referenced_series, require_identifiers
from regweave.io.dicom.series import Series, list_series, read_series
from regweave.io.disk.files import exists, open_file
from regweave.io.transforms.files import read_transform, require_direction, require_series
from regweave.registration.initial import METHODS, initial_affine
from regweave.spatial.voxels import Factors, apply_window, bright_mask, default_window, shrink, shrink_geometry
from regweave.spatial.warp import warp_labels, warp_points
from regweave.types import Field, Float32Array, Float64Array, Geometry, Image, LabelMap, StructureSet, Transform, Volume

BODY_HU = -300.0  # Voxels above this are no air: skin, fat and everything denser, and boards and couches too
AIR_HU = -1000.0
METAL_HU = 4000.0
LEAST_OVERFLOW = 0.02
OVERFLOWN_HU = -400.0  # Value of overflown numbers: air by `BODY_HU`, yet speckled soft tissue averages to body
THIN_MM = 5.0  # What is thinner than this in a slice, a couch's shell or a thermoplastic mask, is no body
LEAST_SHARE = 0.05  # Parts smaller than this share of the largest, a couch's rail, are no body; arms are larger
LEAST_BODY = 0.02  # A patient fills at least this share of the scan, or what was found is none
END_MM = 15.0  # Depth at either end of a scan where air beside the body may be a gap of the scan rather than air


def tissue_values(image: Volume) -> Volume:
    """Return a CT with values of tissue: padding becomes air, and so do overflown numbers (W217).

    Scanners fill the region beyond their field of view with -2000 or less. Some exports write negative values as the
    largest number of their type; many voxels above any metal are therefore taken as air.
    """
    data = np.maximum(image.data, np.float32(AIR_HU))
    overflown = data > METAL_HU
    share = float(overflown.mean())
    if share > LEAST_OVERFLOW:
        notices.warn(
            f"W217: {share:.0%} of the voxels of a CT are above {METAL_HU:g} HU, which no tissue or metal is: its "
            "negative values seem to have overflown; they are taken as air. Export the series again if you can"
        )
        data[overflown] = OVERFLOWN_HU
    return Volume(data, image.geometry, image.modality)


def patient_mask(image: Volume) -> NDArray[np.bool_] | None:
    """Segment the patient in a CT whose last axis runs along the slices, without couch, mask and other supports.

    Filled in each slice, so lungs and windpipe are inside; None if there is no body.
    """
    dense = image.data > BODY_HU
    ball = _disc(image.geometry, THIN_MM / 2.0)
    # A body that touches the border of a slice must not be worn away there.
    core = ndimage.binary_erosion(dense, ball, border_value=1)
    core = ndimage.binary_dilation(core, ball)
    parts, count = ndimage.label(core)
    if count == 0:
        return None
    sizes = np.bincount(parts.ravel())[1:]
    kept = np.flatnonzero(sizes >= LEAST_SHARE * sizes.max()) + 1
    body = np.isin(parts, kept) if len(kept) < count else core
    body = np.stack([ndimage.binary_fill_holes(body[..., k]) for k in range(body.shape[2])], axis=2)
    return body if body.mean() >= LEAST_BODY else None


def without_couch(image: Volume, body: NDArray[np.bool_]) -> Volume:
    """Return a CT with air outside the patient, so that only the patient is registered."""
    near = ndimage.binary_dilation(body, _disc(image.geometry, float(image.geometry.spacing_mm[:2].max())))
    data: Float32Array = np.where(near, image.data, np.float32(AIR_HU)).astype(np.float32, copy=False)
    return Volume(data, image.geometry, image.modality)


def trusted_region(image: Volume, body: NDArray[np.bool_]) -> LabelMap | None:
    """Mask out air at the ends of a scan where the body is cut off; None if nothing is masked.

    Where a column along the slices holds body, and air from there to the end of the scan, the scan may simply end
    inside the patient: resampled series have such gaps. Air within `END_MM` of the end is therefore not compared.
    """
    planes = max(1, round(END_MM / float(image.geometry.spacing_mm[2])))
    planes = min(planes, body.shape[2] // 2)
    holds: NDArray[np.bool_] = np.asarray(body.any(axis=2))
    gap = np.zeros(body.shape, dtype=bool)
    for flip in (False, True):
        seen = body[..., ::-1] if flip else body
        shown = gap[..., ::-1] if flip else gap
        below = ~np.logical_or.accumulate(seen, axis=2)[..., :planes]
        shown[..., :planes] |= below & holds[..., None]
    if not gap.any():
        return None
    return LabelMap((~gap).astype(np.uint8), image.geometry)


def _disc(geometry: Geometry, radius_mm: float) -> NDArray[np.bool_]:
    """In-plane disc as a structuring element; at least its centre and four neighbours."""
    spacing = geometry.spacing_mm[:2]
    reach = [max(1, int(radius_mm / s)) for s in spacing]
    x, y = np.meshgrid(*(np.arange(-r, r + 1) * s for r, s in zip(reach, spacing, strict=True)), indexing="ij")
    radius = max(radius_mm, float(spacing.max()))
    disc: NDArray[np.bool_] = np.hypot(x, y)[..., None] <= radius + 1e-6
    return disc


LEAST_PADDING = 0.05  # A scan whose slices hold less padding than this share shows all that they cover
ROUND_PIXELS = 1.0
"""How far the rim of a field of view may lie from a circle, root mean square: patients are not as round."""
RIM_MM = 6.0  # Values nearer to the rim than this are ignored
CUT_SHARE = 0.02  # Share of the rim that shows the patient where the field of view cuts it


def field_of_view(image: Volume) -> NDArray[np.bool_] | None:
    """Find the circle outside of which all slices hold one and the same value, where nothing was measured.

    Returns the measured pixels (X, Y); None if the slices are measured whole, or the padding is not round.
    """
    data, padding = image.data, image.data[0, 0, 0]
    same = (data[..., 0] == padding) & (data[..., -1] == padding)
    if same.mean() < LEAST_PADDING:
        return None
    same &= (data == padding).all(axis=2)
    parts, _ = ndimage.label(same)
    corners = {int(parts[x, y]) for x in (0, -1) for y in (0, -1)} - {0}
    outside = np.isin(parts, list(corners))
    if outside.mean() < LEAST_PADDING or outside.all() or not _round(outside, image.geometry):
        return None
    return np.asarray(~outside)


def _round(outside: NDArray[np.bool_], geometry: Geometry) -> bool:
    """Whether the border of padding is part of a circle, by the best-fitting circle."""
    spacing = geometry.spacing_mm[:2]
    rim = outside & ndimage.binary_dilation(~outside)
    points = np.argwhere(rim) * spacing
    middle = points.mean(axis=0)
    x, y = (points - middle).T
    found: Float64Array = np.linalg.lstsq(np.stack([x, y, np.ones_like(x)], axis=1), x**2 + y**2, rcond=None)[0]
    centre, radius = found[:2] / 2, np.sqrt(max(found[2] + (found[:2] ** 2).sum() / 4, 0.0))
    off = np.hypot(x - centre[0], y - centre[1]) - radius
    return bool(np.sqrt((off**2).mean()) <= ROUND_PIXELS * spacing.max())


def trusted(seen: NDArray[np.bool_], spacing_mm: Float64Array) -> NDArray[np.bool_]:
    """Return the measured pixels at least `RIM_MM` from the rim of the field of view."""
    return np.asarray(ndimage.distance_transform_edt(seen, sampling=spacing_mm[:2]) > RIM_MM)


def cuts_patient(seen: NDArray[np.bool_], body: NDArray[np.bool_], spacing_mm: Float64Array) -> bool:
    """Whether the patient extends to the rim of a field of view, both on one grid."""
    rim = seen & ~trusted(seen, spacing_mm)
    return bool(rim.any() and body[rim].mean() >= CUT_SHARE)


ScanLike = str | Path | Sequence[str | Path] | Series
"""A folder, a list of files (or a .txt file that names them), or a series that was read."""
LEAST_RANGE = {"ct": 100.0}
"""Range of values that a scan of a patient has at least, in Hounsfield units; any at all where the scale is its own."""


def read_scans(
    plan: ScanLike, today: ScanLike, rtstruct: str | Path | StructureSet | None = None, *,
    series: tuple[str | None, str | None] = (None, None), allow_id_mismatch: bool = False,
) -> tuple[Series, Series, StructureSet]:  # fmt: skip
    """Read plan, today's scan and the structures of the plan; ``series`` has the hashes of both series."""
    chosen = rtstruct if isinstance(rtstruct, StructureSet) else _rtstruct(plan, today, rtstruct)
    drawn_on = referenced_series(chosen) if isinstance(chosen, Path) else frozenset()
    planned_on = plan if isinstance(plan, Series) else _plan(plan, chosen, drawn_on, series[0], allow_id_mismatch)
    current = today if isinstance(today, Series) else read_series(today, series[1])
    if not allow_id_mismatch:
        require_same_patient(planned_on.identity, current.identity, "the plan and today's scan")
    require_identifiers(current)
    _require_order(planned_on, current, drawn_on)
    if isinstance(chosen, Path):
        chosen = read_rtstruct(chosen, planned_on, allow_id_mismatch=allow_id_mismatch)
    return planned_on, current, chosen


def _rtstruct(plan: ScanLike, today: ScanLike, named: str | Path | None) -> Path:
    if named is not None:
        return Path(named)
    sets = _sets_in(plan)
    if len(sets) != 1:
        count = f"{len(sets)} structure sets" if sets else "no structure set"
        kind = UsageError if sets else RegweaveError
        hint = "name one with --rtstruct"
        if not sets and not isinstance(today, Series) and _sets_in(today):
            hint = "the folder of today's scan holds one: are PLAN and TODAY exchanged? Else name one with --rtstruct"
        raise kind("E161" if sets else "E101", f"the folder of the plan holds {count}", hint)
    return sets[0]


def _sets_in(source: Any) -> list[Path]:
    return [one.path for one in scan(source).objects if one.kind == "RTSTRUCT"]


def _plan(
    plan: Any, chosen: Path | StructureSet, drawn_on: frozenset[str], series: str | None, allow_id_mismatch: bool
) -> Series:
    """Read the series of the structure set, unless another one is chosen."""
    if series is None and drawn_on and isinstance(chosen, Path):
        listed = list_series(plan)
        fitting = [one for one in listed if one.identity.series_uid in drawn_on]
        if not fitting and len({one.identity.patient_hash for one in listed}) == 1 and not allow_id_mismatch:
            owner = scan([chosen]).objects[0].identity
            require_same_patient(owner, listed[0].identity, "the structure set and the images of the plan")
        if len(listed) > 1 and len(fitting) == 1:
            series = fitting[0].identity.series_uid
            patients = len({one.identity.patient_hash for one in listed})
            if patients > 1:
                notices.warn(
                    f"W233: the folder of the plan holds images of {patients} patients; the series that the structure "
                    "set was drawn on is used"
                )
    return read_series(plan, series)


def _require_order(plan: Series, today: Series, drawn_on: frozenset[str]) -> None:
    """Raise E146 if the structures were drawn on today's scan; warn if the two scans look exchanged."""
    uids = [one.identity.series_uid for one in (plan, today)]
    if uids[0] == uids[1] != "":
        notices.warn("W231: the plan and today's scan are the same series: the contours should come back as they were")
        return
    if uids[1] in drawn_on and uids[0] not in drawn_on:
        message = "the structure set was drawn on today's scan, not on the plan"
        raise UsageError("E146", message, "exchange PLAN and TODAY, or name the structure set of the plan")
    dates = [one.study.get("StudyDate", "") for one in (plan, today)]
    if all(len(date) == 8 and date.isdigit() for date in dates) and dates[1] < dates[0]:
        notices.warn("W232: today's scan is of an older study than the plan: are PLAN and TODAY exchanged?")


@dataclass(frozen=True)
class Scan:
    """A series and its working copy, which is registered: a crop round the patient, about 2 mm or finer.

    In the copy of a CT all but the patient is air. ``region`` is where it counts, ``body`` the patient, both None if
    everywhere or unknown. ``seen`` are the measured pixels (X, Y) of the series' own slices, where its field of view
    cuts the patient; ``mapped`` is the formula of its Hounsfield units, where the file has others.
    """

    series: Series
    image: Volume
    region: LabelMap | None = None
    body: NDArray[np.bool_] | None = None
    seen: NDArray[np.bool_] | None = None
    mapped: str = ""

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Voxels of the patient where the copy counts."""
        inside = np.ones(self.image.geometry.shape, dtype=bool) if self.body is None else self.body
        return inside if self.region is None else inside & (self.region.data != 0)


def prepare(
    plan: Series, today: Series, on_part: Callable[[str, float], None] = lambda _words, _share: None
) -> tuple[Scan, Scan]:
    """Make the working copies of plan and today; ``on_part`` takes the next part and the share that is done."""
    mapped, seen = "", []
    for one, words in ((today, "today's scan"), (plan, "the plan")):
        low, high = np.percentile(one.image.data[::2, ::2], (0.5, 99.5))
        if high - low <= LEAST_RANGE.get(one.image.modality or "", 0.0):
            message = f"{words} shows nothing: 99 % of its values lie between {low:g} and {high:g}"
            raise RegweaveError("E147", message, "name the series that shows the patient")
        seen.append(field_of_view(one.image) if one.image.modality == "ct" else None)
    two_ct = today.modality == plan.modality == "CT"
    if two_ct and (found := hounsfield_map(today.image, plan.image, seen[0])) is not None:
        mapped = f"{found[0]:.2f} × value {found[1]:+.0f}"
        notices.warn(
            f"W236: the values of today's scan are no Hounsfield units; by its histogram they are taken as {mapped}"
        )
        data = today.image.data * np.float32(found[0]) + np.float32(found[1])
        today = replace(today, image=replace(today.image, data=data))
    on_part("patient in today's scan", 0.2)
    now = replace(working_scan(today, seen[0]), mapped=mapped)
    on_part("patient in the plan", 0.6)
    planned = working_scan(plan, seen[1])
    on_part("start", 1.0)
    for words, one_scan in (("today's scan", now), ("the plan", planned)):
        if one_scan.seen is not None:
            notices.warn(f"W237: the field of view of {words} cuts the patient; nothing outside of it was measured")
    return planned, now


def working_scan(series: Series, seen: NDArray[np.bool_] | None = None) -> Scan:
    """Make the working copy of a series; couch and immobilisation of a CT become air.

    Outside a field of view ``seen`` (X, Y) that cuts the patient, nothing counts.
    """
    whole = series.image
    if whole.modality != "ct":
        image = cropped(whole, None, whole.geometry)
        # What is dark to the end of the scan counts as a gap even where bright tissue encloses it.
        return Scan(series, image, trusted_region(image, bright_mask(image)) if whole.modality == "mr" else None)
    whole = tissue_values(whole)
    x, y, z = (max(1, round(MOST_MM / s)) for s in whole.geometry.spacing_mm.tolist())
    data, grid = shrink(whole.data, (x, y, z)), shrink_geometry(whole.geometry, (x, y, z))
    coarse = Volume(data, grid, whole.modality)
    patient = patient_mask(coarse)
    image = cropped(whole, patient, coarse.geometry)
    if patient is None:
        return Scan(series, image)
    spacing = coarse.geometry.spacing_mm
    if seen is not None and not cuts_patient(_pixels(seen, whole.geometry, coarse.geometry), patient, spacing):
        seen = None
    body = regridded(patient, coarse.geometry, image.geometry)
    region = trusted_region(image, body)
    if seen is not None:
        inner = trusted(_pixels(seen, whole.geometry, image.geometry), image.geometry.spacing_mm)[..., None]
        counted = inner & (True if region is None else region.data != 0)
        region = LabelMap(np.broadcast_to(counted, body.shape).astype(np.uint8), image.geometry)
    return Scan(series, without_couch(image, body), region, body, seen)


def regridded(mask: NDArray[np.bool_], from_grid: Geometry, to_grid: Geometry) -> NDArray[np.bool_]:
    """Return a mask on another grid, by the nearest voxel."""
    labels = LabelMap(mask.astype(np.uint8), from_grid)
    return np.asarray(warp_labels(labels, Transform(Field.zero(to_grid))).data != 0)


def _pixels(seen: NDArray[np.bool_], whole: Geometry, part: Geometry) -> NDArray[np.bool_]:
    """Return a mask of the slices of a series on the slices of its working copy."""
    return regridded(np.repeat(seen[..., None], whole.shape[2], axis=2), whole, part)[..., 0]


def box_round(points_mm: Float64Array, geometry: Geometry) -> tuple[tuple[slice, ...], Float64Array] | None:
    """Return the voxels of a grid round points, with a margin of one, and their LPS places (n, 3); None outside it."""
    index = geometry.index(points_mm)
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

    def size(shape: Shape) -> float:
        return float((shape.distance < 0).sum() * np.prod(shape.step_mm))

    for shape in sorted(drawn, key=size, reverse=True):
        if (box := box_round(np.concatenate([c.points_mm for c in shape.structure.contours]), geometry)) is not None:
            part = data[box[0]]
            part[(shape.at(box[1]) < 0).reshape(part.shape)] = values[shape.structure.number]
    called = {values[s.structure.number]: s.structure.name for s in drawn}
    return LabelMap(data, geometry, {value: names.get(name, name) for value, name in called.items()})


MOST_MM = 2.0  # A working copy is about as fine as this, however large the scan
MOST_VOXELS = 3_000_000  # A scan that has fewer voxels round the patient is registered at full resolution
MARGIN_MM = 15.0  # Air that is kept round the patient


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


COARSE_MM = 3.0  # Voxels of the copies whose histograms are compared: large enough to average noise away
MOST_VALUES = 20_000
STEP_HU, BLUR_HU = 10.0, 30.0
EDGES_HU = np.arange(-1300.0, 1701.0, STEP_HU)
AIR_BELOW_HU, AIR_SHARE = -500.0, 0.3  # Air counts this much in either histogram, however much of it a scan shows
LEAST_PART = 0.005  # A part of the histogram that holds less does not count
SLOPES, NEAR_SLOPES = np.arange(0.60, 1.65, 0.05), np.arange(-0.04, 0.05, 0.01)
OFFSETS_HU, NEAR_OFFSETS_HU = np.arange(-1500.0, 1501.0, 20.0), np.arange(-20.0, 21.0, 5.0)
LEAST_GAIN = 0.1  # The overlap of the histograms must grow by this, or the values are not mapped
LEAST_SHIFT_HU = 80.0  # Water or air must be off by this; scanners and phantoms differ by less


HounsfieldMap = tuple[float, float]  # Hounsfield units as the first times a value plus the second


def hounsfield_map(today: Volume, plan: Volume, measured: NDArray[np.bool_] | None = None) -> HounsfieldMap | None:
    """Return the map that makes today's histogram most like the plan's; None if the values can stay.

    Both are CT of one patient, the plan in Hounsfield units. Only ``measured`` pixels (X, Y) of today count. Values can
    stay, too, if their negative ones overflowed: `tissue_values` mends that.
    """
    wanted = _shares(_sample(_overflown_as_air(plan), None), (1.0, 0.0))
    values, mended = (_sample(image, measured) for image in (today, _overflown_as_air(today)))

    def overlap(one: HounsfieldMap, values: Float64Array = values) -> float:
        return float(np.minimum(wanted, _shares(values, one)).sum())

    slope, offset = max(((float(a), float(b)) for a in SLOPES for b in OFFSETS_HU), key=overlap)
    best = slope, offset = max(((slope + a, offset + b) for a in NEAR_SLOPES for b in NEAR_OFFSETS_HU), key=overlap)
    off = max(abs(hu - (hu - offset) / slope) for hu in (0.0, -1000.0))
    as_it_is = max(overlap((1.0, 0.0)), overlap((1.0, 0.0), mended))
    return best if overlap(best) >= as_it_is + LEAST_GAIN and off >= LEAST_SHIFT_HU else None


def _overflown_as_air(image: Volume) -> Volume:
    return replace(image, data=np.where(image.data > METAL_HU, np.float32(AIR_HU), image.data))


def _sample(image: Volume, measured: NDArray[np.bool_] | None) -> Float64Array:
    """Values of a coarse copy in ascending order, at most `MOST_VALUES`, of measured pixels only."""
    x, y, z = (max(1, round(COARSE_MM / s)) for s in image.geometry.spacing_mm.tolist())
    data = shrink(image.data, (x, y, z))
    if measured is not None:
        pixels = np.ascontiguousarray(measured[..., None], dtype=np.float32)
        data = data[shrink(pixels, (x, y, 1))[..., 0] > 0.999]
    values = np.sort(data, axis=None)
    return np.asarray(values[:: max(1, len(values) // MOST_VALUES)], dtype=np.float64)


def _shares(values: Float64Array, used: HounsfieldMap) -> Float64Array:
    """Blurred histogram of mapped values, in which air and all else weigh the same for every scan."""
    below = np.searchsorted(values, (EDGES_HU - used[1]) / used[0]) / len(values)
    counts = ndimage.gaussian_filter1d(np.diff(below), BLUR_HU / STEP_HU, mode="constant")
    air = EDGES_HU[:-1] < AIR_BELOW_HU
    shares = np.where(air, AIR_SHARE, 1.0 - AIR_SHARE)
    totals = np.where(air, counts[air].sum(), counts[~air].sum())
    return np.asarray(np.divide(counts * shares, totals, out=np.zeros_like(counts), where=totals > LEAST_PART))


WORSE = 0.02  # A start may lower the correlation of the images by this much before it is called worse
CLEAR = 0.03
"""A fit must reduce 1 minus the correlation by at least this share. Along a phantom that is the same in every slice a
false shift of 12 mm reduces it by 0.01; on a head and neck the true 2.5 mm along the slices reduce it by 0.1."""
UNLIKE = 0.5  # Scans with a smaller correlation by the headers may be of two patients


@dataclass(frozen=True)
class Start:
    """Start of a propagation: transform from today to plan, on the grid of today's working copy.

    ``method`` is ``rigid``, ``affine``, ``moments``, ``none``, ``rigid in the slices``, ``REG`` or ``file``;
    ``headers`` and ``chosen`` are the correlations of the images inside the patient with the headers alone, and with
    this start.
    """

    method: str
    transform: Transform
    headers: float
    chosen: float


def find_start(init: Any, today: Scan, plan: Scan) -> Start:
    """Bring the scans to their start, and warn if today's scan ends inside the patient (W242).

    ``init`` is a method, a DICOM registration of these frames, or a transform from today to plan. Raises E144 for a
    transform of other series, E160 for other frames, E167 for one that makes the images less alike than the headers do,
    E187 for an unknown method.
    """
    still = Transform(Field.zero(today.image.geometry))
    if isinstance(init, str | Path) and str(init) in METHODS:
        method, transform = _fitted(str(init), today, plan, still)
    else:
        method, transform = _given(init, today, plan, still)
        before, after = alike(today, plan, (still, transform))
        if np.isfinite(before) and not after >= before - WORSE:
            what = f"correlation {before:.3f} with the headers, {after:.3f} with it"
            hint = "check that it belongs to these scans and this direction, or --init rigid"
            raise RegweaveError("E167", f"the start makes the images less alike: {what}", hint)
    if lacks := missing_ends(today, plan, transform):
        notices.warn(f"W242: {lacks}; structures that reach there are cut by the scan end")
    headers = correlation(today, plan, still)
    return Start(method, transform, headers, headers if transform is still else correlation(today, plan, transform))


LEAST_MISSING_MM, LEAST_MISSING_SLICES = 6.0, 3
"""A scan that ends this much earlier than the plan is named; less is how a patient is laid."""
UPRIGHT = 0.7


def missing_ends(today: Scan, plan: Scan, start: Transform) -> str:
    """Describe how far the plan extends beyond the first and the last slice of today; empty if it does not."""
    if plan.body is None:
        return ""
    grid, source = today.image.geometry, plan.image.geometry
    shown = np.flatnonzero(plan.body.any(axis=(0, 1)))
    middles = np.array([[*np.argwhere(plan.body[..., k]).mean(axis=0), k] for k in shown])
    to_today = np.linalg.inv(grid.affine) @ np.linalg.inv(start.affine) @ source.affine
    along = middles @ to_today[2, :3] + to_today[2, 3]
    step = float(grid.spacing_mm[2])
    up = grid.affine[2, 2] / step
    ends = ("lower", "upper") if up > UPRIGHT else ("upper", "lower") if up < -UPRIGHT else ("first", "last")
    half = 0.5 * (float(source.spacing_mm[2]) - step)
    beyond = -along.min() * step + half, (along.max() - (grid.shape[2] - 1)) * step + half
    least = max(LEAST_MISSING_MM, LEAST_MISSING_SLICES * step)
    short = [(end, mm) for end, mm in zip(ends, beyond, strict=True) if mm > least]
    lacks = [f"{mm:.0f} mm ({mm / step:.0f} slices) at its {end} end" for end, mm in short]
    return f"today's scan lacks {' and '.join(lacks)} of the patient that the plan shows" if lacks else ""


def _fitted(method: str, today: Scan, plan: Scan, still: Transform) -> tuple[str, Transform]:
    """Fit a start, and keep the part that the images clearly support: all of it, its part in the slices, or nothing."""
    fixed, moving = (Image.of(one.image, mask=one.region) for one in (today, plan))
    affine = initial_affine(fixed, moving, method)
    if np.allclose(affine, np.eye(4)):
        return "none", still
    whole, flat = (Transform(still.field, one) for one in (affine, in_slices(affine, today)))
    kept, part, all_of_it = alike(today, plan, (still, flat, whole))

    def clearly_above(value: float, before: float) -> bool:
        return 1.0 - value < (1.0 - CLEAR) * (1.0 - before)

    if not np.isfinite(kept) or clearly_above(all_of_it, max(kept, part)):
        return method, whole
    if clearly_above(part, kept):
        notices.warn(
            f"W229: the {method} start was used in the slices only (correlation {kept:.2f} before, {part:.2f} after, "
            f"{all_of_it:.2f} with its part along the slices); along the slices the headers are used"
        )
        return f"{method} in the slices", flat
    compared = f"correlation {kept:.2f} before, {all_of_it:.2f} after"
    if kept < UNLIKE:
        notices.warn(
            f"W229: the scans could not be aligned with a {method} start ({compared}); the headers are used. Check "
            "that this is the same patient"
        )
    else:
        notices.warn(f"W229: the {method} start is no better than the headers ({compared}); the headers are used")
    return "none", still


def in_slices(affine: Float64Array, today: Scan) -> Float64Array:
    """Return the part of a map that stays in the slices: turn and shift in the plane of the patient's middle."""
    grid = today.image.geometry
    axes = grid.affine[:3, :3] / grid.spacing_mm
    shown = np.ones(grid.shape, dtype=bool) if today.body is None else today.body
    middle = grid.points(np.array([np.average(np.arange(n), weights=shown.sum(axis=((1, 2), (0, 2), (0, 1))[k]))
                                   for k, n in enumerate(grid.shape)]))  # fmt: skip
    turn = np.eye(3)
    u, _, v = np.linalg.svd((axes.T @ affine[:3, :3] @ axes)[:2, :2])
    turn[:2, :2] = u @ v
    turn = axes @ turn @ axes.T
    shift = affine[:3, :3] @ middle + affine[:3, 3] - middle
    shift -= axes[:, 2] * (axes[:, 2] @ shift)
    flat = np.eye(4)
    flat[:3, :3], flat[:3, 3] = turn, middle + shift - turn @ middle
    return flat


def _given(init: Any, today: Scan, plan: Scan, still: Transform) -> tuple[str, Transform]:
    """Read a registration or transform and sample it on the working grid."""
    grid, is_file = still.field.geometry, isinstance(init, str | Path)
    if is_file:
        if not exists(init):
            raise UsageError("E187", f"unknown start '{init}'", f"use {', '.join(METHODS)}, a REG or a transform file")
        with open_file(Path(init)) as stream:
            dicom = looks_like_dicom(stream.read(132))
        if dicom:
            reg = read_reg(init)
            require_frames(reg, today.series.frame_uid, plan.series.frame_uid, "the registration")
            return "REG", Transform(read_transform(reg.transform, grid).field, reg.transform.affine)
    transform = read_transform(init, grid)
    if transform.ends is not None:
        require_direction(transform.ends, "fixed_to_moving", "the start")
        ours, theirs = today.series.identity.series_hash, plan.series.identity.series_hash
        require_series(transform.ends, ours, theirs, "the start")
    return "file" if is_file else "memory", transform


MOST_POINTS = 200_000  # Voxels that are compared: every k-th of the patient
LEAST_POINTS = 100


def thinned(mask: NDArray[np.bool_], most: int = MOST_POINTS) -> Float64Array:
    """Return the indices (n, 3) of every k-th voxel of a mask, about ``most`` of them."""
    flat = np.flatnonzero(mask)
    return np.stack(np.unravel_index(flat[:: max(1, len(flat) // most)], mask.shape), axis=1)


def correlation(today: Scan, plan: Scan, transform: Transform) -> float:
    """Return Pearson's correlation of the windowed images over today's patient, where the plan has a voxel.

    NaN without overlap. 1 is the same image on another scale of grey.
    """
    index = thinned(today.inside)
    there = _in_plan(today, plan, index, transform)
    shown = ((there >= 0) & (there <= np.array(plan.image.geometry.shape) - 1)).all(axis=1)
    return _pearson(today, plan, index, [there], np.asarray(shown))[0]


def alike(today: Scan, plan: Scan, transforms: Sequence[Transform]) -> tuple[float, ...]:
    """Return the correlations of the images for several transforms, all over the same voxels.

    These are voxels of today that show the patient in either scan, inside both scans for *every* transform: neither
    slices without patient at the ends nor the parts that one scan lacks can favour a transform. NaN without such
    voxels.
    """
    counted = np.ones(today.image.data.shape, dtype=bool) if today.region is None else today.region.data != 0
    if today.body is not None:
        counted = counted & today.body.any(axis=(0, 1))
    index = thinned(counted)
    shown = np.ones(len(index), dtype=bool)
    patient = shown if today.body is None else today.body[tuple(index.T)]
    low, high = np.zeros(3), np.array(plan.image.geometry.shape) - 1.0
    if plan.body is not None:
        low[2], high[2] = np.flatnonzero(plan.body.any(axis=(0, 1)))[[0, -1]]
    places = [_in_plan(today, plan, index, one) for one in transforms]
    for there in places:
        shown = shown & ((there >= low) & (there <= high)).all(axis=1)
        if plan.region is not None:
            shown &= _at(plan.region.data != 0, there)
        if plan.body is not None:
            patient = patient | _at(plan.body, there)
    return _pearson(today, plan, index, places, np.asarray(shown & patient))


def _in_plan(today: Scan, plan: Scan, index: Float64Array, transform: Transform) -> Float64Array:
    points = today.image.geometry.points(index.astype(np.float64))
    return plan.image.geometry.index(warp_points(points, transform))


def _at(mask: NDArray[np.bool_], there: Float64Array) -> NDArray[np.bool_]:
    return np.asarray(ndimage.map_coordinates(mask.astype(np.uint8), there.T, order=0, cval=0) != 0)


def _pearson(
    today: Scan, plan: Scan, index: Float64Array, places: Sequence[Float64Array], shown: NDArray[np.bool_]
) -> tuple[float, ...]:
    """Correlate the windowed images at voxels of today and several places of them in the plan."""
    if shown.sum() < LEAST_POINTS:
        return (float("nan"),) * len(places)
    a, grey = _windowed(today.image)[tuple(index[shown].T)].astype(np.float64), _windowed(plan.image)
    a, found = a - a.mean(), []
    for there in places:
        b = ndimage.map_coordinates(grey, there[shown].T, order=1, mode="nearest").astype(np.float64)
        b -= b.mean()
        spread = float(np.sqrt((a**2).sum() * (b**2).sum()))
        found.append(float((a * b).sum() / spread) if spread > 0 else float("nan"))
    return tuple(found)


def _windowed(image: Volume) -> Float64Array:
    assert image.modality is not None
    return np.asarray(apply_window(image.data, default_window(image.data, image.modality)))
