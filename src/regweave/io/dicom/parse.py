"""DICOM files: found in folders and lists, parsed by pydicom; no value of a file reaches a message or a log."""

import io
import logging
import os
import re
import struct
import threading
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from pydicom import config
from pydicom.errors import BytesLengthException, InvalidDicomError
from pydicom.multival import MultiValue

from regweave import notices
from regweave.errors import RegweaveError
from regweave.io.disk.files import damaged, is_folder, open_file, read_text, require_memory
from regweave.types import Float64Array, Identity

MARK, MARK_AT = b"DICM", 128
DEFLATED, LONGEST_META = b"1.2.840.10008.1.2.1.99", 1 << 16
FIRST_GROUPS = (b"\x02\x00", b"\x08\x00", b"\x00\x02", b"\x00\x08")
"""First bytes of a file without preamble: a tag of group 2 or 8, little or big endian."""
FAULTS = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, EOFError, OverflowError, RecursionError, LookupError,
    NotImplementedError, struct.error, BytesLengthException, InvalidDicomError, AssertionError, MemoryError, OSError,
)  # fmt: skip
"""All that pydicom raises on damaged bytes; its texts may quote values of the file, so none of them is shown."""
MOST_NUMBER, UNDEFINED = 2.0**31, 0xFFFFFFFF
"""Largest number that is read, and the length of a value that its own end marks."""
DECIMALS = re.compile(r"[0-9+\-.eE \\\0]*")
"""Characters of DS and IS with backslashes between values: no underscore, nan or inf, which Python would take."""
_QUIET: dict[str, Any] = {"lock": threading.Lock(), "inside": 0}


class _Within:
    """Stream that never reads beyond the end of its file, and notes where a value would have."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self.size = stream.seek(0, io.SEEK_END)
        self.short = False
        stream.seek(0)

    def read(self, n: int = -1) -> bytes:
        rest = self.size - self._stream.tell()
        if n > rest > 0 or (n > 8 and rest <= 0):
            self.short = True
        return self._stream.read(max(0, rest if n is None or n < 0 else min(n, rest)))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        place = self._stream.seek(offset, whence)
        self.short = self.short or place > self.size
        return place

    def tell(self) -> int:
        return self._stream.tell()

    def close(self) -> None:
        self._stream.close()


@contextmanager
def guarded(subject: str) -> Iterator[None]:
    """Silence pydicom inside the block, and turn its exceptions into E102 without their texts.

    pydicom decodes values at their first access, so all work on a data set belongs in such a block.
    """
    with notices.deferred(), np.errstate(all="ignore"), _quiet():
        try:
            yield
        except RegweaveError:
            raise
        except FAULTS as error:
            raise damaged(subject, f"it cannot be read as DICOM ({type(error).__name__})") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence pydicom while any thread is inside; the first one in sets its switches, the last one out restores them.

    One filter of Python's warnings is added and removed: filters that others set meanwhile stay.
    """
    logger = logging.getLogger("pydicom")
    with _QUIET["lock"]:
        if not _QUIET["inside"]:
            _QUIET["was"] = logger.disabled, config.settings.reading_validation_mode
            logger.disabled, config.settings.reading_validation_mode = True, config.IGNORE
            warnings.filterwarnings("ignore", module="(?:pydicom|pylibjpeg|openjpeg)")
            _QUIET["filter"] = warnings.filters[0]
        _QUIET["inside"] += 1
    try:
        yield
    finally:
        with _QUIET["lock"]:
            _QUIET["inside"] -= 1
            if not _QUIET["inside"]:
                logger.disabled, config.settings.reading_validation_mode = _QUIET["was"]
                if _QUIET["filter"] in warnings.filters:
                    warnings.filters.remove(_QUIET["filter"])  # type: ignore[attr-defined]


def looks_like_dicom(head: bytes) -> bool:
    """Detect the mark behind the preamble, or a first tag of group 2 or 8 in a file without preamble."""
    if head[MARK_AT : MARK_AT + 4] == MARK:
        return True
    if len(head) < 16 or head[:2] not in FIRST_GROUPS:
        return False
    explicit = head[4:6].isalpha() and head[4:6].isupper()
    length = struct.unpack("<I", head[4:8])[0]
    return explicit or length <= 64


