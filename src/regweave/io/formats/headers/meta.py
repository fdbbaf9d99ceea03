"""MetaImage (.mha, .mhd): header, frame and place of the voxels, as ITK's MetaIO defines them.

Keys are matched as they are written, and a known one in another case is refused, as other programs would pass over
it. Frame: ``TransformMatrix`` holds the direction of one axis in each row, ``Offset`` the first voxel, in LPS;
``CenterOfRotation`` and ``AnatomicalOrientation`` place nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from regweave import notices
from regweave.errors import RegweaveError
from regweave.io.disk.files import damaged
from regweave.io.disk.limits import MAX_HEADER_BYTES
from regweave.io.disk.texts import shown
from regweave.io.formats.headers.fields import (
    Fields,
    contradiction,
    decode,
    read_block,
    without_trailing_ones,
)
from regweave.io.formats.headers.image import ImageHeader
from regweave.io.formats.payload import Encoding, Payload, data_file
from regweave.types import Float64Array

BEGINS = re.compile(rb"(ObjectType|NDims)[ \t]*=")
"""The format has no mark; its writers begin with one of these."""
TYPES = {
    "MET_CHAR": "i1",
    "MET_ASCII_CHAR": "i1",
    "MET_UCHAR": "u1",
    "MET_SHORT": "i2",
    "MET_USHORT": "u2",
    "MET_INT": "i4",
    "MET_UINT": "u4",
    "MET_LONG": "i4",  # four bytes on every machine, by definition of the format
    "MET_ULONG": "u4",
    "MET_LONG_LONG": "i8",
    "MET_ULONG_LONG": "u8",
    "MET_FLOAT": "f4",
    "MET_DOUBLE": "f8",
}
UNIT_MM = {"": 1.0, "?": 1.0, "mm": 1.0, "um": 1e-3, "cm": 10.0, "m": 1e3}
OFFSETS = ("Offset", "Position", "Origin")
MATRICES = ("TransformMatrix", "Rotation", "Orientation")
ORDERS = ("BinaryDataByteOrderMSB", "ElementByteOrderMSB")
FIELDS = (
    *OFFSETS, *MATRICES, *ORDERS, "ObjectType", "ObjectSubType", "NDims", "BinaryData", "CompressedData",
    "CompressedDataSize", "CompressionLevel", "CenterOfRotation", "AnatomicalOrientation", "DistanceUnits",
    "ElementSpacing", "ElementSize", "DimSize", "HeaderSize", "ElementType", "ElementNumberOfChannels",
    "ElementToIntensityFunctionSlope", "ElementToIntensityFunctionOffset", "ElementDataFile", "Comment", "Name", "ID",
    "ParentID", "Color", "Modality", "SequenceID", "ElementMin", "ElementMax", "AcquisitionDate", "TransformType",
)  # fmt: skip
MAX_AXES = 10
UNIT_LENGTH = 0.01
"""How far the length of a row of the matrix may be from 1."""


def parse(path: Path, follow_links: bool) -> ImageHeader:
    """Read the header of a MetaImage file."""
    fields, end = _fields(path)
    subject = fields.subject
    if fields.values.get("ObjectType", "Image").lower() != "image":
        message = f"{subject} is a MetaIO object of type {shown(fields.values['ObjectType'])}, needed is Image"
        raise RegweaveError("E103", message, "convert it to an image")
    n_axes = fields.whole_number("NDims", 0)
    if not 1 <= n_axes <= MAX_AXES:
        raise damaged(subject, f"NDims is {n_axes}, needed is 1 to {MAX_AXES}")
    shape = without_trailing_ones(fields.sizes("DimSize", n_axes))
    components = fields.whole_number("ElementNumberOfChannels", 1)
    if not 1 <= components <= 1024:
        raise damaged(subject, f"ElementNumberOfChannels is {components}, needed is 1 to 1024")
    _require_plain_values(fields)
    affine = _affine(fields, n_axes, len(shape))
    payload = _payload(path, fields, end, follow_links)
    dtype = _dtype(fields)
    keys = {key: value for key, value in fields.values.items() if key not in FIELDS}
    return ImageHeader(subject, shape, components, 0, dtype, affine, payload, True, keys)


def find_payload(path: Path, follow_links: bool) -> Payload:
    """Find where the voxels of a MetaImage file are, and look at nothing else."""
    fields, end = _fields(path)
    return _payload(path, fields, end, follow_links)


def _fields(path: Path) -> tuple[Fields, int]:
    """Read the lines up to the name of the voxels' file, and tell where they end."""
    block, subject, start = read_block(path), f"'{path}'", 0
    values: dict[str, str] = {}
    known = {key.lower(): key for key in FIELDS}
    while (end := block.find(b"\n", start)) >= 0:
        line, start = decode(block[start:end]), end + 1
        key, mark, value = (part.strip() for part in line.partition("="))
        if not line.strip():
            continue
        if not mark or not key.isprintable() or not key:
            break
        if key in values:
            raise contradiction(subject, f"{shown(key)} stands twice")
        if known.get(key.lower(), key) != key:
            raise contradiction(subject, f"{shown(key)} is no key of MetaImage, {known[key.lower()]!r} is")
        values[key] = value
        if key == "ElementDataFile":
            break
    missing = [key for key in ("NDims", "DimSize", "ElementType", "ElementDataFile") if key not in values]
    if missing:
        place = f"in the first {MAX_HEADER_BYTES} bytes; it begins with {block[:4]!r}"
        raise damaged(subject, f"no whole MetaImage header, {', '.join(missing)} missing, {place}")
    return Fields(subject, values), start


