"""DICOM image series: chosen from a folder, each slice placed by its own position, its pixels put on an even grid."""

import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydicom
from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.pixels.decoders.base import get_decoder
from pydicom.uid import UID, ImplicitVRLittleEndian, generate_uid
from scipy import ndimage

from regweave import __version__, notices
from regweave.errors import RegweaveError, UsageError
from regweave.io.dicom import parse as dcm
from regweave.io.disk.files import damaged, open_file, require_memory
from regweave.io.disk.outputs import atomic_path
from regweave.io.geometry import affine_of, make_geometry
from regweave.io.stored import volume_shape
from regweave.types import Float32Array, Float64Array, Geometry, Identity, Modality, Volume


@dataclass(frozen=True)
class SeriesFiles:
    """Files of one series; its repr shows no identity.

    ``hash`` holds twelve hexadecimal digits by which ``series=`` chooses it. ``spacing_mm`` is that of columns, rows
    and the median slice gap, None if unreadable. ``label`` has number, description, contrast agent and date of the
    series.
    """

    modality: str
    number: int
    hash: str
    spacing_mm: tuple[float, float, float] | None
    label: str = field(repr=False)
    files: tuple[Path, ...] = field(repr=False)
    identity: Identity = field(repr=False)


@dataclass(frozen=True)
class DicomSlice:
    """One image of a series: identifiers for contours, centre of the first pixel (LPS), position along the normal."""

    class_uid: str = field(repr=False)
    instance_uid: str = field(repr=False)
    position_mm: Float64Array
    along_mm: float


@dataclass(frozen=True)
class SliceGrid:
    """In-plane grid that all slices of a series share.

    ``row`` and ``column`` are unit vectors of growing column and row index, ``normal`` is their cross product;
    ``spacing_mm`` and ``size`` count along ``row``, then along ``column``.
    """

    row: Float64Array
    column: Float64Array
    normal: Float64Array
    spacing_mm: tuple[float, float]
    size: tuple[int, int]


@dataclass(frozen=True)
class Series:
    """An image series.

    ``image`` is on an even grid: the stored values if the slices are even and straight (``exact``), else interpolated
    between their true positions. ``slices`` are the true slices, ascending along the normal. ``study`` has the elements
    that new objects of the same study copy.
    """

    image: Volume
    slices: tuple[DicomSlice, ...] = field(repr=False)
    grid: SliceGrid = field(repr=False)
    identity: Identity
    modality: str
    exact: bool = True
    study: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def frame_uid(self) -> str:
        """Frame of reference."""
        return self.identity.frame_uid


MODALITIES: dict[str, Modality] = {"CT": "ct", "MR": "mr", "PT": "pet"}
OUTSIDE = {"CT": -1000.0}
STUDY = ("StudyDate", "StudyTime", "StudyID", "AccessionNumber", "ReferringPhysicianName", "SpecificCharacterSet")
"""Elements that new objects of the same study copy."""
Gaps = Literal["error", "keep"]
ONE_SERIES = "choose by the first word of a line, with --series (or --planning-series), or name a folder of one series"


def list_series(source: dcm.SeriesSource) -> tuple[SeriesFiles, ...]:
    """Return the image series in a folder or list of files, the largest first, without localisers."""
    return _listed(dcm.scan(source))


def choose_series(source: dcm.SeriesSource, series: str | None = None) -> SeriesFiles:
    """Return the only series of a source, or the named one; E161 lists all if the choice is not unique."""
    return _files_of(_chosen(dcm.scan(source), series, dcm.named(source)))


def series_by_place(names: Sequence[str], first: object) -> tuple[str | None, str | None]:
    """Assign each named series to one of two sources.

    Two are taken in order. One alone belongs to ``first`` where that is a folder or list that holds it, else to the
    second source. Raises E192 for more than two.
    """
    if len(names) > 2:
        raise UsageError("E192", f"{len(names)} series are named", "name one for each of the two scans")
    if len(names) == 2:
        return names[0], names[1]
    if not names:
        return None, None
    listed = list_series(first) if isinstance(first, str | Path | list | tuple) else ()
    inside = any(one.hash.startswith(names[0]) for one in listed)
    return (names[0], None) if inside else (None, names[0])


def _listed(found: dcm.FolderContents) -> tuple[SeriesFiles, ...]:
    listed = [_files_of(headers) for headers in found.images.values()]
    return tuple(sorted(listed, key=lambda one: (-one.number, one.hash)))


