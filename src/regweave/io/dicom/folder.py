"""Folders of DICOM files: image series told from all else."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regweave.errors import RegweaveError
from regweave.io.dicom.parse import FAULTS, guarded, identity_in, looks_like_dicom, read_dataset, text
from regweave.io.disk.files import is_folder, open_file
from regweave.io.disk.texts import read_text
from regweave.types import Identity

SeriesSource = str | Path | Sequence[str | Path]
"""A folder, a file of the series, a list of files, or a text file (.txt) with a path in each line."""
LIST = ".txt"
LONGEST_LIST = 50_000_000
IMAGES = ("CT", "MR", "PT")
"""Modalities of slices that make a volume; radiographs, RT images and all that has no pixels are something else."""
MOST_FILES = 200_000
TAGS = (
    "SpecificCharacterSet", "SOPClassUID", "SOPInstanceUID", "Modality", "ImageType", "PatientID", "PatientName",
    "PatientBirthDate", "PatientSex", "StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID", "StudyDate",
    "StudyTime", "StudyID", "AccessionNumber", "ReferringPhysicianName", "ImagePositionPatient",
    "ImageOrientationPatient", "PixelSpacing", "Rows", "Columns", "NumberOfFrames", "SamplesPerPixel",
    "PhotometricInterpretation", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "RescaleSlope",
    "RescaleIntercept", "ModalityLUTSequence", "PixelPaddingValue", "PixelPaddingRangeLimit",
)  # fmt: skip
REMARKS = (
    "InstanceNumber", "SliceThickness", "AcquisitionNumber", "SeriesNumber", "SeriesDescription", "SeriesDate",
    "SeriesTime", "ContrastBolusAgent", "TemporalPositionIdentifier", "EchoNumbers", "ConvolutionKernel", "KVP",
)  # fmt: skip
"""Elements that help to tell series and scans apart, and that may be absent or unreadable."""


@dataclass(frozen=True)
class SliceHeader:
    """Header of one image file.

    Parameters
    ----------
    path : Path
    subject : str
        How messages call the file: its place in the order of names, and its name within the folder.
    dataset : pydicom.Dataset
        The elements of `TAGS` and `REMARKS`.
    offset : int
        Where the element of the pixel data begins.
    """

    path: Path = field(repr=False)
    subject: str
    dataset: Any = field(repr=False)
    offset: int


@dataclass(frozen=True)
class ObjectFile:
    """A file of a folder that is no image: its modality, and where it lies.

    Parameters
    ----------
    kind : str
        ``RTSTRUCT``, ``REG``, ``RTDOSE`` …
    path : Path
    identity : Identity
    """

    kind: str
    path: Path = field(repr=False)
    identity: Identity = field(repr=False)


@dataclass(frozen=True)
class FolderContents:
    """Contents of a source: images by series, localisers and objects that are no images.

    Parameters
    ----------
    images : mapping
        Headers of each series, by its identifier.
    localisers : int
    objects : tuple of ObjectFile
    empty : tuple of str
        Names of files without a byte.
    """

    images: dict[str, list[SliceHeader]] = field(repr=False)
    localisers: int
    objects: tuple[ObjectFile, ...]
    empty: tuple[str, ...] = ()


def files_in(source: SeriesSource) -> tuple[Path, ...] | None:
    """Return the files that a list names; None for a folder or a DICOM file.

    Paths in a text file are relative to its folder; empty lines and those that begin with # do not count.

    Raises
    ------
    RegweaveError
        E101 where there is no such list, or it names no file.
    """
    if not isinstance(source, str | os.PathLike):
        return tuple(Path(path) for path in source)
    path = Path(source)
    if path.suffix.lower() != LIST or is_folder(path):
        return None
    lines = (line.strip() for line in read_text(path, LONGEST_LIST).splitlines())
    found = tuple(path.parent / line for line in lines if line and not line.startswith("#"))
    if not found:
        raise RegweaveError("E101", f"the list '{path}' names no file", "write the path of a DICOM file in each line")
    return found


def named(source: SeriesSource) -> str:
    """Return how messages call a source."""
    if isinstance(source, str | os.PathLike):
        return f"'{source}'"
    return f"the list of {len(source)} files"


def holds_dicom(folder: Path) -> bool:
    """Tell whether the first file of a folder that has any bytes, or one below it, is DICOM."""
    return next((True for path in _files(folder) if _sniff(path)), False)


def scan(source: SeriesSource) -> FolderContents:
    """Read the headers of all DICOM files of a folder, a list, or the folder's one file.

    Raises
    ------
    RegweaveError
        E101 where there is no DICOM file, E102 where one is damaged.
    """
    images: dict[str, list[SliceHeader]] = defaultdict(list)
    localisers, objects, empty, place = 0, [], [], named(source)
    alone = _one_file(source)
    with guarded(place):
        for number, path in enumerate(_listed(source), start=1):
            if not _sniff(path):
                if is_empty(path):
                    empty.append(path.name)
                continue
            subject = place if alone else f"image {number} of {place} ({_within(path, source)})"
            dataset, offset = _header(path, subject)
            kind = text(dataset, "Modality")
            if "LOCALIZER" in text(dataset, "ImageType").upper():
                localisers += 1
            elif kind in IMAGES:
                images[text(dataset, "SeriesInstanceUID")].append(SliceHeader(path, subject, dataset, offset))
            elif kind:
                objects.append(ObjectFile(kind, path, identity_in(dataset)))
    if not images and not objects and not localisers:
        raise RegweaveError("E101", f"there is no DICOM image in {place}", "name the folder of a series")
    return FolderContents(dict(images), localisers, tuple(objects), tuple(empty))


def remark(header: SliceHeader, keyword: str) -> str:
    """Return an element of `REMARKS` as text, empty where it is absent or unreadable; no control characters."""
    with suppress(*FAULTS):
        return "".join(c if c.isprintable() else " " for c in text(header.dataset, keyword)).strip()
    return ""


def is_empty(path: Path) -> bool:
    """Tell whether a file has no bytes."""
    return path.name.upper() != "DICOMDIR" and path.stat().st_size == 0


def _within(path: Path, source: SeriesSource) -> str:
    """Name of a file within its folder, without control characters."""
    folder = Path(str(source)) if isinstance(source, str | os.PathLike) else path.parent
    name = str(path.relative_to(folder) if path.is_relative_to(folder) else path.name)
    return "".join(c if c.isprintable() else "?" for c in name)


def _header(path: Path, subject: str) -> tuple[Any, int]:
    with guarded(subject):
        dataset, offset = read_dataset(path, subject, tags=(*TAGS, *REMARKS), pixels=False)
        for keyword in TAGS:
            if keyword in dataset:
                dataset[keyword]  # decoded here, where a fault can be told of
    return dataset, offset


def _one_file(source: SeriesSource) -> bool:
    return isinstance(source, str | os.PathLike) and not is_folder(source) and files_in(source) is None


def _listed(source: SeriesSource) -> Iterator[Path]:
    files = files_in(source)
    if files is not None:
        yield from files
    elif is_folder(str(source)):
        yield from _files(Path(str(source)))
    else:
        yield Path(str(source))


def _files(folder: Path) -> Iterator[Path]:
    """Yield the regular files of a folder and those below it in the order of their names; links are not followed."""
    count = 0
    for where, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(where) / name
            if name.startswith(".") or not path.is_file():
                continue
            count += 1
            if count > MOST_FILES:
                message = f"'{folder}' holds more than {MOST_FILES} files"
                raise RegweaveError("E101", message, "name the folder of one study")
            yield path


def _sniff(path: Path) -> bool:
    if path.name.upper() == "DICOMDIR":
        return False
    with open_file(path) as stream:
        return looks_like_dicom(stream.read(132))