def _require_plain_values(fields: Fields) -> None:
    """Refuse a scaling of values, which some programs apply and ITK does not."""
    for key, plain in (("ElementToIntensityFunctionSlope", 1.0), ("ElementToIntensityFunctionOffset", 0.0)):
        if key in fields.values and fields.numbers(key, 1) != [plain]:
            message = f"{fields.subject} asks for a scaling of its values ({key}) that not all programs apply"
            raise RegweaveError("E103", message, "apply it, and write the file without it")


def _dtype(fields: Fields) -> np.dtype[np.generic]:
    kind = TYPES.get(fields.values["ElementType"])
    if kind is None:
        raise fields.bad("ElementType", f"one of {', '.join(TYPES)}")
    found = fields.first_of(*ORDERS)
    big = False if found is None else fields.switch(found, False)
    return np.dtype(kind).newbyteorder(">" if big else "<")


def _affine(fields: Fields, n_axes: int, n_kept: int) -> Float64Array | None:
    unit = UNIT_MM.get(fields.values.get("DistanceUnits", "").lower())
    if unit is None:
        raise fields.bad("DistanceUnits", "um, mm, cm or m")
    offset, matrix = fields.first_of(*OFFSETS), fields.first_of(*MATRICES)
    spacing = "ElementSpacing" if "ElementSpacing" in fields.values else fields.first_of("ElementSize")
    if "CenterOfRotation" in fields.values:
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
    _warn_of_absence(fields.subject, offset, matrix, spacing)
    affine = np.eye(4)
    affine[:3, :3] = rows[:3, :3].T * steps[:3] * unit
    affine[:3, 3] = origin[:3] * unit
    return affine


def _warn_of_absence(subject: str, offset: str | None, matrix: str | None, spacing: str | None) -> None:
    names = {OFFSETS[0]: offset, MATRICES[0]: matrix, "ElementSpacing": spacing}
    absent = [name for name, found in names.items() if found is None]
    if absent:
        used = "LPS axes, spacing 1 and origin 0 are used in their place"
        notices.warn(f"W207: {subject} does not say where it is ({', '.join(absent)} missing); {used}")


def _payload(path: Path, fields: Fields, end: int, follow_links: bool) -> Payload:
    name = fields.values["ElementDataFile"]
    words = name.split()
    if "%" in name or (words and words[0].lower() == "list"):
        message = f"{fields.subject} spreads its voxels over several files"
        raise RegweaveError("E103", message, "write the image as one file, for example with SimpleITK")
    local = name in {"LOCAL", "Local", "local"}  # no other spelling: MetaIO would look for a file of that name
    file = path if local else data_file(path, name, follow_links=follow_links)
    skip = fields.whole_number("HeaderSize", 0)
    packed, binary = fields.switch("CompressedData", False), fields.switch("BinaryData", True)
    encoding: Encoding = "zlib" if packed else "raw" if binary else "text"
    if skip < -1 or (skip > 0 and local) or (skip == -1 and encoding != "raw"):
        raise contradiction(fields.subject, f"HeaderSize {skip} with voxels in {name} ({encoding})")
    length = fields.whole_number("CompressedDataSize", -1) if packed else -1
    if packed and (not binary or (length < 1 and (local or "CompressedDataSize" in fields.values))):
        reason = "CompressedData needs BinaryData and a CompressedDataSize above 0"
        raise contradiction(fields.subject, reason)
    least = end if local else 0
    offset = -1 if skip == -1 else max(skip, least)
    return Payload(file, offset, encoding, length if length > 0 else None, least)