def _files_of(headers: Sequence[dcm.SliceHeader]) -> SeriesFiles:
    identity, modality = dcm.identity_in(headers[0].dataset), dcm.text(headers[0].dataset, "Modality")
    spacing: tuple[float, float, float] | None = None
    try:
        with dcm.guarded("a series"):
            grid = slice_grid(headers[0])
            positions = [dcm.numbers(h.dataset, "ImagePositionPatient", 3, "it") for h in headers]
            along = sorted({float(one @ grid.normal) for one in positions})
            if len(along) > 1:
                spacing = (*grid.spacing_mm, float(np.median(np.diff(along))))
    except RegweaveError:  # listed without spacing; reading it reports the fault
        spacing = None
    files = tuple(header.path for header in headers)
    return SeriesFiles(modality, len(headers), identity.series_hash, spacing, _label(headers[0]), files, identity)


def read_series(source: dcm.SeriesSource, series: str | None = None, *, gaps: Gaps = "error") -> Series:
    """Read one image series of a folder, with folders below it, or of a list of files.

    ``series`` is the hash, or its beginning, or the UID of the series to read. If images are missing, ``gaps`` refuses
    the series, or interpolates across the gaps with W223.
    """
    found, subject = dcm.scan(source), dcm.named(source)
    headers = _chosen(found, series, subject)
    with dcm.guarded(subject):
        for header in headers:
            require_plain(header)
        headers, slices, grid = place(headers, subject)
        volume_shape((*grid.size, len(slices)), subject)
        along = np.array([one.along_mm for one in slices])
        try:
            require_complete(along, subject)
        except RegweaveError as error:
            if gaps == "error":
                lost = "" if not found.empty else f"; without a byte: {', '.join(found.empty[:5])}"
                raise RegweaveError(error.code, error.message + lost, error.hint) from None
            notices.warn(f"W223: {error.message}; interpolated across them")
        require_memory(12 * grid.size[0] * grid.size[1] * len(slices), subject)
        modality = dcm.text(headers[0].dataset, "Modality")
        data, geometry = stack(slices, grid, lambda k: slice_values(headers[k]), OUTSIDE.get(modality, 0.0), subject)
        identity = dcm.identity_in(headers[0].dataset)
        study = {word: dcm.text(headers[0].dataset, word) for word in STUDY}
    image = Volume(data, geometry, MODALITIES[modality])
    return Series(image, tuple(slices), grid, identity, modality, is_even(slices, grid), study)


def _chosen(found: dcm.FolderContents, series: str | None, subject: str) -> list[dcm.SliceHeader]:
    listed = _listed(found)
    if not listed:
        only = "localisers" if found.localisers else ", ".join(sorted({one.kind for one in found.objects}))
        message = f"there is no CT, MR or PET series in {subject}, but {only}"
        sets = any(one.kind == "RTSTRUCT" for one in found.objects)
        hint = "; structures go through `regweave contours` or `regweave warp rtstruct`" if sets else ""
        raise RegweaveError("E101", message, f"name the folder of the image series{hint}")
    fitting = [one for one in listed if series in (None, one.identity.series_uid) or one.hash.startswith(str(series))]
    if len(fitting) != 1:
        what = f"holds {len(listed)} image series" if series is None else f"holds {len(fitting)} series '{series[:12]}'"
        lines = "".join(f"\n  {line}" for line in _lines(listed))
        raise UsageError("E161", f"{subject} {what}:{lines}\n", ONE_SERIES)
    return found.images[fitting[0].identity.series_uid]


def _label(header: dcm.SliceHeader) -> str:
    """Return number, description, contrast agent, date and time of a series, for a person who has to choose."""
    number, words, agent = (
        dcm.remark(header, key) for key in ("SeriesNumber", "SeriesDescription", "ContrastBolusAgent")
    )
    day, time = dcm.remark(header, "SeriesDate") or dcm.remark(header, "StudyDate"), dcm.remark(header, "SeriesTime")
    if len(day) == 8:
        day = f"{day[:4]}-{day[4:6]}-{day[6:]}"
    parts = (
        f"series {number}" if number else "", f"'{words[:40]}'" if words else "",
        f"contrast {agent[:20]}" if agent else "", f"{day} {time[:2]}:{time[2:4]}" if len(time) >= 4 else day,
    )  # fmt: skip
    return ", ".join(filter(None, parts))


def _lines(listed: Sequence[SeriesFiles]) -> list[str]:
    folders = [os.path.commonpath([path.parent.absolute() for path in one.files]) for one in listed]
    root, found = os.path.commonpath(folders), []
    for one, folder in zip(listed, folders, strict=True):
        spacing = "" if one.spacing_mm is None else " of " + " × ".join(f"{n:.3g}" for n in one.spacing_mm) + " mm"
        place = "" if len(set(folders)) == 1 else f"in {os.path.relpath(folder, root)}"
        label = ", ".join(filter(None, (one.label, place)))
        found.append(f"{one.hash}  {one.modality}, {one.number} images{spacing}" + (f"\n    {label}" if label else ""))
    return found