def read_dataset(
    path: Path, subject: str, *, tags: Sequence[str] | None = None, pixels: bool = True
) -> tuple[Any, int]:
    """Read a data set, within `guarded`; return it and the offset where reading ended.

    ``subject`` names the file in messages, without its content; ``tags`` are the keywords of the elements to read, all
    by default. Without ``pixels`` reading ends at the element of the pixel data.
    """
    with open_file(path) as stream:
        head = stream.read(LONGEST_META)
        if not looks_like_dicom(head):
            raise RegweaveError("E103", f"{subject} is not DICOM", "give a DICOM file, or a folder of them")
        if DEFLATED in head:  # pydicom would inflate the whole file
            message = f"{subject} is compressed as a whole (Deflated Explicit VR)"
            raise RegweaveError("E163", message, "export it uncompressed, for example with dcmconv +te")
        within = _Within(stream)
        if pixels:
            require_memory(2 * within.size, subject)
        found = pydicom.dcmread(
            within, force=True, stop_before_pixels=not pixels,
            specific_tags=None if tags is None else list(tags),
        )  # fmt: skip
        offset = within.tell()
        packed = bool(getattr(found.file_meta.get("TransferSyntaxUID", None), "is_encapsulated", False))
        if within.short and not (pixels and packed):
            raise damaged(subject, "it ends before its last value does")
    for raw in found.values() if tags is None else ():
        value, length = getattr(raw, "value", None), getattr(raw, "length", None)
        if isinstance(value, bytes) and isinstance(length, int) and length != UNDEFINED and len(value) < length:
            raise damaged(subject, "it ends before its last value does")
    return found, offset


@contextmanager
def opened(path: str | Path, allowed: Sequence[str], what: str) -> Iterator[Any]:
    """Read a whole data set, which is to be of one of some classes (else E164), and guard the block that uses it."""
    subject = f"'{path}'"
    with guarded(subject):
        dataset, _ = read_dataset(Path(path), subject)
        if text(dataset, "SOPClassUID") not in allowed:
            modality = text(dataset, "Modality")
            shown = modality if modality.isalpha() and len(modality) <= 16 else "of unknown modality"
            raise RegweaveError("E164", f"{subject} is no {what}: it is {shown}", f"name the file of the {what}")
        yield dataset


def text(dataset: Any, keyword: str) -> str:
    """Return an element as text; empty if absent."""
    value = dataset.get(keyword, None)
    if isinstance(value, MultiValue):
        value = " ".join(map(str, value))
    return "" if value is None else str(value).strip().strip("\0")


def items(dataset: Any, keyword: str) -> list[Any]:
    """Return the items of a sequence; none if the element is absent or not a sequence."""
    value = dataset.get(keyword, None)
    return list(value) if isinstance(value, pydicom.Sequence) else []


def numbers(dataset: Any, keyword: str, count: int, subject: str) -> Float64Array:
    """Return as many finite numbers as an element must have, or raise E102."""
    value = dataset.get(keyword, None)
    listed = [] if value is None or value == "" else value if isinstance(value, Sequence | np.ndarray) else [value]
    if isinstance(listed, str | bytes) or len(listed) != count:
        found = "no number" if isinstance(listed, str | bytes) or not len(listed) else f"{len(listed)} numbers"
        raise damaged(subject, f"its {keyword} holds {found}, needed are {count}")
    array = decimals("\\".join(map(str, listed)), f"its {keyword}", subject)
    if not np.isfinite(array).all() or np.abs(array).max() > MOST_NUMBER:
        raise damaged(subject, f"its {keyword} holds a number that is not finite or beyond {MOST_NUMBER:g}")
    return array


def decimals(value: str | bytes, what: str, subject: str) -> Float64Array:
    """Return numbers in the text form of DICOM, with backslashes between them; E102 for any other text."""
    stated = value.decode("latin-1") if isinstance(value, bytes) else value
    if not DECIMALS.fullmatch(stated):
        raise damaged(subject, f"{what} holds text that is no decimal number")
    return np.array(stated.strip(" \0").split("\\"), dtype=np.float64)


def number(dataset: Any, keyword: str, default: float | None, subject: str) -> float:
    """Return one finite number; the default if the element is absent or empty."""
    if default is not None and dataset.get(keyword, None) in (None, ""):
        return default
    return float(numbers(dataset, keyword, 1, subject)[0])


def integer(dataset: Any, keyword: str, default: int | None, subject: str) -> int:
    """Return one whole number; the default if the element is absent or empty."""
    value = number(dataset, keyword, default, subject)
    if value != round(value):
        raise damaged(subject, f"its {keyword} is no whole number")
    return round(value)


