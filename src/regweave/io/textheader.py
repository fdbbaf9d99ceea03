"""NRRD and MetaImage: images with a text header, which is checked field by field before a voxel is read.

NRRD follows its definition, versions 1 to 5. ``space`` names the frame, directions and origin place the axes in it.
Without ``space``, or with one that names a handedness or a scanner only, left and right are not stated: the axes are
taken as LPS, as ITK does, with warning W207.

MetaImage follows ITK's MetaIO. Keys are case sensitive, and a known one in another case is refused, because other
programs ignore it. ``TransformMatrix`` holds the direction of one axis in each row, ``Offset`` the first
voxel, in LPS; ``CenterOfRotation`` and ``AnatomicalOrientation`` place nothing.

Voxels are raw or deflated. Text, hexadecimal digits, bzip2, skipped lines and several files are refused with E103.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave import notices
from regweave.errors import RegweaveError
from regweave.io import stored
from regweave.io.disk.files import MAX_HEADER_BYTES, contradiction, damaged, open_file, shown, suffix_of
from regweave.io.geometry import affine_of, make_geometry
from regweave.types import Float64Array

NRRD_SUFFIXES, META_SUFFIXES = (".nrrd", ".nhdr"), (".mha", ".mhd")
SUFFIXES = (*NRRD_SUFFIXES, *META_SUFFIXES)
NRRD_BEGINS = re.compile(rb"NRRD000")
META_BEGINS = re.compile(rb"(ObjectType|NDims)[ \t]*=")  # MetaImage has no mark; its writers begin with one of these


def has_text_header(head: bytes) -> bool:
    """Return whether bytes begin with a header of NRRD or MetaImage."""
    return NRRD_BEGINS.match(head) is not None or META_BEGINS.match(head) is not None


def read_text_header(path: Path, *, follow_links: bool = False) -> stored.Stored:
    """Read an image; what its header forbids is refused before voxels are read."""
    head = read_header(path, follow_links=follow_links)
    stored.require_scalar(head.dtype, head.components, head.subject)
    shape = stored.volume_shape(head.shape, head.subject)
    assert head.affine is not None  # there are three axes
    return stored.Stored(head.read_voxels(), make_geometry(shape, head.affine, head.subject), head.subject)


def read_header(path: Path, *, follow_links: bool = False) -> ImageHeader:
    """Read and check the header of a .nrrd, .nhdr, .mha or .mhd file, or of another that begins as these do; no voxel.

    With `follow_links` it may name a file of voxels outside its folder.
    """
    return (_read_nrrd if _is_nrrd(path) else _read_meta)(path, follow_links)


def voxels_file(path: Path, *, follow_links: bool = False) -> Path:
    """Return the file that holds the voxels of an image: another one where its header names one."""
    if _is_nrrd(path):
        fields, _, end = _nrrd_fields(path)
        return _nrrd_payload(path, fields, end, follow_links).path
    fields, end = _meta_fields(path)
    return _meta_payload(path, fields, end, follow_links).path


def _is_nrrd(path: Path) -> bool:
    suffix = suffix_of(path)
    if suffix in SUFFIXES:
        return suffix in NRRD_SUFFIXES
    with open_file(path) as stream:
        head = stream.peek()
    if not has_text_header(head):
        raise damaged(f"'{path}'", "it has no header of NRRD or MetaImage")
    return NRRD_BEGINS.match(head) is not None


@dataclass(frozen=True)
class ImageHeader:
    """A checked header, in one form for both formats."""

    subject: str  # Name of the file in messages
    shape: tuple[int, ...]
    """Sizes of the axes in space and beyond, the fastest first; axes of length one at the end are left out."""
    components: int  # Numbers of a voxel
    component_axis: int  # Position of the components among the axes of the file, 0 for the fastest
    dtype: np.dtype[Any]  # Stored type with the byte order of the file
    affine: Float64Array | None  # From indices to LPS millimetres, (4, 4); None where there are not three axes
    payload: stored.Payload
    vectors_lps: bool = True  # Whether components of a vector are along the axes of LPS
    keys: Mapping[str, str] = field(default_factory=dict)  # Further keys of the file that are no fields of its format

    def read_voxels(self) -> NDArray[Any]:
        """Read the voxels: an array of the shape, with the components before it where there are several."""
        data = stored.read_payload(self.payload, self.dtype, math.prod(self.shape) * self.components, self.subject)
        axes = list(self.shape)
        axes.insert(self.component_axis, self.components)
        moved = np.moveaxis(data.reshape(axes, order="F"), self.component_axis, 0)
        return moved[0] if self.components == 1 else moved


# Fields: each is taken by exactly one rule, a stated number of numbers, a word of a list, or a switch.

WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
WORDS = re.compile(r'"([^"]*)"|(\S+)')
LONGEST_NUMBER = 64
SWITCHES = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


class Fields(dict[str, str]):
    """Fields of one header by name; ``subject`` is its file in messages."""

    def __init__(self, subject: str, values: Mapping[str, str]) -> None:
        super().__init__(values)
        self.subject = subject

    def bad(self, key: str, needed: str) -> RegweaveError:
        """Make the E102 error of a field that cannot be understood."""
        return damaged(self.subject, f"{key} is {shown(self[key])}, needed is {needed}")

    def first_of(self, *keys: str) -> str | None:
        """Return the key that is present of several for one field, or None; E113 where two are present and differ."""
        found = [key for key in keys if key in self]
        if len({self[key].lower() for key in found}) > 1:
            raise contradiction(self.subject, f"{' and '.join(found)} mean the same thing and differ")
        return found[0] if found else None

    def words(self, key: str, count: int) -> list[str]:
        """Return exactly so many words, in lower case, quoted or not."""
        words = [(match[1] or match[2] or "").lower() for match in WORDS.finditer(self[key])]
        if len(words) != count:
            raise contradiction(self.subject, f"{key} has {len(words)} entries, for its dimensions needed are {count}")
        return words

    def numbers(self, key: str, count: int, words: Sequence[str] | None = None) -> list[float]:
        """Return exactly so many finite numbers, those of the field or of words in it."""
        words = self.words(key, count) if words is None else words
        if len(words) != count:
            raise contradiction(self.subject, f"{key} has {len(words)} numbers, for its dimensions needed are {count}")
        values = [float(w) for w in words if len(w) <= LONGEST_NUMBER and NUMBER.fullmatch(w)]
        if len(values) < count or not all(map(math.isfinite, values)):
            raise self.bad(key, f"{count} finite numbers")
        return values

    def whole_numbers(self, key: str, count: int, least: int | None = None) -> list[int]:
        """Return exactly so many whole numbers."""
        words = self.words(key, count)
        if not all(WHOLE.fullmatch(word) and (least is None or int(word) >= least) for word in words):
            raise self.bad(key, f"{count} whole numbers" + ("" if least is None else f" from {least} up"))
        return [int(word) for word in words]

    def whole_number(self, key: str, default: int) -> int:
        """Return one whole number."""
        return self.whole_numbers(key, 1)[0] if key in self else default

    def switch(self, key: str, default: bool) -> bool:
        """Return a switch that is True or False."""
        if key not in self:
            return default
        if (found := SWITCHES.get(self[key].lower())) is None:
            raise self.bad(key, "True or False")
        return found

    def unread(self, what: str, hint: str) -> RegweaveError:
        """Make the E103 error of a header that is valid and asks for what is not read."""
        return RegweaveError("E103", f"{self.subject} {what}", hint)


ONE_FILE = "write the image as one file with raw or gzip voxels, for example with SimpleITK or 3D Slicer"


def _lines(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the lines at the beginning of a file and the byte behind each; names of files keep their bytes."""
    with open_file(path) as stream:
        block = io.BytesIO(stream.read(MAX_HEADER_BYTES))
    for line in block:
        yield os.fsdecode(line.rstrip(b"\r\n")), block.tell()