SAME_DIRECTION = 1e-3
SAME_PLACE_MM = 0.005
SAME_GAP = 0.02  # Share of the usual gap by which gaps of even slices may differ
THICK = 1.25
"""Slices thicker than this many steps overlap: two passes of one scan fill gaps, two scans of one region overlap."""
SCANS = (
    "AcquisitionNumber", "SeriesNumber", "StudyInstanceUID", "TemporalPositionIdentifier", "EchoNumbers",
    "ConvolutionKernel", "KVP", "ImageType",
)  # fmt: skip
"""Elements by which two scans that share a SeriesInstanceUID may differ."""
MOST_SCANS, LEAST_SLICES = 4, 4


def place(
    headers: Sequence[dcm.SliceHeader], subject: str
) -> tuple[list[dcm.SliceHeader], list[DicomSlice], SliceGrid]:
    """Sort the images of a series along their normal."""
    grid = slice_grid(headers[0])
    _require_one_stack(headers, grid, subject)
    placed = []
    for header in headers:
        position = dcm.numbers(header.dataset, "ImagePositionPatient", 3, header.subject)
        uids = [dcm.text(header.dataset, word) for word in ("SOPClassUID", "SOPInstanceUID")]
        placed.append((DicomSlice(uids[0], uids[1], position, float(position @ grid.normal)), header))
    placed.sort(key=lambda pair: pair[0].along_mm)
    kept = [placed[0]]
    for one, header in placed[1:]:
        last = kept[-1][0]
        if one.along_mm - last.along_mm > SAME_PLACE_MM:
            kept.append((one, header))
        elif one.instance_uid != last.instance_uid or not one.instance_uid:
            message = f"{subject} has two different images at {one.along_mm:.3f} mm along the normal"
            hint = "it holds several phases, echoes or reconstructions: export one of them alone"
            raise RegweaveError("E113", message, hint)
    if len(kept) < len(placed):
        notices.warn(f"W222: {len(placed) - len(kept)} images of {subject} are there twice; one of each is used")
    different = {one.instance_uid for one, _ in kept} - {""}
    if different and len(different) < len(kept):
        message = f"{subject} has {len(kept)} different images with {len(different)} different SOPInstanceUIDs"
        raise RegweaveError("E123", message, "export the series again: contours refer to an image by this identifier")
    _require_one_scan([header for _, header in kept], np.array([one.along_mm for one, _ in kept]), subject)
    return [header for _, header in kept], [one for one, _ in kept], grid


def slice_grid(header: dcm.SliceHeader) -> SliceGrid:
    """Read directions, spacing and size of one image."""
    data, subject = header.dataset, header.subject
    row, column = directions(data, subject)
    down, across = dcm.numbers(data, "PixelSpacing", 2, subject)  # row spacing first
    size = tuple(dcm.integer(data, word, None, subject) for word in ("Columns", "Rows"))
    if min(down, across) <= 0 or min(size) < 1 or max(size) > 65535:
        raise RegweaveError("E111", f"{subject} has no pixels of a positive size", "export the series again")
    return SliceGrid(row, column, np.cross(row, column), (float(across), float(down)), (size[0], size[1]))


def directions(data: Any, subject: str) -> tuple[Float64Array, Float64Array]:
    """Return the unit vectors of ImageOrientationPatient, or raise E111 where they are none or not at right angles."""
    cosines = dcm.numbers(data, "ImageOrientationPatient", 6, subject)
    row, column = cosines[:3], cosines[3:]
    lengths = np.linalg.norm(row), np.linalg.norm(column)
    if min(lengths) < 0.5 or abs(row @ column) > 0.01 or max(abs(n - 1) for n in lengths) > 0.01:
        message = f"{subject} has an ImageOrientationPatient that is not two unit vectors at right angles"
        raise RegweaveError("E111", message, "export it again")
    row = row / lengths[0]
    column = column - (column @ row) * row
    return row, np.asarray(column / np.linalg.norm(column))


