"""Strict NIfTI decoder: header fields and voxel bytes.

ITK takes a file cut in half for an image that ends in zeros; here each byte is accounted for.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.errors import RegweaveError
from regweave.io.disk.files import damaged, open_file, suffix_of
from regweave.io.disk.limits import BYTES_PER_VALUE, MAX_EXTENSION_BYTES, require_memory
from regweave.io.formats.headers.fields import contradiction
from regweave.io.formats.inflate import BROKEN, CHUNK, RATIO, Inflated, Readable
from regweave.io.formats.payload import read_exactly
from regweave.io.libraries import nib

SUFFIXES = (".nii", ".nii.gz")
HEADERS = {348: nib.Nifti1Header, 540: nib.Nifti2Header}
MAGIC = {348: b"n+1", 540: b"n+2"}
MARK_AT = {348: slice(344, 348), 540: slice(4, 12)}
LONGEST_HEADER = max(HEADERS)
GZIP_MARK = b"\x1f\x8b"
COLOUR = [("R", "u1"), ("G", "u1"), ("B", "u1")]
TYPES: dict[int, Any] = {
    2: "u1",
    4: "i2",
    8: "i4",
    16: "f4",
    32: "c8",
    64: "f8",
    128: COLOUR,
    256: "i1",
    512: "u2",
    768: "u4",
    1024: "i8",
    1280: "u8",
    1792: "c16",
    2304: [*COLOUR, ("A", "u1")],
}
"""Types by the codes of the standard."""
ODD_TYPES = {1: "single bits", 1536: "128-bit floats", 2048: "256-bit complex numbers"}
"""Codes of the standard whose numbers are not read."""


@dataclass(frozen=True)
class NiftiHeader:
    """A checked header: what the voxels are and where they begin.

    ``header`` is nibabel's view of its fields.
    """

    path: Path
    header: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    scaling: tuple[float, float]
    offset: int

    @property
    def subject(self) -> str:
        """How messages call the file."""
        return f"'{self.path}'"

    def read_voxels(self) -> NDArray[Any]:
        """Read the voxels as stored, in the shape of the header; E102 or E140 where that cannot be."""
        count = math.prod(self.shape)
        expected = count * self.dtype.itemsize
        with _opened(self.path) as (stream, size):
            packed = isinstance(stream, Inflated)
            if self.offset + expected > (size * RATIO["gzip"] if packed else size):
                reason = f"its header promises {self.offset + expected} bytes, the file has {size}"
                raise damaged(self.subject, reason)
            require_memory(expected + count * BYTES_PER_VALUE, self.subject)
            _skip(stream, self.offset, self.subject)
            buffer = read_exactly(stream, expected, self.subject)
        return buffer.view(self.dtype).reshape(self.shape, order="F")


def has_mark(block: bytes) -> bool:
    """Tell whether bytes begin with a NIfTI header, by its size and its mark."""
    size = next((n for n in HEADERS for order in ("little", "big") if block[:4] == n.to_bytes(4, order)), None)
    return size is not None and block[MARK_AT[size]][:3] == MAGIC[size]


def read_header(path: Path) -> NiftiHeader:
    """Read and check the header of a NIfTI-1 or NIfTI-2 file; no voxel is read."""
    subject = f"'{path}'"
    with _opened(path) as (stream, _):
        header = _parse(_read_up_to(stream, LONGEST_HEADER), subject)
    return NiftiHeader(
        path, header, _shape(header, subject), _dtype(header, subject), _scaling(header, subject),
        _offset(header, subject),
    )  # fmt: skip


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Readable, int]]:
    """Open the bytes of a file, decompressed where its name or else its content says so, with its length on disk."""
    with open_file(path) as stream:
        size, suffix = os.fstat(stream.fileno()).st_size, suffix_of(path)
        packed = stream.peek(2)[:2] == GZIP_MARK if suffix not in SUFFIXES else suffix == ".nii.gz"
        try:
            yield (Inflated(stream, "gzip") if packed else stream), size
        except BROKEN as error:
            raise damaged(f"'{path}'", f"its gzip stream is broken or no gzip stream ({error})") from error


def _read_up_to(stream: Readable, n: int) -> bytes:
    found = b""
    while len(found) < n and (block := stream.read(n - len(found))):
        found += block
    return found


def _skip(stream: Readable, n: int, subject: str) -> None:
    left = n
    while left > 0:
        block = stream.read(min(CHUNK, left))
        if not block:
            raise damaged(subject, f"its header puts the voxels at byte {n}, the file ends before")
        left -= len(block)


def _parse(block: bytes, subject: str) -> Any:
    for size, kind in HEADERS.items():
        for order, code in (("little", "<"), ("big", ">")):
            if int.from_bytes(block[:4], order) != size or len(block) < size:  # type: ignore[arg-type]
                continue
            header = kind(block[:size], endianness=code, check=False)
            magic = bytes(header["magic"].item())[:3]
            if magic != MAGIC[size]:
                raise damaged(subject, f"NIfTI mark {MAGIC[size]!r} expected, {magic!r} found")
            return header
    raise damaged(subject, f"no NIfTI header in it; it begins with {block[:4]!r}")


def _shape(header: Any, subject: str) -> tuple[int, ...]:
    n_axes = int(header["dim"][0])
    sizes = tuple(int(n) for n in header["dim"][1 : n_axes + 1])
    if not 1 <= n_axes <= 7 or min(sizes) < 1:
        raise damaged(subject, f"bad sizes in its header: {header['dim'].tolist()}")
    return sizes


def _dtype(header: Any, subject: str) -> np.dtype[Any]:
    code, bits = int(header["datatype"]), int(header["bitpix"])
    if code in ODD_TYPES:
        message = f"{subject} has voxels of {ODD_TYPES[code]} (datatype {code}), needed is one real number a voxel"
        raise RegweaveError("E103", message, "convert the image to integers or 32-bit floats")
    if code not in TYPES:
        raise damaged(subject, f"its datatype is {code}, which is no type of NIfTI")
    dtype: np.dtype[Any] = np.dtype(TYPES[code])
    if bits != 8 * dtype.itemsize:
        raise contradiction(subject, f"datatype {code} has {8 * dtype.itemsize} bits, bitpix is {bits}")
    return dtype.newbyteorder("<" if header.endianness == "<" else ">")


def _scaling(header: Any, subject: str) -> tuple[float, float]:
    """Slope and intercept; (1, 0) where the header asks for none, which is scl_slope 0 or NaN (nibabel writes it)."""
    slope, inter = float(header["scl_slope"]), float(header["scl_inter"])
    if slope == 0 or math.isnan(slope):
        return 1.0, 0.0
    if not math.isfinite(slope) or not math.isfinite(inter):
        raise damaged(subject, f"its scaling is not finite: scl_slope {slope:g}, scl_inter {inter:g}")
    return slope, inter


def _offset(header: Any, subject: str) -> int:
    value = float(header["vox_offset"])
    least = 4 + int(header["sizeof_hdr"])
    if value == 0:
        return least
    if not least <= value <= MAX_EXTENSION_BYTES or value != int(value):
        reason = f"its header puts the voxels at byte {value:.9g}, allowed is {least} to {MAX_EXTENSION_BYTES}"
        raise damaged(subject, reason)
    return int(value)


def require_intensity(header: Any, subject: str) -> None:
    """Raise E103 where a file's intent says that it holds vectors rather than intensities."""
    if int(header["intent_code"]) in {1006, 1007}:
        message = f"{subject} is a displacement field, needed is an image"
        raise RegweaveError("E103", message, "pass it as a transform")