# NRRD

NRRD_MARK = re.compile("NRRD000[1-5]")
NRRD_NAMES = {
    "dimension": (), "type": (), "sizes": (), "encoding": (), "endian": (), "space": (), "space dimension": (),
    "space origin": (), "space directions": (), "space units": (), "measurement frame": (), "spacings": (),
    "thicknesses": (), "kinds": (), "labels": (), "units": (), "min": (), "max": (), "content": (), "number": (),
    "sample units": ("sampleunits",), "axis mins": ("axismins",), "axis maxs": ("axismaxs",),
    "centerings": ("centers",), "old min": ("oldmin",), "old max": ("oldmax",), "block size": ("blocksize",),
    "data file": ("datafile",), "line skip": ("lineskip",), "byte skip": ("byteskip",),
}  # fmt: skip
"""Fields of the format with their other spellings; case does not count."""
NRRD_FIELDS = {spelling: name for name, others in NRRD_NAMES.items() for spelling in (name, *others)}
NRRD_TYPES = {
    "i1": ("signed char", "int8", "int8_t"), "u1": ("uchar", "unsigned char", "uint8", "uint8_t"),
    "i2": ("short", "short int", "signed short", "signed short int", "int16", "int16_t"),
    "u2": ("ushort", "unsigned short", "unsigned short int", "uint16", "uint16_t"),
    "i4": ("int", "signed int", "int32", "int32_t"), "u4": ("uint", "unsigned int", "uint32", "uint32_t"),
    "i8": ("longlong", "long long", "long long int", "signed long long", "signed long long int", "int64", "int64_t"),
    "u8": ("ulonglong", "unsigned long long", "unsigned long long int", "uint64", "uint64_t"),
    "f4": ("float",), "f8": ("double",),
}  # fmt: skip
NRRD_TYPE_OF = {name: kind for kind, names in NRRD_TYPES.items() for name in names}
NRRD_ENCODINGS: dict[str, stored.Encoding] = {"raw": "raw", "gz": "gzip", "gzip": "gzip"}
NRRD_UNREAD = {"txt", "text", "ascii", "hex", "bz2", "bzip2"}  # Encodings of the format that are not read
VECTORS = re.compile(r"\s*(?:(none)|\(([^()]*)\))\s*(?=$|[\s(])", re.IGNORECASE)
DOMAIN_KINDS = {"domain", "space", "time", "none", "???"}
VALUE_KINDS = {
    "list", "point", "vector", "covariant-vector", "normal", "stub", "scalar", "complex", "2-vector", "3-color",
    "rgb-color", "hsv-color", "xyz-color", "4-color", "rgba-color", "3-vector", "3-gradient", "3-normal", "4-vector",
    "quaternion", "2d-symmetric-matrix", "2d-masked-symmetric-matrix", "2d-matrix", "2d-masked-matrix",
    "3d-symmetric-matrix", "3d-masked-symmetric-matrix", "3d-matrix", "3d-masked-matrix",
}  # fmt: skip
LPS, RAS, LAS = (1.0, 1.0, 1.0), (-1.0, -1.0, 1.0), (1.0, -1.0, 1.0)
SPACES = {
    "lps": LPS, "left-posterior-superior": LPS, "ras": RAS, "right-anterior-superior": RAS, "las": LAS,
    "left-anterior-superior": LAS,
}  # fmt: skip
"""Signs that take the axes of a space to LPS."""
UNNAMED = {"scanner-xyz", "3d-right-handed", "3d-left-handed"}
TIMED = {f"{name}{'t' if len(name) == 3 else '-time'}" for name in (*SPACES, *UNNAMED)}
UNIT_MM = {
    "": 1.0, "?": 1.0, "???": 1.0, "mm": 1.0, "millimeter": 1.0, "millimeters": 1.0, "millimetre": 1.0,
    "millimetres": 1.0, "cm": 10.0, "m": 1e3, "meter": 1e3, "meters": 1e3, "metre": 1e3, "metres": 1e3, "um": 1e-3,
    "µm": 1e-3, "micron": 1e-3, "microns": 1e-3, "micrometer": 1e-3, "micrometers": 1e-3, "nm": 1e-6,
}  # fmt: skip
SAME_SPACING = 0.01
NRRD_MAX_AXES = 16