def _require_one_stack(headers: Sequence[dcm.SliceHeader], grid: SliceGrid, subject: str) -> None:
    first = dcm.identity_in(headers[0].dataset)
    kinds = {(dcm.text(header.dataset, "Modality"), dcm.text(header.dataset, "SOPClassUID")) for header in headers}
    if len(kinds) > 1:
        modalities = " and ".join(sorted({modality for modality, _ in kinds}))
        message = f"{subject} mixes images of {len(kinds)} kinds under one SeriesInstanceUID: {modalities}"
        raise RegweaveError("E113", message, "export each series alone")
    for header in headers[1:]:
        other = slice_grid(header)
        turned = max(np.abs(a - b).max() for a, b in ((grid.row, other.row), (grid.column, other.column)))
        away = np.abs(np.subtract(grid.spacing_mm, other.spacing_mm)).max()
        if turned > SAME_DIRECTION or away > SAME_DIRECTION * max(grid.spacing_mm) or grid.size != other.size:
            message = f"{subject} mixes images of different direction, size or pixel spacing, so they are no stack"
            raise RegweaveError("E113", message, "export one reconstruction alone, without localisers")
        identity = dcm.identity_in(header.dataset)
        if (identity.patient_id, identity.patient_name) != (first.patient_id, first.patient_name):
            raise RegweaveError("E162", f"{subject} holds images of two patients", "separate them first")
        if identity.frame_uid != first.frame_uid:
            message = f"{subject} holds images of two frames of reference"
            raise RegweaveError("E160", message, "export the series again, one frame of reference")


def _require_one_scan(headers: Sequence[dcm.SliceHeader], along_mm: Float64Array, subject: str) -> None:
    """Raise E113 for scans with interleaved slices, each of them even and complete alone.

    Passes of one scan interleave as well, but together they are even and their slices are no thicker than the step.
    """
    if len(along_mm) < 2 * LEAST_SLICES:
        return
    gaps = np.diff(along_mm)
    step = float(np.median(gaps))
    even = np.abs(gaps - step).max() <= SAME_GAP * step
    numbers_ = [dcm.remark(header, "InstanceNumber") for header in headers]
    counted = np.array(numbers_, dtype=np.float64) if all(one.isdigit() for one in numbers_) else None
    stated = [
        float(value) for header in headers if (value := dcm.remark(header, "SliceThickness")).replace(".", "").isdigit()
    ]
    thickness = float(np.median(stated)) if stated else 0.0
    if even and (thickness <= THICK * step if thickness else counted is None or _monotone(counted)):
        return
    for word, labels in _splits(headers, counted):
        parts = [along_mm[labels == one] for one in np.unique(labels)]
        steps = [float(np.median(np.diff(part))) for part in parts]
        alone = all(np.abs(np.diff(p) - s).max() <= SAME_GAP * s for p, s in zip(parts, steps, strict=True))
        shared = min(p[-1] for p in parts) - max(p[0] for p in parts)
        if alone and min(steps) > THICK * step and shared > 0.5 * min(np.ptp(p) for p in parts):
            listed = " and ".join(f"{len(p)} images every {s:.3g} mm" for p, s in zip(parts, steps, strict=True))
            message = f"{subject} holds {len(parts)} scans whose slices lie between each other: {listed} ({word})"
            raise RegweaveError("E113", message, "export one of the scans alone, or name its files in a list")


