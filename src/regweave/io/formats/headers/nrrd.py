"""NRRD (.nrrd, .nhdr): header, frame and place of the voxels, by the definition of the format, versions 1 to 5."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regweave.errors import RegweaveError
from regweave.io.disk.files import open_file
from regweave.io.formats.headers.fields import Fields, contradiction, without_trailing_ones
from regweave.io.formats.headers.image import ImageHeader
from regweave.io.formats.headers.nrrd_fields import numbers_or_nan, read_fields, words
from regweave.io.formats.headers.nrrd_frame import find_affine, find_space, is_spatial
from regweave.io.formats.payload import Encoding, Payload, data_file

BEGINS = re.compile(rb"NRRD000")
TYPES = {
    "i1": ("signed char", "int8", "int8_t"),
    "u1": ("uchar", "unsigned char", "uint8", "uint8_t"),
    "i2": ("short", "short int", "signed short", "signed short int", "int16", "int16_t"),
    "u2": ("ushort", "unsigned short", "unsigned short int", "uint16", "uint16_t"),
    "i4": ("int", "signed int", "int32", "int32_t"),
    "u4": ("uint", "unsigned int", "uint32", "uint32_t"),
    "i8": ("longlong", "long long", "long long int", "signed long long", "signed long long int", "int64", "int64_t"),
    "u8": ("ulonglong", "unsigned long long", "unsigned long long int", "uint64", "uint64_t"),
    "f4": ("float",),
    "f8": ("double",),
}
TYPE_OF = {name: kind for kind, names in TYPES.items() for name in names}
ENCODINGS: dict[str, Encoding] = {
    "raw": "raw",
    "txt": "text",
    "text": "text",
    "ascii": "text",
    "hex": "hex",
    "gz": "gzip",
    "gzip": "gzip",
    "bz2": "bzip2",
    "bzip2": "bzip2",
}
DOMAIN_KINDS = {"domain", "space", "time", "none", "???"}
VALUE_KINDS = {
    "list", "point", "vector", "covariant-vector", "normal", "stub", "scalar", "complex", "2-vector", "3-color",
    "rgb-color", "hsv-color", "xyz-color", "4-color", "rgba-color", "3-vector", "3-gradient", "3-normal", "4-vector",
    "quaternion", "2d-symmetric-matrix", "2d-masked-symmetric-matrix", "2d-matrix", "2d-masked-matrix",
    "3d-symmetric-matrix", "3d-masked-symmetric-matrix", "3d-matrix", "3d-masked-matrix",
}  # fmt: skip
CENTERINGS = {"cell", "node", "none", "???"}
MAX_AXES = 16


@dataclass(frozen=True)
class Axes:
    """Axes of the file: their sizes, and which of them hold the components of a voxel."""

    sizes: list[int]
    value_axes: list[int]

    @property
    def kept(self) -> list[int]:
        """Axes of the image."""
        return [axis for axis in range(len(self.sizes)) if axis not in self.value_axes]


def parse(path: Path, follow_links: bool) -> ImageHeader:
    """Read the header of an NRRD file."""
    fields, keys, end = read_fields(path)
    space = find_space(fields)
    axes = _axes(fields)
    shape = without_trailing_ones([axes.sizes[axis] for axis in axes.kept])
    components = axes.sizes[axes.value_axes[0]] if axes.value_axes else 1
    affine = find_affine(fields, space, axes.kept, len(axes.sizes)) if len(shape) == 3 else None
    return ImageHeader(
        subject=fields.subject,
        shape=shape,
        components=components,
        component_axis=axes.value_axes[0] if axes.value_axes else 0,
        dtype=_dtype(fields),
        affine=affine,
        payload=_payload(path, fields, end, follow_links),
        vectors_lps=space.vectors_lps,
        keys=keys,
    )


def find_payload(path: Path, follow_links: bool) -> Payload:
    """Find where the voxels of an NRRD file are, and look at nothing else."""
    fields, _, end = read_fields(path)
    return _payload(path, fields, end, follow_links)


def _axes(fields: Fields) -> Axes:
    n_axes = fields.whole_number("dimension", 0)
    if not 1 <= n_axes <= MAX_AXES:
        raise fields.bad("dimension", f"1 to {MAX_AXES}")
    sizes = fields.sizes("sizes", n_axes)
    kinds = words(fields, "kinds", n_axes) if "kinds" in fields.values else ["none"] * n_axes
    for kind in kinds:
        if kind not in DOMAIN_KINDS | VALUE_KINDS:
            raise fields.bad("kinds", "kinds of NRRD, such as domain and vector")
    if "centerings" in fields.values and set(words(fields, "centerings", n_axes)) - CENTERINGS:
        raise fields.bad("centerings", "cell or node for each axis")
    if "thicknesses" in fields.values:
        numbers_or_nan(fields, "thicknesses", n_axes)
    spatial = is_spatial(fields, n_axes)
    for axis, kind in enumerate(kinds):
        if spatial is not None and spatial[axis] and kind in VALUE_KINDS:
            raise contradiction(fields.subject, f"axis {axis} holds values ({kind}) and has a direction in space")
        if spatial is not None and not spatial[axis] and kind == "space":
            raise contradiction(fields.subject, f"axis {axis} lies in space and has no direction there")
    value_axes = [
        axis for axis, kind in enumerate(kinds) if kind in VALUE_KINDS or (spatial is not None and not spatial[axis])
    ]
    if len(value_axes) > 1:
        message = f"{fields.subject} has {len(value_axes)} axes of values ({fields.values.get('kinds', 'no kinds')})"
        raise RegweaveError("E103", message, "extract one component or a grey value first")
    return Axes(sizes, value_axes)


def _dtype(fields: Fields) -> np.dtype[np.generic]:
    kind = TYPE_OF.get(" ".join(fields.values["type"].lower().split()))
    if kind is None:
        raise fields.bad("type", "a type of numbers, such as short or float")
    order = fields.values.get("endian", "").lower()
    if order not in {"", "little", "big"}:
        raise fields.bad("endian", "little or big")
    in_bytes = fields.values["encoding"].lower() not in {"txt", "text", "ascii"}
    if not order and in_bytes and np.dtype(kind).itemsize > 1:
        raise contradiction(fields.subject, "numbers of several bytes, and endian does not say their order")
    return np.dtype(kind).newbyteorder(">" if order == "big" else "<")


def _payload(path: Path, fields: Fields, end: int, follow_links: bool) -> Payload:
    encoding = ENCODINGS.get(fields.values["encoding"].lower())
    if encoding is None:
        raise fields.bad("encoding", f"one of {', '.join(ENCODINGS)}")
    lines, skip = fields.whole_number("line skip", 0), fields.whole_number("byte skip", 0)
    if lines < 0 or skip < -1 or ((lines or skip) and encoding != "raw"):
        reason = f"line skip {lines} and byte skip {skip} with {encoding} voxels"
        raise contradiction(fields.subject, reason)
    name = fields.values.get("data file")
    if name is not None and ("%" in name or name.split()[:1] == ["LIST"]):
        message = f"{fields.subject} spreads its voxels over several files"
        raise RegweaveError("E103", message, "write the image as one file, for example with SimpleITK")
    file = path if name is None else data_file(path, name, follow_links=follow_links)
    least = _after_lines(file, end if name is None else 0, lines, fields)
    return Payload(file, -1 if skip == -1 else least + skip, encoding, least=least)


def _after_lines(path: Path, start: int, lines: int, fields: Fields) -> int:
    """Return the byte behind so many lines."""
    if lines > 10_000:
        raise fields.bad("line skip", "at most 10000 lines")
    with open_file(path) as stream:
        stream.seek(start)
        for _ in range(lines):
            stream.readline(1 << 16)
        return stream.tell()