def _read_nrrd(path: Path, follow_links: bool) -> ImageHeader:
    fields, keys, end = _nrrd_fields(path)
    space, dimension = _space(fields)
    n_axes = fields.whole_number("dimension", 0)
    if not 1 <= n_axes <= NRRD_MAX_AXES:
        raise fields.bad("dimension", f"1 to {NRRD_MAX_AXES}")
    sizes = fields.whole_numbers("sizes", n_axes, 1)
    placed = "space directions" in fields
    directions = _vectors(fields, "space directions", n_axes, dimension) if placed else None
    value_axis = _value_axis(fields, n_axes, directions)
    kept = [axis for axis in range(n_axes) if axis != value_axis]
    shape = stored.without_trailing_ones([sizes[axis] for axis in kept])
    framed = "measurement frame" in fields
    frame = _vectors(fields, "measurement frame", dimension, dimension) if framed else [None]
    straight = None in frame or np.allclose(np.array(frame, dtype=np.float64), np.eye(dimension), atol=1e-3)
    if (kind := NRRD_TYPE_OF.get(" ".join(fields["type"].lower().split()))) is None:
        raise fields.bad("type", "a type of numbers, such as short or float")
    order = fields.get("endian", "").lower()
    if order not in {"", "little", "big"}:
        raise fields.bad("endian", "little or big")
    if not order and np.dtype(kind).itemsize > 1:
        raise contradiction(fields.subject, "numbers of several bytes, and endian does not state their order")
    return ImageHeader(
        fields.subject, shape, components=1 if value_axis is None else sizes[value_axis],
        component_axis=value_axis or 0, dtype=np.dtype(kind).newbyteorder(">" if order == "big" else "<"),
        affine=_nrrd_affine(fields, directions, kept[:3], n_axes) if len(shape) == 3 else None,
        payload=_nrrd_payload(path, fields, end, follow_links),
        vectors_lps=straight and SPACES.get(space, LPS) == LPS, keys=keys,
    )  # fmt: skip