def identity_in(dataset: Any) -> Identity:
    """Return the identity stated in a data set."""
    keywords = ("PatientID", "PatientName", "PatientBirthDate", "PatientSex")
    uids = ("StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID")
    return Identity(*(text(dataset, keyword) for keyword in (*keywords, *uids)))


def require_same_patient(a: Identity, b: Identity, what: str) -> None:
    """Raise E162 where two objects state different patients; what one of them leaves empty is not compared."""
    differ = [word for word, x, y in (("ID", a.patient_id, b.patient_id), ("birth date", a.birth_date, b.birth_date))
              if x and y and x != y]  # fmt: skip
    names = _words(a.patient_name), _words(b.patient_name)
    if all(names) and not (names[0] <= names[1] or names[1] <= names[0]):
        differ.append("name")
    if differ:
        message = f"{what} are of different patients: their {' and '.join(differ)} differ"
        raise RegweaveError("E162", message, "give objects of one patient, or pass --allow-id-mismatch")


def _words(name: str) -> set[str]:
    """Words of a name, which systems write in several orders and with several separators."""
    return set(re.findall(r"[^\W_]+", name.upper()))


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
"""Elements that distinguish series and scans, and that may be absent or unreadable."""


@dataclass(frozen=True)
class SliceHeader:
    """Header of one image file: the elements of `TAGS` and `REMARKS`, and the offset of the pixel data.

    ``subject`` names the file in messages: its place in the order of names, and its name within the folder.
    """

    path: Path = field(repr=False)
    subject: str
    dataset: Any = field(repr=False)
    offset: int


@dataclass(frozen=True)
class ObjectFile:
    """A file of a folder that is not an image: its modality, such as RTSTRUCT, REG or RTDOSE, and its path."""

    kind: str
    path: Path = field(repr=False)
    identity: Identity = field(repr=False)


@dataclass(frozen=True)
class FolderContents:
    """Contents of a source: image headers by series identifier, localisers, other objects, names of empty files."""

    images: dict[str, list[SliceHeader]] = field(repr=False)
    localisers: int
    objects: tuple[ObjectFile, ...]
    empty: tuple[str, ...] = ()


def files_in(source: SeriesSource) -> tuple[Path, ...] | None:
    """Return the files of a list; None for a folder or a DICOM file.

    Paths in a text file are relative to its folder; empty lines and those that begin with # do not count. Raises E101
    if the list is missing or empty.
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
    """Return the name of a source for messages."""
    if isinstance(source, str | os.PathLike):
        return f"'{source}'"
    return f"the list of {len(source)} files"


def holds_dicom(folder: Path) -> bool:
    """Whether the first non-empty file in or below a folder is DICOM."""
    return next((True for path in _files(folder) if _sniff(path)), False)


def scan(source: SeriesSource) -> FolderContents:
    """Read the headers of all DICOM files of a folder, a list, or one file; E101 without DICOM, E102 if damaged."""
    images: dict[str, list[SliceHeader]] = defaultdict(list)
    localisers, objects, empty, place = 0, [], [], named(source)
    files, folder = files_in(source), Path(source) if isinstance(source, str | os.PathLike) else None
    alone = folder is not None and files is None and not is_folder(folder)
    paths: Iterable[Path] = files or ()
    if files is None and folder is not None:
        paths = (folder,) if alone else _files(folder)
    with guarded(place):
        for number, path in enumerate(paths, start=1):
            if not _sniff(path):
                if path.name.upper() != "DICOMDIR" and path.stat().st_size == 0:
                    empty.append(path.name)
                continue
            name = str(path.relative_to(folder) if folder and path.is_relative_to(folder) else path.name)
            subject = place if alone else f"image {number} of {place} ({_printable(name, '?')})"
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


def _header(path: Path, subject: str) -> tuple[Any, int]:
    with guarded(subject):
        dataset, offset = read_dataset(path, subject, tags=(*TAGS, *REMARKS), pixels=False)
        for keyword in TAGS:
            if keyword in dataset:
                dataset[keyword]  # decoded here, where a fault can be reported
    return dataset, offset


def remark(header: SliceHeader, keyword: str) -> str:
    """Return an element of `REMARKS` as text without control characters; empty if absent or unreadable."""
    with suppress(*FAULTS):
        return _printable(text(header.dataset, keyword), " ").strip()
    return ""


def _printable(name: str, other: str) -> str:
    return "".join(c if c.isprintable() else other for c in name)


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
