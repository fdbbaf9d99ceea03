"""Voxels from raw and deflated files: exactly as many bytes as a header promises.

Memory is taken after three checks: the file can hold what its header promises, the machine has room for it, and, while
reading, the stream ends where it should. A stream is inflated step by step, so its stated length costs no memory.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from regweave import notices
from regweave.errors import RegweaveError
from regweave.io.disk.files import BYTES_PER_VALUE, damaged, open_file, require_memory
from regweave.io.disk.text import shown

WINDOW = {"gzip": 31, "zlib": 47}
"""Codes of zlib; MetaImage allows a gzip stream in the place of zlib's."""
GZIP_MARK = b"\x1f\x8b"
RATIO = 1040
"""Largest ratio of inflated to deflated bytes; that of deflate is at most 1032."""
CHUNK = 1 << 18
BROKEN = (EOFError, OSError, zlib.error)
"""What reading from a damaged stream raises."""


class Readable(Protocol):
    """Protocol of a sequential byte stream."""

    def read(self, n: int, /) -> bytes:
        """Return at most n bytes, none at the end."""
        ...


class Inflated:
    """Decompressed bytes of a stream, verified against its check sums when its end is reached.

    Parameters
    ----------
    stream : Readable
        Compressed bytes.
    codec : {"gzip", "zlib"}
    length : int, optional
        Compressed bytes to take at most; by default to the end of the stream.

    Attributes
    ----------
    used : int
        Compressed bytes that were decoded, once the end is reached.
    """

    def __init__(self, stream: Readable, codec: Literal["gzip", "zlib"], length: int | None = None) -> None:
        self._stream, self._codec, self._length = stream, codec, length
        self._decoder = zlib.decompressobj(WINDOW[codec])
        self._waiting = b""
        self._taken = 0
        self._ended = False
        self.used = 0

    def read(self, n: int) -> bytes:
        """Return at most n bytes, none at the end; raise one of `BROKEN` where the stream is damaged."""
        while n > 0 and not self._ended:
            if self._decoder.eof:
                self._next_member()
                continue
            packed = self._waiting or self._take()
            block = self._decoder.decompress(packed, n)
            self._waiting = self._decoder.unconsumed_tail
            if block:
                return block
            if not packed and not self._decoder.eof:
                raise EOFError("the stream ends early")
        return b""

    def _take(self) -> bytes:
        n = CHUNK if self._length is None else min(CHUNK, self._length - self._taken)
        block = self._stream.read(n) if n > 0 else b""
        self._taken += len(block)
        return block

    def _next_member(self) -> None:
        """Go on with a stream that follows; gzip allows zeros behind the last one, and nothing else may follow."""
        rest = self._decoder.unused_data
        self.used = self._taken - len(rest)
        while not rest.strip(b"\0") and (block := self._take()):
            rest = block
        rest = rest.lstrip(b"\0")
        if len(rest) == 1:
            rest += self._take()
        if not rest or self._codec == "zlib":
            self._ended = True
            return
        if not rest.startswith(GZIP_MARK):
            raise OSError("other bytes follow its end")
        self._decoder, self._waiting = zlib.decompressobj(WINDOW[self._codec]), rest


Encoding = Literal["raw", "gzip", "zlib"]


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
        First byte that can belong to a voxel: the end of the header where it is in the same file.
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
        E101 no regular file, E102 other bytes than the header promises, E140 more than the free memory.
    """
    expected = count * dtype.itemsize
    with open_file(payload.path) as stream:
        size = os.fstat(stream.fileno()).st_size
        start = payload.offset if payload.offset >= 0 else size - expected
        if start < payload.least:
            raise damaged(subject, f"{expected} bytes of voxels expected, {max(0, size - payload.least)} found")
        raw, room = payload.encoding == "raw", size - start
        if expected > (room if raw else room * RATIO):
            reason = f"its header promises {expected} bytes of voxels, found are {room} ({payload.encoding})"
            raise damaged(subject, reason)
        require_memory(expected + count * BYTES_PER_VALUE, subject)
        stream.seek(start)
        if payload.encoding == "raw":
            return read_exactly(stream, expected, subject).view(dtype)
        source = Inflated(stream, payload.encoding, payload.length)
        data = read_exactly(source, expected, subject)
        if payload.length is not None:
            if source.used != payload.length:
                reason = f"its header states {payload.length} compressed bytes, the stream has {source.used}"
                raise damaged(subject, reason)
            _warn_of_more(room - payload.length, payload.length, subject)
    return data.view(dtype)


def read_exactly(stream: Readable, expected: int, subject: str) -> NDArray[np.uint8]:
    """Read the bytes of all voxels and go on to the end, where check sums are; E102 where they are not there.

    Up to as many bytes again may follow, with warning W208. More than that belongs to another image.
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
        extra = 0
        while extra <= expected and (block := stream.read(min(CHUNK, expected - extra + 1))):
            extra += len(block)
    except BROKEN as error:
        raise damaged(subject, f"its compressed stream is broken ({error})") from error
    _warn_of_more(extra, expected, subject)
    return buffer


def _warn_of_more(extra: int, expected: int, subject: str) -> None:
    """Give W208 for a file that is longer than its header states, or raise E102 where it is twice as long."""
    if extra >= max(expected, 1):
        raise damaged(subject, f"its header promises {expected} bytes of voxels, at least twice as many are there")
    if extra:
        notices.warn(f"W208: {subject} is {extra} bytes longer than its header says")


def data_file(header: Path, name: str, *, follow_links: bool) -> Path:
    """Return the file of the voxels that a header names, or raise E102 or E109.

    A header from a stranger could name any file of the machine, and its bytes would come out as grey values. So the
    file must be in the header's folder or below, after links are resolved, unless `follow_links` is given.
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
