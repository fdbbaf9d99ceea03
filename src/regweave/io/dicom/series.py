"""DICOM image series: slices placed one by one, and the even grid that registration uses."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from regweave import notices
from regweave.errors import RegweaveError, UsageError
from regweave.io.dicom.folder import FolderContents, SeriesSource, SliceHeader, named, remark, scan
from regweave.io.dicom.parse import guarded, identity_in, numbers, text
from regweave.io.dicom.pixels import require_plain, slice_values
from regweave.io.dicom.placement import place, require_complete, slice_grid
from regweave.io.dicom.stack import is_even, stack
from regweave.io.dicom.values import DicomSlice, Series, SeriesFiles, SliceGrid
from regweave.io.disk.limits import require_memory
from regweave.io.formats.validate import volume_shape
from regweave.types import Modality, Volume

__all__ = [
    "DicomSlice",
    "Series",
    "SeriesFiles",
    "SeriesSource",
    "SliceGrid",
    "choose_series",
    "list_series",
    "read_series",
    "series_by_place",
]

MODALITIES: dict[str, Modality] = {"CT": "ct", "MR": "mr", "PT": "pet"}
OUTSIDE = {"CT": -1000.0}
Gaps = Literal["error", "keep"]
ONE_SERIES = "choose by the first word of a line, with --series (or --planning-series), or name a folder of one series"


def list_series(source: SeriesSource) -> tuple[SeriesFiles, ...]:
    """Return the image series in a folder or list of files, the largest first; localisers are left out.

    Raises
    ------
    RegweaveError
        E101 where there is none, E102 where a file is damaged.
    """
    return _listed(scan(source))


def choose_series(source: SeriesSource, series: str | None = None) -> SeriesFiles:
    """Return the one series of a source, or the one that is named; E161 lists them all where that does not tell."""
    return _files_of(_chosen(scan(source), series, named(source)))


def series_by_place(names: Sequence[str], first: object) -> tuple[str | None, str | None]:
    """Tell which of two sources each named series is meant for.

    Two are taken in order. One alone belongs to ``first`` where that is a folder or list that holds it, else to the
    second source.

    Raises
    ------
    UsageError
        E192, where more than two are named.
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


def _listed(found: FolderContents) -> tuple[SeriesFiles, ...]:
    listed = [_files_of(headers) for headers in found.images.values()]
    return tuple(sorted(listed, key=lambda one: (-one.number, one.hash)))


def _files_of(headers: Sequence[SliceHeader]) -> SeriesFiles:
    identity, modality = identity_in(headers[0].dataset), text(headers[0].dataset, "Modality")
    spacing: tuple[float, float, float] | None = None
    try:
        with guarded("a series"):
            grid = slice_grid(headers[0])
            along = sorted({float(numbers(h.dataset, "ImagePositionPatient", 3, "it") @ grid.normal) for h in headers})
            if len(along) > 1:
                spacing = (*grid.spacing_mm, float(np.median(np.diff(along))))
    except RegweaveError:  # it can be listed all the same; reading it says what is wrong
        spacing = None
    files = tuple(header.path for header in headers)
    return SeriesFiles(modality, len(headers), identity.series_hash, spacing, _label(headers[0]), files, identity)


def read_series(source: SeriesSource, series: str | None = None, *, gaps: Gaps = "error") -> Series:
    """Read one image series.

    Parameters
    ----------
    source : path or list of paths
        A folder, with folders below it, or the files.
    series : str, optional
        Hash, or its beginning, of the one that is meant where there are several; the series UID itself will do.
    gaps : {"error", "keep"}
        What to do where images are missing: refuse the series, or interpolate across the gaps with warning W223.

    Returns
    -------
    Series

    Raises
    ------
    RegweaveError
        E101 no series, E102 damaged, E103 too few slices, E111 and E113 slices that are no stack, E161 several series,
        E162 images of two patients, E163 pixels that cannot be read.
    """
    found, subject = scan(source), named(source)
    headers = _chosen(found, series, subject)
    with guarded(subject):
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
        modality = text(headers[0].dataset, "Modality")
        data, geometry = stack(slices, grid, lambda k: slice_values(headers[k]), OUTSIDE.get(modality, 0.0), subject)
        identity, study = identity_in(headers[0].dataset), _study(headers[0])
    image = Volume(data, geometry, MODALITIES[modality])
    return Series(image, tuple(slices), grid, identity, modality, is_even(slices, grid), study)


def _study(header: SliceHeader) -> dict[str, str]:
    """Return what new objects of the same study copy from its images."""
    words = ("StudyDate", "StudyTime", "StudyID", "AccessionNumber", "ReferringPhysicianName", "SpecificCharacterSet")
    return {word: text(header.dataset, word) for word in words}


def _chosen(found: FolderContents, series: str | None, subject: str) -> list[SliceHeader]:
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


def _label(header: SliceHeader) -> str:
    """Return what tells a person which series this is: number, description, contrast agent, date and time."""
    number, words, agent = (remark(header, key) for key in ("SeriesNumber", "SeriesDescription", "ContrastBolusAgent"))
    day, time = remark(header, "SeriesDate") or remark(header, "StudyDate"), remark(header, "SeriesTime")
    if len(day) == 8:
        day = f"{day[:4]}-{day[4:6]}-{day[6:]}"
    parts = (
        f"series {number}" if number else "", f"'{words[:40]}'" if words else "",
        f"contrast {agent[:20]}" if agent else "", f"{day} {time[:2]}:{time[2:4]}" if len(time) >= 4 else day,
    )  # fmt: skip
    return ", ".join(filter(None, parts))


def _lines(listed: Sequence[SeriesFiles]) -> list[str]:
    """Return a line for each series to choose from: hash, size, label, and its folder where they lie in several."""
    folders = [os.path.commonpath([path.parent.absolute() for path in one.files]) for one in listed]
    root, found = os.path.commonpath(folders), []
    for one, folder in zip(listed, folders, strict=True):
        spacing = "" if one.spacing_mm is None else " of " + " × ".join(f"{n:.3g}" for n in one.spacing_mm) + " mm"
        place = "" if len(set(folders)) == 1 else f"in {os.path.relpath(folder, root)}"
        label = ", ".join(filter(None, (one.label, place)))
        found.append(f"{one.hash}  {one.modality}, {one.number} images{spacing}" + (f"\n    {label}" if label else ""))
    return found