def _nrrd_fields(path: Path) -> tuple[Fields, dict[str, str], int]:
    """Return the fields, the free keys, and the byte behind the empty line that ends the header (−1 without one)."""
    subject, lines, end = f"'{path}'", _lines(path), -1
    mark, at = next(lines, ("", 0))
    if NRRD_MARK.fullmatch(mark) is None:
        raise damaged(subject, f"no NRRD header in it; it begins with {os.fsencode(mark)[:4]!r}")
    values: dict[str, str] = {}
    keys: dict[str, str] = {}
    for line, at in lines:
        if not line:
            end = at
            break
        if line.startswith("#"):
            continue
        free, colon = line.find(":="), line.find(": ")
        into, key, value = values, NRRD_FIELDS.get(line[: max(colon, 0)].strip().lower(), ""), line[colon + 2 :].strip()
        if free >= 0 and (colon < 0 or free < colon):  # a free key
            into, key, value = keys, line[:free], line[free + 2 :]
        elif not key:
            raise damaged(subject, f"{shown(line)} is no line of an NRRD header")
        if key in into:
            raise contradiction(subject, f"{shown(key)} is repeated")
        into[key] = value
    missing = [name for name in ("dimension", "type", "sizes", "encoding") if name not in values]
    if missing or (end < 0 and ("data file" not in values or at == MAX_HEADER_BYTES)):
        raise damaged(subject, f"its NRRD header is not whole; missing: {', '.join(missing) or 'its last line'}")
    return Fields(subject, values), keys, end


def _vectors(fields: Fields, key: str, count: int, length: int) -> list[list[float] | None]:
    text, result, at = fields[key], list[list[float] | None](), 0
    while at < len(text):
        if (match := VECTORS.match(text, at)) is None:
            raise fields.bad(key, f"{count} vectors as (x,y,z) or none")
        tokens = [token.strip() for token in (match[2] or "").split(",")]
        unknown = len(tokens) == length and all(token.lower() == "nan" for token in tokens)
        result.append(None if match[1] or unknown else fields.numbers(key, length, tokens))
        at = match.end()
    if len(result) != count:
        raise contradiction(fields.subject, f"{key} has {len(result)} vectors, for its dimensions needed are {count}")
    return result


def _space(fields: Fields) -> tuple[str, int]:
    """Return the name of the space in lower case, empty without one, and its dimension."""
    name, dimension = fields.get("space", "").lower(), fields.whole_number("space dimension", 3)
    if name and "space dimension" in fields:
        raise contradiction(fields.subject, "space and space dimension exclude each other")
    if name in TIMED or not 3 <= dimension <= NRRD_MAX_AXES:
        what = f"lies in {f'a space with time ({name})' if name else f'{dimension} dimensions'}, needed are three"
        raise fields.unread(what, "split the series and pass one volume")
    if name and name not in SPACES and name not in UNNAMED:
        raise fields.bad("space", f"one of {', '.join([*SPACES, *sorted(UNNAMED)])}")
    return name, dimension


