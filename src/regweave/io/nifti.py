"""Read NIfTI bytes and check each of them: ITK takes a file cut in half for an image that ends in zeros."""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from nibabel.spatialimages import HeaderDataError
from numpy.typing import NDArray

from regweave import notices
from regweave.errors import RegweaveError
from regweave.io.files import damaged, suffix_of
from regweave.io.libraries import nib

SUFFIXES = (".nii", ".nii.gz")
HEADERS = {348: nib.Nifti1Header, 540: nib.Nifti2Header}
MAGIC = {348: b"n+1", 540: b"n+2"}
DEFLATE_RATIO = 1100
"""Deflate shrinks nothing by more than 1032 to 1: a header that promises more is wrong."""
CHUNK = 1 << 24


@dataclass(frozen=True)
class NiftiFile:
    """A whole file: nibabel's header and the voxels as stored, in the shape of the header."""

    header: Any
    stored: NDArray[Any]

    @property
    def scaling(self) -> tuple[float, float]:
        """Slope and intercept; (1, 0) where the header asks for none (scl_slope 0 or NaN)."""
        slope, inter = self.header.get_slope_inter()
        return (1.0, 0.0) if slope is None else (float(slope), float(inter))


def read_nifti(path: Path) -> NiftiFile:
    """Read a NIfTI-1 or NIfTI-2 file, verifying length and CRC, or raise E102."""
    subject = f"'{path}'"
    size = path.stat().st_size
    try:
        if suffix_of(path) == ".nii":
            with path.open("rb") as stream:
                return _read(stream, size, size, subject)
        with gzip.open(path, "rb") as stream:
            return _read(stream, size * DEFLATE_RATIO, size, subject)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(subject, f"its gzip stream ends early or is no gzip stream ({error})") from error


def _read(stream: BinaryIO | gzip.GzipFile, capacity: int, size: int, subject: str) -> NiftiFile:
    header = _parse_header(stream.read(540), subject)
    shape = _header_shape(header, subject)
    try:
        dtype = header.get_data_dtype()
        header.get_slope_inter()
    except HeaderDataError as error:
        raise damaged(subject, f"bad header ({error})") from error
    count = math.prod(shape)
    offset = _data_offset(header, subject)
    expected = offset + count * dtype.itemsize
    if expected > capacity:
        raise damaged(subject, f"its header promises {expected} bytes, the file has {size}")
    stream.seek(offset)
    buffer = np.empty(count * dtype.itemsize, dtype=np.uint8)
    _fill(stream, buffer, offset, subject)
    extra = 0
    while block := stream.read(CHUNK):  # the CRC stands at the end of the stream
        extra += len(block)
    if extra:
        notices.warn(f"W208: {subject} is {extra} bytes longer than its header says")
    return NiftiFile(header, buffer.view(dtype).reshape(shape, order="F"))


def _fill(stream: BinaryIO | gzip.GzipFile, buffer: NDArray[np.uint8], offset: int, subject: str) -> None:
    view, done = buffer.data, 0
    while done < len(view):
        block = stream.read(min(CHUNK, len(view) - done))
        if not block:
            reason = f"{offset + len(view)} bytes expected, {offset + done} found"
            raise damaged(subject, reason)
        view[done : done + len(block)] = block
        done += len(block)


def _parse_header(block: bytes, subject: str) -> Any:
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


def _header_shape(header: Any, subject: str) -> tuple[int, ...]:
    n_axes = int(header["dim"][0])
    sizes = tuple(int(n) for n in header["dim"][1 : n_axes + 1])
    if not 1 <= n_axes <= 7 or min(sizes) < 1:
        raise damaged(subject, f"bad sizes in its header: {header['dim'].tolist()}")
    return sizes


def _data_offset(header: Any, subject: str) -> int:
    value = float(header["vox_offset"])
    least = 4 + int(header["sizeof_hdr"])
    if value == 0:
        return least
    if not np.isfinite(value) or value < least:
        raise damaged(subject, f"its header puts the voxels at byte {value:g}, below {least}")
    return int(value)


def require_intensity(file: NiftiFile, subject: str) -> None:
    """Raise E103 where a file's intent says that it holds vectors rather than intensities."""
    if int(file.header["intent_code"]) in {1006, 1007}:
        message = f"{subject} is a displacement field, needed is an image"
        raise RegweaveError("E103", message, "pass it as a transform")
