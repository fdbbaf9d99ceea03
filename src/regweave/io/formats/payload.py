"""Decoding of voxels: exactly as many numbers as a header promises, from bytes or from text.

Memory is taken after three questions: can the file hold what its header promises, does the machine have room for it,
and, while reading, does the stream end where it should.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from regweave import notices
from regweave.errors import RegweaveError
from regweave.io.disk.files import damaged, open_file
from regweave.io.disk.limits import BYTES_PER_VALUE, require_memory
from regweave.io.disk.texts import shown
from regweave.io.formats.inflate import BROKEN, CHUNK, RATIO, Codec, Inflated, Readable
from regweave.io.formats.text_voxels import Hexadecimal, read_numbers

Encoding = Literal["raw", "gzip", "zlib", "bzip2", "text", "hex"]


@dataclass(frozen=True)
class Payload:
    """Location and encoding of the voxels of an image.

    Parameters
    ----------
    path : Path
        File that holds them.
    offset : int
        Byte at which they begin; −1 where they are the last bytes of the file.
    encoding : Encoding
    length : int, optional
        Compressed bytes that the header states.
    least : int
        Byte before which no voxel can lie: the end of the header where it is in the same file.
    """

    path: Path
    offset: int
    encoding: Encoding
    length: int | None = None
    least: int = 0


def read_payload(payload: Payload, dtype: np.dtype[Any], count: int, subject: str) -> NDArray[Any]:
    """Read `count` numbers of a type.

    Returns
    -------
    array of shape (count,)
        In the byte order of the file.

    Raises
    ------
    RegweaveError
        E101 no regular file, E102 not what the header says, E140 more than the machine has memory for.
    """
    expected = count * dtype.itemsize
    with open_file(payload.path) as stream:
        size = os.fstat(stream.fileno()).st_size
        start = payload.offset if payload.offset >= 0 else size - expected
        if start < payload.least:
            raise damaged(subject, f"{expected} bytes of voxels expected, {max(0, size - payload.least)} found")
        _require_room(payload.encoding, expected, count, size - start, subject)
        require_memory(expected + count * BYTES_PER_VALUE, subject)
        stream.seek(start)
        if payload.encoding == "text":
            numbers, extra = read_numbers(stream, dtype, count, subject)
            warn_of_more(extra, count, "numbers", subject)
            return numbers
        source: Readable = stream
        if payload.encoding == "hex":
            source = Hexadecimal(stream, subject)
        elif payload.encoding != "raw":
            source = Inflated(stream, payload.encoding, payload.length)
        data = read_exactly(source, expected, subject)
        if isinstance(source, Inflated) and payload.length is not None and source.used != payload.length:
            raise damaged(subject, f"its header states {payload.length} compressed bytes, the stream has {source.used}")
        if payload.length is not None:
            warn_of_more(size - start - payload.length, payload.length, "bytes", subject)
    return data.view(dtype)


def _require_room(encoding: Encoding, expected: int, count: int, size: int, subject: str) -> None:
    room = {"raw": size, "hex": size // 2, "text": (size + 1) // 2 * (expected // max(count, 1))}
    most = room[encoding] if encoding in room else size * RATIO[_codec(encoding)]
    if expected > most:
        raise damaged(subject, f"its header promises {expected} bytes of voxels, found are {size} ({encoding})")


def _codec(encoding: Encoding) -> Codec:
    assert encoding in {"gzip", "zlib", "bzip2"}
    return encoding


def read_exactly(stream: Readable, expected: int, subject: str) -> NDArray[np.uint8]:
    """Read the bytes of all voxels and go on to the end, where check sums are; E102 where they are not there.

    Up to as many bytes again may follow, with warning W208. More than that tells of another image than the header's.
    """
    buffer = np.empty(expected, dtype=np.uint8)
    view, done = buffer.data, 0
    try:
        while done < expected:
            block = stream.read(min(CHUNK, expected - done))
            if not block:
                raise damaged(subject, f"{expected} bytes of voxels expected, {done} found")
            view[done : done + len(block)] = block
            done += len(block)
        warn_of_more(_bytes_left(stream, expected), expected, "bytes", subject)
    except BROKEN as error:
        raise damaged(subject, f"its compressed stream is broken ({error})") from error
    return buffer


def _bytes_left(stream: Readable, limit: int) -> int:
    extra = 0
    while extra <= limit and (block := stream.read(min(CHUNK, limit - extra + 1))):
        extra += len(block)
    return extra


def warn_of_more(extra: int, expected: int, unit: str, subject: str) -> None:
    """Give W208 for a file that is longer than its header says, or raise E102 where it is more than twice as long."""
    if extra >= max(expected, 1):
        raise damaged(subject, f"its header promises {expected} {unit} of voxels, at least twice as many are there")
    if extra:
        notices.warn(f"W208: {subject} is {extra} {unit} longer than its header says")


def data_file(header: Path, name: str, *, follow_links: bool) -> Path:
    """Return the file of the voxels that a header names, or raise E102 or E109.

    A header from a stranger could name any file of the machine, and its bytes would come out as grey values: without
    `follow_links` the file must lie in the header's folder or below, after links are resolved.
    """
    subject = f"'{header}'"
    if not name or "\0" in name:
        raise damaged(subject, f"it names {shown(name)} as the file of its voxels")
    path = header.parent / name
    inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(header.parent))
    if not inside and not follow_links:
        message = f"{subject} takes its voxels from {shown(name)}, which lies outside of its folder"
        raise RegweaveError("E109", message, "move the file beside the header, or pass --follow-links")
    try:
        with open_file(path):
            return path
    except RegweaveError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise damaged(subject, f"the file of its voxels, {shown(name)}, is missing") from error
        message = f"{subject} names a file of voxels that cannot be used: {error.message}"
        raise RegweaveError(error.code, message, error.hint) from error