def _value_axis(fields: Fields, n_axes: int, directions: list[list[float] | None] | None) -> int | None:
    """Return the axis of the components of a voxel, None where a voxel is one number."""
    kinds = fields.words("kinds", n_axes) if "kinds" in fields else ["none"] * n_axes
    value_axes = []
    for axis, kind in enumerate(kinds):
        if kind not in DOMAIN_KINDS | VALUE_KINDS:
            raise fields.bad("kinds", "kinds of NRRD, such as domain and vector")
        placed = directions is not None and directions[axis] is not None
        unplaced = directions is not None and directions[axis] is None
        if placed and kind in VALUE_KINDS:
            raise contradiction(fields.subject, f"axis {axis} holds values ({kind}) and has a direction in space")
        if unplaced and kind == "space":
            raise contradiction(fields.subject, f"axis {axis} lies in space and has no direction there")
        if unplaced or kind in VALUE_KINDS:
            value_axes.append(axis)
    if len(value_axes) > 1:
        what = f"has {len(value_axes)} axes of values ({fields.get('kinds', 'no kinds')})"
        raise fields.unread(what, "extract one component or a grey value first")
    return value_axes[0] if value_axes else None


def _nrrd_affine(
    fields: Fields, directions: list[list[float] | None] | None, kept: list[int], n_axes: int
) -> Float64Array:
    (name, dimension), subject, affine = _space(fields), fields.subject, np.eye(4)
    words = fields.words("spacings", n_axes) if "spacings" in fields else ["nan"] * n_axes
    stated = [np.nan if word == "nan" else fields.numbers("spacings", 1, [word])[0] for word in words]
    spacings = np.array([stated[axis] for axis in kept])
    if directions is not None:
        steps = np.array([directions[axis] for axis in kept], dtype=np.float64)
        lengths = np.linalg.norm(steps, axis=1)
        if (np.abs(spacings - lengths) > SAME_SPACING * lengths).any():
            raise contradiction(subject, f"spacings {spacings.tolist()}, and directions of length {lengths.tolist()}")
        if steps[:, 3:].any():
            what = f"has axes in {dimension} dimensions of space, needed are 3"
            raise fields.unread(what, "write the volume in a space of three dimensions")
        affine[:3, :3] = steps[:, :3].T
        if "space origin" in fields:
            affine[:3, 3] = (_vectors(fields, "space origin", 1, dimension)[0] or [0.0] * 3)[:3]
        else:
            notices.warn(f"W207: {subject} does not state where it is (no space origin); origin 0 is used")
    elif "space origin" in fields or name:
        raise contradiction(subject, "it names a space or an origin there, and no space directions")
    elif "axis mins" in fields or "axis maxs" in fields:
        what = "is placed by axis mins and maxs, which programs read in different ways"
        raise fields.unread(what, "write it with space directions and space origin")
    else:  # as in files from before there was a space
        affine[:3, :3] = np.diag(np.where(np.isnan(spacings), 1.0, np.abs(spacings)))
    if name not in SPACES:
        found = f"its space is '{name}'" if name else "no space is named"
        notices.warn(f"W207: {subject} does not state where left is ({found}); LPS axes are used")
    scale = np.array(SPACES.get(name, LPS)) * _unit_mm(fields, directions is not None, kept, n_axes)
    return np.diag([*scale, 1.0]) @ affine


def _unit_mm(fields: Fields, in_space: bool, kept: list[int], n_axes: int) -> Float64Array:
    """Return the millimetres of the unit of each axis: of the space, or of the axes where there is no space."""
    if in_space and "units" in fields:
        names = fields.words("units", n_axes)
        if any(UNIT_MM.get(names[axis]) != 1.0 for axis in kept):
            raise contradiction(fields.subject, "units of axes that lie in a space, which has units itself")
    key = "space units" if in_space else "units"
    if key not in fields:
        return np.ones(3)
    names = fields.words(key, _space(fields)[1] if in_space else n_axes)
    units = [UNIT_MM.get(names[axis]) for axis in (range(3) if in_space else kept)]
    if None in units:
        raise fields.bad(key, "mm, um, cm or m for each axis")
    return np.array(units, dtype=np.float64)


