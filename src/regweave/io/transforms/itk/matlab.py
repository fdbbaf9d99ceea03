"""MATLAB level 4 transform files of ITK and ANTs, .mat: a strict reader and a writer."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regweave.io.disk.files import damaged, open_file
from regweave.io.disk.limits import require_memory
from regweave.io.transforms.itk.parts import SHOWN_NAME, Part

HEAD = 20
LONGEST_NAME = 128
FIXED = "fixed"
TYPES = {0: "<f8", 10: "<f4", 100: "<f8", 110: "<f4", 1000: ">f8", 1010: ">f4", 1100: ">f8", 1110: ">f4"}
"""Numbers by the type code M·1000 + O·100 + P·10 + T: byte order M, order of rows O, precision P, full matrix T = 0."""


def read_matlab(path: Path) -> list[Part]:
    """Read all transforms of a file: an array named by the type, then one named ``fixed``, for each, or raise E102."""
    subject = f"'{path}'"
    with open_file(path) as stream:
        require_memory(path.stat().st_size * 3, subject)
        content = stream.read()
    arrays, at = [], 0
    while at < len(content):
        name, numbers, at = _array(content, at, subject)
        arrays.append((name, numbers))
    if not arrays or len(arrays) % 2 or any(name != FIXED for name, _ in arrays[1::2]):
        names = [name[:SHOWN_NAME] for name, _ in arrays[:4]]
        raise damaged(subject, f"its arrays are {names}, needed are a transform and '{FIXED}', by turns")
    pairs = zip(arrays[::2], arrays[1::2], strict=True)
    return [Part(name, numbers, fixed.astype(np.float64)) for (name, numbers), (_, fixed) in pairs]


def _array(content: bytes, at: int, subject: str) -> tuple[str, NDArray[np.floating], int]:
    """Read the array that begins at a byte: its name, its numbers, and where it ends."""
    if len(content) - at < HEAD:
        raise damaged(subject, "it ends in the middle of an array")
    order = "<" if int.from_bytes(content[at : at + 4], "little") in TYPES else ">"
    code, rows, columns, imaginary, length = struct.unpack_from(f"{order}5i", content, at)
    if code not in TYPES or imaginary or TYPES[code][0] != order:
        raise damaged(subject, f"no ITK transform in it; an array begins with {content[at : at + 4]!r}")
    if min(rows, columns) < 0 or (min(rows, columns) != 1 and rows * columns) or not 1 <= length <= LONGEST_NAME:
        raise damaged(subject, f"an array has {rows} rows, {columns} columns and a name of {length} bytes")
    dtype = np.dtype(TYPES[code])
    start = at + HEAD + length
    end = start + rows * columns * dtype.itemsize
    if end > len(content):
        raise damaged(subject, f"{end} bytes expected, {len(content)} found")
    name = content[at + HEAD : start]
    if name[-1:] != b"\0" or not name[:-1].isascii() or not name[:-1].decode("ascii").isprintable():
        raise damaged(subject, f"the name of an array is {name[:SHOWN_NAME]!r}")
    numbers = np.frombuffer(content, dtype, rows * columns, start)
    return name[:-1].decode("ascii"), numbers.astype(dtype.newbyteorder("=")), end


def to_matlab(part: Part) -> bytes:
    """Give the bytes of a file with one transform, little-endian float64 as ITK writes it."""
    out = b""
    for name, numbers in ((part.type_name, part.parameters), (FIXED, part.fixed)):
        label = name.encode("ascii") + b"\0"
        out += struct.pack("<5i", 0, numbers.size, 1, 0, len(label)) + label
        out += np.ascontiguousarray(numbers, dtype="<f8").tobytes()
    return out
