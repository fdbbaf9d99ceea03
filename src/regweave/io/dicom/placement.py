"""Placement of slices: each by its own position along the normal, never by file order, number or thickness."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave import notices
from regweave.errors import RegweaveError
from regweave.io.dicom.folder import SliceHeader, remark
from regweave.io.dicom.parse import identity_in, integer, numbers, text
from regweave.io.dicom.values import DicomSlice, SliceGrid
from regweave.types import Float64Array

SAME_DIRECTION = 1e-3
SAME_PLACE_MM = 0.005
SAME_GAP = 0.02
"""Share of the usual gap by which gaps of even slices may differ."""
THICK = 1.25
"""Slices thicker than this many steps overlap: two passes of one scan fill gaps, two scans of one region overlap."""
SCANS = (
    "AcquisitionNumber", "SeriesNumber", "StudyInstanceUID", "TemporalPositionIdentifier", "EchoNumbers",
    "ConvolutionKernel", "KVP", "ImageType",
)  # fmt: skip
"""Elements by which two scans that share a SeriesInstanceUID may differ."""
MOST_SCANS, LEAST_SLICES = 4, 4


def place(headers: Sequence[SliceHeader], subject: str) -> tuple[list[SliceHeader], list[DicomSlice], SliceGrid]:
    """Sort the images of a series along their normal.

    Raises
    ------
    RegweaveError
        E111 degenerate directions, E113 images that do not make one stack: other sizes, directions or modalities, two
        at one place, two scans; E123 one identifier for several images, E162 images of two patients.
    """
    grid = slice_grid(headers[0])
    _require_one_stack(headers, grid, subject)
    placed = sorted(((_slice(header, grid), header) for header in headers), key=lambda pair: pair[0].along_mm)
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
    uids = {one.instance_uid for one, _ in kept} - {""}
    if uids and len(uids) < len(kept):
        message = f"{subject} has {len(kept)} different images with {len(uids)} different SOPInstanceUIDs"
        raise RegweaveError("E123", message, "export the series again: contours refer to an image by this identifier")
    _require_one_scan([header for _, header in kept], np.array([one.along_mm for one, _ in kept]), subject)
    return [header for _, header in kept], [one for one, _ in kept], grid


def slice_grid(header: SliceHeader) -> SliceGrid:
    """Read directions, spacing and size of one image."""
    data, subject = header.dataset, header.subject
    row, column = directions(data, subject)
    down, across = numbers(data, "PixelSpacing", 2, subject)  # row spacing first
    size = tuple(integer(data, word, None, subject) for word in ("Columns", "Rows"))
    if min(down, across) <= 0 or min(size) < 1 or max(size) > 65535:
        raise RegweaveError("E111", f"{subject} has no pixels of a positive size", "export the series again")
    return SliceGrid(row, column, np.cross(row, column), (float(across), float(down)), (size[0], size[1]))


def directions(data: Any, subject: str) -> tuple[Float64Array, Float64Array]:
    """Return the unit vectors of ImageOrientationPatient, or raise E111 where they are none or not at right angles."""
    cosines = numbers(data, "ImageOrientationPatient", 6, subject)
    row, column = cosines[:3], cosines[3:]
    lengths = np.linalg.norm(row), np.linalg.norm(column)
    if min(lengths) < 0.5 or abs(row @ column) > 0.01 or max(abs(n - 1) for n in lengths) > 0.01:
        message = f"{subject} has an ImageOrientationPatient that is not two unit vectors at right angles"
        raise RegweaveError("E111", message, "export it again")
    row = row / lengths[0]
    column = column - (column @ row) * row
    return row, np.asarray(column / np.linalg.norm(column))


def _slice(header: SliceHeader, grid: SliceGrid) -> DicomSlice:
    data = header.dataset
    position = numbers(data, "ImagePositionPatient", 3, header.subject)
    uid = text(data, "SOPInstanceUID")
    return DicomSlice(text(data, "SOPClassUID"), uid, position, float(position @ grid.normal))


def _require_one_stack(headers: Sequence[SliceHeader], grid: SliceGrid, subject: str) -> None:
    first = identity_in(headers[0].dataset)
    kinds = {(text(header.dataset, "Modality"), text(header.dataset, "SOPClassUID")) for header in headers}
    if len(kinds) > 1:
        named = " and ".join(sorted({modality for modality, _ in kinds}))
        message = f"{subject} mixes images of {len(kinds)} kinds under one SeriesInstanceUID: {named}"
        raise RegweaveError("E113", message, "export each series alone")
    for header in headers[1:]:
        other = slice_grid(header)
        turned = max(np.abs(a - b).max() for a, b in ((grid.row, other.row), (grid.column, other.column)))
        away = np.abs(np.subtract(grid.spacing_mm, other.spacing_mm)).max()
        if turned > SAME_DIRECTION or away > SAME_DIRECTION * max(grid.spacing_mm) or grid.size != other.size:
            message = f"{subject} mixes images of different direction, size or pixel spacing, so they are no stack"
            raise RegweaveError("E113", message, "export one reconstruction alone, without localisers")
        identity = identity_in(header.dataset)
        if (identity.patient_id, identity.patient_name) != (first.patient_id, first.patient_name):
            raise RegweaveError("E162", f"{subject} holds images of two patients", "separate them first")
        if identity.frame_uid != first.frame_uid:
            message = f"{subject} holds images of two frames of reference"
            raise RegweaveError("E160", message, "export the series again, one frame of reference")


def _require_one_scan(headers: Sequence[SliceHeader], along_mm: Float64Array, subject: str) -> None:
    """Raise E113 for scans whose slices lie between each other, each even and complete alone.

    Passes of one scan interleave as well, but together they are even and their slices are no thicker than the step.
    """
    if len(along_mm) < 2 * LEAST_SLICES:
        return
    gaps = np.diff(along_mm)
    step = float(np.median(gaps))
    even = np.abs(gaps - step).max() <= SAME_GAP * step
    counted = _counted(headers)
    stated = [
        float(value) for header in headers if (value := remark(header, "SliceThickness")).replace(".", "").isdigit()
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


def _splits(headers: Sequence[SliceHeader], counted: Float64Array | None) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield ways to divide images, in order of place, into scans of at least `LEAST_SLICES`: name and label of each."""
    for word in SCANS:
        labels = np.array([remark(header, word) for header in headers])
        sizes = np.unique(labels, return_counts=True)[1]
        if 2 <= len(sizes) <= MOST_SCANS and sizes.min() >= LEAST_SLICES:
            yield f"told apart by {word}", labels
    if counted is not None and not _monotone(counted):
        for parts in range(2, min(MOST_SCANS, len(headers) // LEAST_SLICES) + 1):
            turns = np.arange(len(headers)) % parts
            if all(_monotone(counted[turns == k]) for k in range(parts)):
                yield "told apart by InstanceNumber", turns


def _counted(headers: Sequence[SliceHeader]) -> Float64Array | None:
    found = [remark(header, "InstanceNumber") for header in headers]
    return np.array(found, dtype=np.float64) if all(one.isdigit() for one in found) else None


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