def _nrrd_payload(path: Path, fields: Fields, end: int, follow_links: bool) -> stored.Payload:
    coding = fields["encoding"].lower()
    if coding in NRRD_UNREAD:
        raise fields.unread(f"has voxels in the encoding {coding}; read are raw and gzip", ONE_FILE)
    if (encoding := NRRD_ENCODINGS.get(coding)) is None:
        raise fields.bad("encoding", f"one of {', '.join(NRRD_ENCODINGS)}")
    if fields.whole_number("line skip", 0):
        raise fields.unread("has lines to skip before its voxels (line skip)", ONE_FILE)
    skip = fields.whole_number("byte skip", 0)
    if skip < -1 or (skip and encoding != "raw"):
        raise contradiction(fields.subject, f"byte skip {skip} with {encoding} voxels")
    name = fields.get("data file")
    if name is not None and ("%" in name or name.split()[:1] == ["LIST"]):
        raise fields.unread("spreads its voxels over several files", ONE_FILE)
    file = path if name is None else stored.data_file(path, name, follow_links=follow_links)
    least = end if name is None else 0
    return stored.Payload(file, -1 if skip == -1 else least + skip, encoding, least=least)


# MetaImage

META_TYPES = {
    "MET_CHAR": "i1", "MET_ASCII_CHAR": "i1", "MET_UCHAR": "u1", "MET_SHORT": "i2", "MET_USHORT": "u2",
    "MET_INT": "i4", "MET_UINT": "u4", "MET_LONG": "i4", "MET_ULONG": "u4", "MET_LONG_LONG": "i8",
    "MET_ULONG_LONG": "u8", "MET_FLOAT": "f4", "MET_DOUBLE": "f8",
}  # fmt: skip
"""A long has four bytes on every machine, by definition of the format."""
OFFSETS = ("Offset", "Position", "Origin")
MATRICES = ("TransformMatrix", "Rotation", "Orientation")
ORDERS = ("BinaryDataByteOrderMSB", "ElementByteOrderMSB")
META_FIELDS = (
    *OFFSETS, *MATRICES, *ORDERS, "ObjectType", "ObjectSubType", "NDims", "BinaryData", "CompressedData",
    "CompressedDataSize", "CompressionLevel", "CenterOfRotation", "AnatomicalOrientation", "DistanceUnits",
    "ElementSpacing", "ElementSize", "DimSize", "HeaderSize", "ElementType", "ElementNumberOfChannels",
    "ElementToIntensityFunctionSlope", "ElementToIntensityFunctionOffset", "ElementDataFile", "Comment", "Name", "ID",
    "ParentID", "Color", "Modality", "SequenceID", "ElementMin", "ElementMax", "AcquisitionDate", "TransformType",
)  # fmt: skip
META_MAX_AXES = 10
UNIT_LENGTH = 0.01  # How far the length of a row of the matrix may be from 1


def _read_meta(path: Path, follow_links: bool) -> ImageHeader:
    fields, end = _meta_fields(path)
    subject = fields.subject
    if fields.get("ObjectType", "Image").lower() != "image":
        what = f"is a MetaIO object of type {shown(fields['ObjectType'])}, needed is Image"
        raise fields.unread(what, "convert it to an image")
    n_axes = fields.whole_number("NDims", 0)
    if not 1 <= n_axes <= META_MAX_AXES:
        raise damaged(subject, f"NDims is {n_axes}, needed is 1 to {META_MAX_AXES}")
    shape = stored.without_trailing_ones(fields.whole_numbers("DimSize", n_axes, 1))
    components = fields.whole_number("ElementNumberOfChannels", 1)
    if not 1 <= components <= 1024:
        raise damaged(subject, f"ElementNumberOfChannels is {components}, needed is 1 to 1024")
    for key, plain in (("ElementToIntensityFunctionSlope", 1.0), ("ElementToIntensityFunctionOffset", 0.0)):
        if key in fields and fields.numbers(key, 1) != [plain]:
            what = f"asks for a scaling of its values ({key}) that not all programs apply"
            raise fields.unread(what, "apply it, and write the file without it")
    affine = _meta_affine(fields, n_axes, len(shape))
    payload = _meta_payload(path, fields, end, follow_links)
    if (kind := META_TYPES.get(fields["ElementType"])) is None:
        raise fields.bad("ElementType", f"one of {', '.join(META_TYPES)}")
    order = fields.first_of(*ORDERS)
    dtype = np.dtype(kind).newbyteorder(">" if order is not None and fields.switch(order, False) else "<")
    keys = {key: value for key, value in fields.items() if key not in META_FIELDS}
    return ImageHeader(subject, shape, components, 0, dtype, affine, payload, True, keys)