def _splits(headers: Sequence[dcm.SliceHeader], counted: Float64Array | None) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield ways to divide images, in order of place, into scans of at least `LEAST_SLICES`: name and label of each."""
    for word in SCANS:
        labels = np.array([dcm.remark(header, word) for header in headers])
        sizes = np.unique(labels, return_counts=True)[1]
        if 2 <= len(sizes) <= MOST_SCANS and sizes.min() >= LEAST_SLICES:
            yield f"differing in {word}", labels
    if counted is not None and not _monotone(counted):
        for parts in range(2, min(MOST_SCANS, len(headers) // LEAST_SLICES) + 1):
            turns = np.arange(len(headers)) % parts
            if all(_monotone(counted[turns == k]) for k in range(parts)):
                yield "differing in InstanceNumber", turns


def _monotone(values: Float64Array) -> bool:
    steps = np.diff(values)
    return bool((steps > 0).all() or (steps < 0).all())


def require_complete(along_mm: Float64Array, subject: str) -> None:
    """Raise E113 where single gaps are whole multiples of an otherwise even spacing: images are missing there.

    A series may change its spacing; then neighbouring gaps change with it.
    """
    gaps = np.diff(along_mm)
    if len(gaps) < 3:
        return
    usual = float(np.median(gaps))
    even = np.abs(gaps - usual) <= SAME_GAP * usual
    steps = np.rint(gaps / usual)
    whole = (steps >= 2) & (np.abs(gaps - steps * usual) <= SAME_GAP * usual * steps)
    beside = np.concatenate([[True], even[:-1]]) & np.concatenate([even[1:], [True]])
    missing = np.flatnonzero(whole & beside)
    if even.mean() < 0.5 or not len(missing):
        return
    lost = int((steps[missing] - 1).sum())
    where = ", ".join(f"{along_mm[k]:.2f} and {along_mm[k + 1]:.2f}" for k in missing[:5])
    count = f"{lost} image{'s' if lost > 1 else ''}"
    message = f"{subject} lacks {count}: gaps of more than {usual:.3g} mm between {where} mm along the normal"
    raise RegweaveError("E113", message, "export the whole series; gaps='keep' in Python interpolates across them")


EVEN = 0.02  # Share of the spacing by which slices may be off an even and straight stack
MOST_REFINEMENT = 4  # Planes that an uneven stack may get for each stored one
ROWS = 8
Read = Callable[[int], Float32Array]


def is_even(slices: Sequence[DicomSlice], grid: SliceGrid) -> bool:
    """Whether slices are on an even grid with perpendicular axes, to a fiftieth of a voxel."""
    positions = np.stack([one.position_mm for one in slices])
    along = positions @ grid.normal
    step = (along[-1] - along[0]) / max(len(slices) - 1, 1)
    off = np.abs(along - (along[0] + step * np.arange(len(slices)))).max()
    return bool(off <= EVEN * step and np.abs(_drift(slices, grid)).max() <= EVEN * min(grid.spacing_mm))


def stack(
    slices: Sequence[DicomSlice], grid: SliceGrid, read: Read, fill: float, subject: str
) -> tuple[Float32Array, Geometry]:
    """Return voxels [i, j, k] and their grid, from slices in ascending order.

    ``read`` returns the values [row, column] of a slice by its number; ``fill`` is used beside sheared slices.
    """
    along = np.array([one.along_mm for one in slices])
    if is_even(slices, grid):
        step = (along[-1] - along[0]) / (len(slices) - 1)
        shape = (len(slices), grid.size[1], grid.size[0])
        geometry = _geometry(grid, slices[0].position_mm, step, shape, subject)
        planes = np.empty(shape, dtype=np.float32)
        for k in range(len(slices)):
            planes[k] = read(k)
        return _turned(planes), geometry
    return _resampled(slices, grid, read, fill, subject)


def _resampled(
    slices: Sequence[DicomSlice], grid: SliceGrid, read: Read, fill: float, subject: str
) -> tuple[Float32Array, Geometry]:
    along = np.array([one.along_mm for one in slices])
    extent = float(along[-1] - along[0])
    gap = max(float(np.median(np.diff(along))), extent / (MOST_REFINEMENT * (len(slices) - 1)))
    count = round(extent / gap) + 1
    wanted = np.linspace(along[0], along[-1], max(count, 2))
    drift = _drift(slices, grid) / np.asarray(grid.spacing_mm)
    low = np.where(np.ptp(drift, axis=0) > EVEN, np.floor(drift.min(axis=0)), 0.0)
    more = np.where(np.ptp(drift, axis=0) > EVEN, np.ceil(drift.max(axis=0)), 0.0) - low
    columns, rows = (int(n + m) for n, m in zip(grid.size, more, strict=True))
    spread = low * np.asarray(grid.spacing_mm)
    origin = slices[0].position_mm + spread[0] * grid.row + spread[1] * grid.column
    geometry = _geometry(grid, origin, extent / (len(wanted) - 1), (len(wanted), rows, columns), subject)
    planes = np.empty((len(wanted), rows, columns), dtype=np.float32)
    kept: dict[int, Float32Array] = {}
    for k, w in enumerate(wanted):
        below = int(np.clip(np.searchsorted(along, w, side="right") - 1, 0, len(along) - 2))
        kept = {n: kept[n] if n in kept else _in_place(read(n), drift[n] - low, (rows, columns), fill)
                for n in (below, below + 1)}  # fmt: skip
        t = np.float32((w - along[below]) / (along[below + 1] - along[below]))
        planes[k] = kept[below] + t * (kept[below + 1] - kept[below])
    return _turned(planes), geometry


def _in_place(values: Float32Array, shift: Float64Array, shape: tuple[int, int], fill: float) -> Float32Array:
    """Put one slice on the common grid; ``shift`` is along columns and rows, in pixels."""
    if shape == values.shape and np.abs(shift).max() <= EVEN:
        return values
    room = np.full(shape, fill, dtype=np.float32)
    room[: values.shape[0], : values.shape[1]] = values
    moved: Float32Array = ndimage.shift(room, (shift[1], shift[0]), order=1, mode="constant", cval=fill)
    return moved


def _drift(slices: Sequence[DicomSlice], grid: SliceGrid) -> Float64Array:
    """In-plane distance of each slice's first pixel from that of the first slice, along rows and columns, (n, 2)."""
    away = np.stack([one.position_mm for one in slices]) - slices[0].position_mm
    return np.stack([away @ grid.row, away @ grid.column], axis=1)


