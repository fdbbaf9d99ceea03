"""Placement of slices: each by its own position along the normal, never by file order, number or thickness."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from regweave import notices
from regweave.errors import RegweaveError
from regweave.io.dicom.folder import SliceHeader
from regweave.io.dicom.parse import identity_in, number, numbers, text
from regweave.io.dicom.values import DicomSlice, SliceGrid
from regweave.types import Float64Array

SAME_DIRECTION = 1e-3
SAME_PLACE_MM = 0.005
SAME_GAP = 0.02
"""Share of the usual gap by which gaps of even slices may differ."""
COMMON = ("Rows", "Columns", "PixelSpacing", "ImageOrientationPatient")


def place(headers: Sequence[SliceHeader], subject: str) -> tuple[list[SliceHeader], list[DicomSlice], SliceGrid]:
    """Sort the images of a series along their normal.

    Raises
    ------
    RegweaveError
        E111 degenerate directions, E113 images that do not make one stack: other sizes or directions, two at one
        place, missing ones; E162 images of two patients.
    """
    grid = slice_grid(headers[0])
    _require_one_stack(headers, grid, subject)
    placed = sorted(((_slice(header, grid), header) for header in headers), key=lambda pair: pair[0].along_mm)
    kept = [placed[0]]
    for one, header in placed[1:]:
        last = kept[-1][0]
        if one.along_mm - last.along_mm > SAME_PLACE_MM:
            kept.append((one, header))
        elif one.instance_uid != last.instance_uid:
            message = f"{subject} has two different images at {one.along_mm:.3f} mm along the normal"
            hint = "it holds several phases, echoes or reconstructions: export one of them alone"
            raise RegweaveError("E113", message, hint)
    if len(kept) < len(placed):
        notices.warn(f"W222: {len(placed) - len(kept)} images of {subject} are there twice; one of each is used")
    return [header for _, header in kept], [one for one, _ in kept], grid


def slice_grid(header: SliceHeader) -> SliceGrid:
    """Read directions, spacing and size of one image."""
    data, subject = header.dataset, header.subject
    cosines = numbers(data, "ImageOrientationPatient", 6, subject)
    row, column = cosines[:3], cosines[3:]
    lengths = np.linalg.norm(row), np.linalg.norm(column)
    if min(lengths) < 0.5 or abs(row @ column) > 0.01 or max(abs(n - 1) for n in lengths) > 0.01:
        message = f"{subject} has an ImageOrientationPatient whose rows and columns are not at right angles"
        raise RegweaveError("E111", message, "export the series again")
    row = row / lengths[0]
    column = column - (column @ row) * row
    column = column / np.linalg.norm(column)
    down, across = numbers(data, "PixelSpacing", 2, subject)  # row spacing first
    size = tuple(int(number(data, word, None, subject)) for word in ("Columns", "Rows"))
    if min(down, across) <= 0 or min(size) < 1 or max(size) > 65535:
        raise RegweaveError("E111", f"{subject} has no pixels of a positive size", "export the series again")
    return SliceGrid(row, column, np.cross(row, column), (float(across), float(down)), (size[0], size[1]))


def _slice(header: SliceHeader, grid: SliceGrid) -> DicomSlice:
    data = header.dataset
    position = numbers(data, "ImagePositionPatient", 3, header.subject)
    uid = text(data, "SOPInstanceUID")
    return DicomSlice(text(data, "SOPClassUID"), uid, position, float(position @ grid.normal))


def _require_one_stack(headers: Sequence[SliceHeader], grid: SliceGrid, subject: str) -> None:
    first = identity_in(headers[0].dataset)
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
    message = f"{subject} lacks {lost} images: gaps of more than {usual:.3g} mm between {where} mm along the normal"
    raise RegweaveError("E113", message, "export the whole series; gaps='keep' in Python interpolates across them")