def _meta_fields(path: Path) -> tuple[Fields, int]:
    subject, end = f"'{path}'", 0
    values: dict[str, str] = {}
    known = {key.lower(): key for key in META_FIELDS}
    for line, at in _lines(path):
        key, mark, value = (part.strip() for part in line.partition("="))
        if not line.strip():
            continue
        if not mark or not key.isprintable() or not key:
            break
        if key in values:
            raise contradiction(subject, f"{shown(key)} is repeated")
        if known.get(key.lower(), key) != key:
            raise contradiction(subject, f"{shown(key)} is no key of MetaImage, {known[key.lower()]!r} is")
        values[key], end = value, at
        if key == "ElementDataFile":
            break
    missing = [key for key in ("NDims", "DimSize", "ElementType", "ElementDataFile") if key not in values]
    if missing:
        place = f"in the first {MAX_HEADER_BYTES} bytes"
        raise damaged(subject, f"no whole MetaImage header, {', '.join(missing)} missing, {place}")
    return Fields(subject, values), end


def _meta_affine(fields: Fields, n_axes: int, n_kept: int) -> Float64Array | None:
    if (unit := UNIT_MM.get(fields.get("DistanceUnits", "").lower())) is None:
        raise fields.bad("DistanceUnits", "um, mm, cm or m")
    offset, matrix = fields.first_of(*OFFSETS), fields.first_of(*MATRICES)
    spacing = "ElementSpacing" if "ElementSpacing" in fields else fields.first_of("ElementSize")
    if "CenterOfRotation" in fields:
        fields.numbers("CenterOfRotation", n_axes)
    origin = np.zeros(n_axes) if offset is None else np.array(fields.numbers(offset, n_axes))
    steps = np.ones(n_axes) if spacing is None else np.array(fields.numbers(spacing, n_axes))
    if spacing is not None and steps.min() <= 0:
        raise fields.bad(spacing, "numbers above 0")
    rows = np.eye(n_axes) if matrix is None else np.reshape(fields.numbers(matrix, n_axes**2), (n_axes, n_axes))
    if n_kept != 3:
        return None
    if np.abs(np.linalg.norm(rows[:3, :3], axis=1) - 1).max() > UNIT_LENGTH:
        raise contradiction(fields.subject, f"{matrix} has rows that are not of length 1, which the spacing says")
    stated = {OFFSETS[0]: offset, MATRICES[0]: matrix, "ElementSpacing": spacing}
    absent = ", ".join(name for name, key in stated.items() if key is None)
    if absent:
        used = "LPS axes, spacing 1 and origin 0 are used in their place"
        notices.warn(f"W207: {fields.subject} does not state where it is ({absent} missing); {used}")
    return affine_of(rows[:3, :3].T * steps[:3] * unit, origin[:3] * unit)


def _meta_payload(path: Path, fields: Fields, end: int, follow_links: bool) -> stored.Payload:
    name = fields["ElementDataFile"]
    words = name.split()
    if "%" in name or (words and words[0].lower() == "list"):
        raise fields.unread("spreads its voxels over several files", ONE_FILE)
    local = name in {"LOCAL", "Local", "local"}  # no other spelling: MetaIO would look for a file of that name
    file = path if local else stored.data_file(path, name, follow_links=follow_links)
    skip = fields.whole_number("HeaderSize", 0)
    packed, binary = fields.switch("CompressedData", False), fields.switch("BinaryData", True)
    if not binary:
        raise fields.unread("has voxels written as text (BinaryData = False); read are raw and zlib", ONE_FILE)
    encoding: stored.Encoding = "zlib" if packed else "raw"
    if skip < -1 or (skip > 0 and local) or (skip == -1 and encoding != "raw"):
        raise contradiction(fields.subject, f"HeaderSize {skip} with voxels in {name} ({encoding})")
    length = fields.whole_number("CompressedDataSize", -1) if packed else -1
    if packed and length < 1 and (local or "CompressedDataSize" in fields):
        raise contradiction(fields.subject, "CompressedData needs a CompressedDataSize above 0")
    least = end if local else 0
    offset = -1 if skip == -1 else max(skip, least)
    return stored.Payload(file, offset, encoding, length if length > 0 else None, least)