def _turned(planes: Float32Array) -> Float32Array:
    """Turn [plane, row, column] into [i, j, k], some rows at a time, which caches bear better."""
    out = np.empty(planes.shape[::-1], dtype=np.float32)
    for first in range(0, planes.shape[1], ROWS):
        part = slice(first, first + ROWS)
        out[:, part] = planes[:, part].transpose(2, 1, 0)
    return out


def _geometry(grid: SliceGrid, origin: Float64Array, step: float, shape: tuple[int, ...], subject: str) -> Geometry:
    axes = grid.row * grid.spacing_mm[0], grid.column * grid.spacing_mm[1], grid.normal * step
    return make_geometry(shape[::-1], affine_of(np.stack(axes, axis=1), origin), subject)


IMPLICIT, BIG_ENDIAN = "1.2.840.10008.1.2", "1.2.840.10008.1.2.2"
NATIVE = (IMPLICIT, "1.2.840.10008.1.2.1", BIG_ENDIAN, "")
GDCM, CHARLS, OPENJPEG = "python-gdcm", "pyjpegls", "pylibjpeg-openjpeg"
PLUG_INS = {
    "1.2.840.10008.1.2.4.50": ("JPEG baseline", GDCM), "1.2.840.10008.1.2.4.51": ("JPEG extended", GDCM),
    "1.2.840.10008.1.2.4.57": ("JPEG lossless", GDCM), "1.2.840.10008.1.2.4.70": ("JPEG lossless", GDCM),
    "1.2.840.10008.1.2.4.80": ("JPEG-LS", CHARLS), "1.2.840.10008.1.2.4.81": ("JPEG-LS", CHARLS),
    "1.2.840.10008.1.2.4.90": ("JPEG 2000", OPENJPEG), "1.2.840.10008.1.2.4.91": ("JPEG 2000", OPENJPEG),
    "1.2.840.10008.1.2.4.201": ("HTJ2K", OPENJPEG), "1.2.840.10008.1.2.4.202": ("HTJ2K", OPENJPEG),
    "1.2.840.10008.1.2.5": ("RLE", "pydicom"),
}  # fmt: skip
"""Compressions by transfer syntax: name, and a package of the extra that decodes it."""
ENHANCED = {
    "1.2.840.10008.5.1.4.1.1.2.1": "Enhanced CT", "1.2.840.10008.5.1.4.1.1.4.1": "Enhanced MR",
    "1.2.840.10008.5.1.4.1.1.130": "Enhanced PET", "1.2.840.10008.5.1.4.1.1.4.3": "Enhanced MR colour",
    "1.2.840.10008.5.1.4.1.1.2.2": "Legacy Converted Enhanced CT",
    "1.2.840.10008.5.1.4.1.1.4.4": "Legacy Converted Enhanced MR",
}  # fmt: skip
AIR_HU = -1000.0


def require_plain(header: dcm.SliceHeader) -> None:
    """Raise E163 for anything but a single grey image with 8, 16 or 32 bits; E123 for contradictory bits."""
    data = header.dataset
    name = ENHANCED.get(dcm.text(data, "SOPClassUID"))
    frames = dcm.number(data, "NumberOfFrames", 1, header.subject)
    if name is not None or frames != 1:
        found = f"{name or 'a multi-frame object'} of {frames:g} frames"
        hint = "export it as single-frame slices; dcm4che's and dcm2niix's converters do that too"
        raise RegweaveError("E163", f"{header.subject} is {found}, which is not read", hint)
    samples = dcm.number(data, "SamplesPerPixel", 1, header.subject)
    bits = dcm.number(data, "BitsAllocated", None, "it")
    if samples != 1 or not dcm.text(data, "PhotometricInterpretation").startswith("MONOCHROME"):
        message = f"{header.subject} is a colour image, needed is one grey value a pixel"
        raise RegweaveError("E163", message, "name the series of the grey images")
    if bits not in (8, 16, 32):
        message = f"{header.subject} has {bits:g} bits a pixel, read are 8, 16 and 32"
        raise RegweaveError("E163", message, "export the series again with 16 bits")
    require_bits(data, header.subject)


def require_bits(data: Any, subject: str) -> None:
    """Raise E123 unless the bits of a pixel are the lowest ones of those allocated, and their sign is stated."""
    allocated, signed = (dcm.integer(data, word, None, subject) for word in ("BitsAllocated", "PixelRepresentation"))
    stored = dcm.integer(data, "BitsStored", allocated, subject)
    high = dcm.integer(data, "HighBit", stored - 1, subject)
    if not 0 < stored <= allocated or high != stored - 1 or signed not in (0, 1):
        found = f"BitsAllocated {allocated}, BitsStored {stored}, HighBit {high}, PixelRepresentation {signed}"
        allowed = "1 to BitsAllocated bits, HighBit one less than BitsStored, PixelRepresentation 0 or 1"
        raise RegweaveError("E123", f"{subject} has {found}, allowed are {allowed}", "export it again")


