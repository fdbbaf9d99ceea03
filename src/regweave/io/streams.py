"""Voxels from raw and deflated files: exactly as many bytes as a header promises.

Memory is taken after three checks: the file can hold what its header promises, the machine has room for it, and, while
reading, the stream ends where it should. A stream is inflated step by step, so its stated length costs no memory.
"""

import io
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from regweave import notices
from regweave.errors import RegweaveError
from regweave.io.disk.files import BYTES_PER_VALUE, damaged, open_file, require_memory
from regweave.io.disk.text import shown

GZIP_WINDOW, ANY_WINDOW = 31, 47
"""Codes of zlib for streams of gzip, and for its own and those of gzip, as MetaImage allows."""
GZIP_MARK = b"\x1f\x8b"
RATIO = 1040  # Largest ratio of inflated to deflated bytes; that of deflate is at most 1032
CHUNK = 1 << 18
BROKEN = (EOFError, OSError, zlib.error)  # What reading from a damaged stream raises


class Inflated:
    """Bytes of a gzip file, verified against its check sums; `gzip` itself takes half as long again, 8 kB at a time."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream, self._decoder, self._packed = stream, zlib.decompressobj(GZIP_WINDOW), b""

    def read(self, n: int) -> bytes:
        """Return n bytes, fewer at the end; raise one of `BROKEN` where the stream is damaged."""
        blocks = []
        while n > 0:
            if self._decoder.eof:  # another member may follow, and zeros behind the last one
                packed = self._decoder.unused_data.lstrip(b"\0")
                while not packed and (more := self._stream.read(CHUNK)):
                    packed = more.lstrip(b"\0")
                if not packed:
                    break
                self._decoder, self._packed = zlib.decompressobj(GZIP_WINDOW), packed
            packed = self._packed or self._stream.read(CHUNK)
            blocks.append(self._decoder.decompress(packed, n))
            self._packed, n = self._decoder.unconsumed_tail, n - len(blocks[-1])
            if not packed and not blocks[-1] and not self._decoder.eof:
                raise EOFError("the stream ends early")
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def seek(self, offset: int) -> None:
        """Go on by so many bytes, from the beginning of the stream."""
        while offset > 0 and (block := self.read(min(CHUNK, offset))):
            offset -= len(block)


Stream = io.BufferedReader | io.BytesIO | Inflated
Encoding = Literal["raw", "gzip", "zlib"]


@dataclass(frozen=True)
class Payload:
    """Location and encoding of the voxels of an image."""

    path: Path
    offset: int  # Byte at which they begin; −1 where they are the last bytes of the file
    encoding: Encoding
    length: int | None = None  # Compressed bytes that the header states
    least: int = 0  # First byte that can belong to a voxel: the end of the header where it is in the same file


def read_payload(payload: Payload, dtype: np.dtype[Any], count: int, subject: str) -> NDArray[Any]:
    """Read `count` numbers of a type, in the byte order of the file."""
    expected = count * dtype.itemsize
    with open_file(payload.path) as stream:
        size = os.fstat(stream.fileno()).st_size
        start = payload.offset if payload.offset >= 0 else size - expected
        if start < payload.least:
            raise damaged(subject, f"{expected} bytes of voxels expected, {max(0, size - payload.least)} found")
        room = size - start
        if expected > room * (1 if payload.encoding == "raw" else RATIO):
            reason = f"its header promises {expected} bytes of voxels, found are {room} ({payload.encoding})"
            raise damaged(subject, reason)
        require_memory(expected + count * BYTES_PER_VALUE, subject)
        stream.seek(start)
        if payload.encoding == "raw":
            return read_exactly(stream, expected, subject).view(dtype)
        if payload.encoding == "gzip":
            return read_exactly(Inflated(stream), expected, subject).view(dtype)
        packed, decoder = stream.read(payload.length or -1), zlib.decompressobj(ANY_WINDOW)
    try:
        inflated = decoder.decompress(packed, 2 * expected + 1)  # the end of a bomb is never reached
    except zlib.error as error:
        raise damaged(subject, f"its compressed stream is broken ({error})") from error
    data, used = read_exactly(io.BytesIO(inflated), expected, subject), len(packed) - len(decoder.unused_data)
    if not decoder.eof or used != (payload.length or used):
        raise damaged(subject, f"its header states {len(packed)} compressed bytes, and its stream ends elsewhere")
    if payload.length is not None:
        _warn_of_more(room - payload.length, payload.length, subject)
    return data.view(dtype)


def read_exactly(stream: Stream, expected: int, subject: str) -> NDArray[np.uint8]:
    """Read the bytes of all voxels and go on to the end, where check sums are; E102 where they are not there.

    Up to as many bytes again may follow, with warning W208. More than that belongs to another image.
    """
    buffer = np.empty(expected, dtype=np.uint8)
    done = extra = 0
    try:
        while done < expected:
            block = stream.read(min(CHUNK, expected - done))
            if not block:
                raise damaged(subject, f"{expected} bytes of voxels expected, {done} found")
            buffer.data[done : done + len(block)] = block
            done += len(block)
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
        notices.warn(f"W208: {subject} is {extra} bytes longer than its header states")


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
        message = f"{subject} takes its voxels from {shown(name)}, outside of its folder"
        raise RegweaveError("E109", message, "move the file beside the header, or allow it with follow_links")
    try:
        with open_file(path):
            return path
    except RegweaveError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise damaged(subject, f"the file of its voxels, {shown(name)}, is missing") from error
        message = f"{subject} names a file of voxels that cannot be used: {error.message}"
        raise RegweaveError(error.code, message, error.hint) from error