def slice_values(header: dcm.SliceHeader) -> Float32Array:
    """Return the values of one slice [row, column] after its own rescaling."""
    with dcm.guarded(header.subject):
        data = header.dataset
        stored = _stored(header)
        lut = dcm.items(data, "ModalityLUTSequence")
        if lut:
            return _looked_up(stored, lut[0], header)
        slope = dcm.number(data, "RescaleSlope", 1.0, header.subject)
        if slope == 0:
            raise damaged(header.subject, "its RescaleSlope is 0")
        exact = np.float64 if stored.dtype.itemsize > 2 else np.float32  # single precision holds 24 bits
        values: NDArray[Any] = stored.astype(exact)
        values *= exact(slope)
        values += exact(dcm.number(data, "RescaleIntercept", 0.0, header.subject))
        if dcm.text(data, "Modality") == "CT" and data.get("PixelPaddingValue", None) not in (None, ""):
            value = dcm.number(data, "PixelPaddingValue", None, header.subject)
            limit = dcm.number(data, "PixelPaddingRangeLimit", value, header.subject)
            if stored.dtype.kind == "i" and value > np.iinfo(stored.dtype).max:  # written without its sign
                turn = 2.0 ** (8 * stored.dtype.itemsize)
                value, limit = value - turn, limit - turn
            values[(stored >= min(value, limit)) & (stored <= max(value, limit))] = AIR_HU
        return values.astype(np.float32, copy=False)


def _stored(header: dcm.SliceHeader) -> NDArray[Any]:
    data, subject = header.dataset, header.subject
    rows, columns = (dcm.integer(data, word, None, subject) for word in ("Rows", "Columns"))
    syntax = str(data.file_meta.get("TransferSyntaxUID", ""))
    if syntax not in NATIVE:
        return _unpacked(header, syntax, (rows, columns))
    bits, signed = (dcm.integer(data, word, None, subject) for word in ("BitsAllocated", "PixelRepresentation"))
    implicit, swapped = _encoding(data)
    kind = np.dtype(f"{'>' if swapped else '<'}{'i' if signed else 'u'}{bits // 8}")
    needed = rows * columns * kind.itemsize
    with open_file(header.path) as stream:
        stream.seek(header.offset)
        head, order = stream.read(12), ">" if swapped else "<"
        if len(head) < 12 or struct.unpack(f"{order}HH", head[:4]) != (0x7FE0, 0x0010):
            raise damaged(subject, "it holds no pixel data")
        length = int(struct.unpack_from(f"{order}I", head, 4 if implicit else 8)[0])
        stream.seek(header.offset + (8 if implicit else 12))
        raw = stream.read(min(length, needed + needed % 2))
    if length not in (needed, needed + needed % 2):
        raise damaged(subject, f"{rows} × {columns} pixels of {bits} bits are {needed} bytes, it holds {length}")
    if swapped and bits == 8 and head[4:6] == b"OW":  # two pixels are one word, and its bytes are swapped
        raw = np.frombuffer(raw[: len(raw) // 2 * 2], dtype="<u2").byteswap().tobytes()
    raw = raw[:needed]
    if len(raw) < needed:
        raise damaged(subject, f"{needed} bytes of pixels expected, {len(raw)} found")
    pixels = np.frombuffer(raw, dtype=kind).astype(kind.newbyteorder("="), copy=False).reshape(rows, columns)
    return _used_bits(pixels, dcm.integer(data, "BitsStored", bits, subject), bits)


def _encoding(data: Any) -> tuple[bool, bool]:
    """Whether elements lack their type, and whether numbers are big endian; guessed by pydicom if not stated."""
    syntax = str(data.file_meta.get("TransferSyntaxUID", ""))
    if syntax:
        return syntax == IMPLICIT, syntax == BIG_ENDIAN
    implicit, little = data.original_encoding
    return implicit is not False, little is False


def _used_bits(pixels: NDArray[Any], stored: int, allocated: int) -> NDArray[Any]:
    """Clear the bits above the stored ones, which are undefined, and extend the sign."""
    if not 0 < stored < allocated:
        return pixels
    spare = allocated - stored
    return np.asarray(np.right_shift(np.left_shift(pixels, spare), spare))


def _unpacked(header: dcm.SliceHeader, syntax: str, shape: tuple[int, int]) -> NDArray[Any]:
    name, package = PLUG_INS.get(syntax, ("", ""))
    if not name:
        message = f"{header.subject} has pixels in a transfer syntax that is not read"
        raise RegweaveError("E163", message, "export the series uncompressed (Explicit VR Little Endian)")
    dataset, _ = dcm.read_dataset(header.path, header.subject)
    try:
        found = np.asarray(dataset.pixel_array)
    except RuntimeError:  # raised by pydicom without a plug-in for the syntax, or for pixels that none can decode
        message = f"{header.subject} has pixels compressed as {name}"
        if not get_decoder(UID(syntax)).is_available:
            message += f", and the plug-in that decodes them, {package}, is missing"
            hint = f'pip install "regweave[dicom]", which brings {package}; or export uncompressed'
            raise UsageError("E163", message, hint) from None
        hint = "export the series uncompressed; 12-bit lossy JPEG has no free decoder here"
        raise RegweaveError("E163", f"{message} that no installed plug-in can decode", hint) from None
    if found.shape != shape:
        raise damaged(header.subject, f"its pixels have shape {found.shape}, its header states {shape}")
    return _used_bits(found, dcm.integer(dataset, "BitsStored", 0, header.subject), 8 * found.dtype.itemsize)


def _looked_up(stored: NDArray[Any], lut: Any, header: dcm.SliceHeader) -> Float32Array:
    subject = header.subject
    count, first, _ = (int(n) for n in dcm.numbers(lut, "LUTDescriptor", 3, subject))
    table = lut.get("LUTData", None)
    if isinstance(table, bytes):
        table = np.frombuffer(table, dtype=">u2" if _encoding(header.dataset)[1] else "<u2")
    entries = np.asarray([] if table is None else table, dtype=np.float32).ravel()
    if entries.size != (count or 65536):
        raise damaged(subject, f"its modality look-up table has {entries.size} entries, it states {count or 65536}")
    return entries[np.clip(stored.astype(np.int64) - first, 0, entries.size - 1)]


# New objects: patient and study of a series, new identifiers, an atomic file

MAKER = "regweave"
STUDY_CLASS = "1.2.840.10008.3.1.2.3.1"


def new_object(series: Series, class_uid: str, modality: str, description: str) -> Any:
    """Return a data set with the common elements: patient and study of a series, a new series and instance."""
    data, now = Dataset(), datetime.now()
    data.SpecificCharacterSet = "ISO_IR 192"
    data.InstanceCreationDate, data.InstanceCreationTime = f"{now:%Y%m%d}", f"{now:%H%M%S}"
    data.SOPClassUID, data.SOPInstanceUID = class_uid, new_uid()
    data.Modality, data.SeriesDescription = modality, description
    data.Manufacturer = data.ManufacturerModelName = MAKER
    data.SoftwareVersions, data.DeviceSerialNumber = __version__, "1"
    identity = series.identity
    data.PatientName, data.PatientID = identity.patient_name, identity.patient_id
    data.PatientBirthDate, data.PatientSex = identity.birth_date, identity.sex
    data.StudyInstanceUID, data.SeriesInstanceUID = identity.study_uid, new_uid()
    for word in STUDY[:-1]:
        setattr(data, word, series.study.get(word, ""))
    data.SeriesDate, data.SeriesTime = f"{now:%Y%m%d}", f"{now:%H%M%S}"
    data.SeriesNumber, data.InstanceNumber = 1, 1
    data.FrameOfReferenceUID, data.PositionReferenceIndicator = series.frame_uid or new_uid(), ""
    return data


def new_uid() -> str:
    """Return a unique identifier: 2.25 and a random number, at most 44 characters."""
    return str(generate_uid(prefix=None))


def reference(class_uid: str, instance_uid: str) -> Any:
    """Return an item that refers to an instance."""
    return item(ReferencedSOPClassUID=class_uid, ReferencedSOPInstanceUID=instance_uid)


def references(series: Series) -> list[Any]:
    """Return items that refer to all images of a series."""
    return [reference(one.class_uid, one.instance_uid) for one in series.slices]


def item(**elements: Any) -> Any:
    """Return an item of a sequence with elements by keyword; lists of items become sequences."""
    made = Dataset()
    for keyword, value in elements.items():
        setattr(made, keyword, value)
    return made


def save(path: str | Path, data: Any) -> None:
    """Write a Part 10 file in Implicit VR Little Endian, which bounds no value at 64 kB; whole or not at all."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = data.SOPClassUID, data.SOPInstanceUID
    meta.TransferSyntaxUID = ImplicitVRLittleEndian
    meta.ImplementationClassUID = pydicom.uid.PYDICOM_IMPLEMENTATION_UID
    meta.ImplementationVersionName = f"REGWEAVE{__version__}"[:16]
    data.file_meta, data.preamble = meta, b"\0" * 128
    with dcm.guarded("the new object"), atomic_path(path) as part:
        data.save_as(part, enforce_file_format=True, overwrite=True)
