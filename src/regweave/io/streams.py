"""Streamed decompression of gzip, zlib and bzip2 with a bound on each step: no stream is believed about its length."""

from __future__ import annotations

import bz2
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from regweave import notices
from regweave.errors import RegweaveError
from regweave.io.disk.files import BYTES_PER_VALUE, damaged, open_file, require_memory
from regweave.io.disk.text import shown

Codec = Literal["gzip", "zlib", "bzip2"]
DECODERS: dict[Codec, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(31),
    "zlib": lambda: zlib.decompressobj(47),  # MetaImage allows a gzip stream in the place of zlib's
    "bzip2": bz2.BZ2Decompressor,
}
MARKS: dict[Codec, bytes] = {"gzip": b"\x1f\x8b", "bzip2": b"BZh"}
"""How a further stream begins that belongs to the one before it; zlib has no such thing."""
RATIO: dict[Codec, int] = {"gzip": 1040, "zlib": 1040, "bzip2": 1_000_000}
"""No stream holds more than this many bytes for each of its own: deflate 1032, bzip2 some 20 000."""
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
    codec : {"gzip", "zlib", "bzip2"}
    length : int, optional
        Compressed bytes to take at most; by default to the end of the stream.

    Attributes
    ----------
    used : int
        Compressed bytes that were decoded, once the end is reached.
    """

    def __init__(self, stream: Readable, codec: Codec, length: int | None = None) -> None:
        self._stream, self._codec, self._left = stream, codec, length
        self._decoder = DECODERS[codec]()
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
            fed = self._feed()
            block = self._decoder.decompress(fed, n)
            self._waiting = getattr(self._decoder, "unconsumed_tail", b"")
            if block:
                return bytes(block)
            if not fed and not self._decoder.eof and getattr(self._decoder, "needs_input", True):
                raise EOFError("the stream ends early")
        return b""

    def _feed(self) -> bytes:
        if self._waiting or not getattr(self._decoder, "needs_input", True):
            return self._waiting
        return self._take()

    def _take(self) -> bytes:
        n = CHUNK if self._left is None else min(CHUNK, self._left - self._taken)
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
        while rest and len(rest) < 3 and (block := self._take()):
            rest += block
        if not rest or self._codec == "zlib":
            self._ended = True
            return
        if not rest.startswith(MARKS[self._codec]):
            raise OSError("other bytes follow its end")
        self._decoder, self._waiting = DECODERS[self._codec](), rest


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


BLANKS = b" \t\r\n\v\f"
NUMBER_BYTES = frozenset(b"0123456789+-.eEnaifNAIF" + BLANKS)
"""Bytes of numbers as C writes them; Python would also take 1_0 for ten."""
LONGEST_NUMBER = 64


class Hexadecimal:
    """Bytes from pairs of hexadecimal digits with blanks anywhere between them."""

    def __init__(self, stream: Readable, subject: str) -> None:
        self._stream, self._subject, self._odd = stream, subject, b""

    def read(self, n: int) -> bytes:
        """Return at most n bytes, none at the end."""
        while block := self._stream.read(2 * n - len(self._odd)):
            digits = self._odd + block.translate(None, BLANKS)
            even = len(digits) // 2 * 2
            self._odd = digits[even:]
            try:
                found = bytes.fromhex(digits[:even].decode("ascii"))
            except ValueError as error:
                raise damaged(self._subject, "its voxels are not hexadecimal digits") from error
            if found:
                return found
        if self._odd:
            raise damaged(self._subject, "its last hexadecimal digit has no partner")
        return b""


def read_numbers(stream: Readable, dtype: np.dtype[Any], count: int, subject: str) -> tuple[NDArray[Any], int]:
    """Read `count` decimal numbers; return them and how many more follow, which are counted up to `count`."""
    data = np.empty(count, dtype=dtype.newbyteorder("="))
    done, extra, rest = 0, 0, b""
    while block := stream.read(CHUNK):
        tokens, rest = _tokens(rest + block, subject)
        used = min(count - done, len(tokens))
        data[done : done + used] = _numbers(tokens[:used], data.dtype, subject)
        done, extra = done + used, extra + len(tokens) - used
        if extra > count:
            break
    last = rest.split()
    used = min(count - done, len(last))
    data[done : done + used] = _numbers(last[:used], data.dtype, subject)
    if done + used < count:
        raise damaged(subject, f"{count} numbers expected, {done + used} found")
    return data, extra + len(last) - used


def _tokens(block: bytes, subject: str) -> tuple[list[bytes], bytes]:
    """Split text into whole tokens and the beginning of one that the next block may go on with."""
    if not NUMBER_BYTES.issuperset(block):
        strange = next(byte for byte in block if byte not in NUMBER_BYTES)
        raise damaged(subject, f"its voxels are text, and {bytes([strange])!r} is part of no number")
    tokens = block.split()
    if not tokens or block[-1] in BLANKS:
        return tokens, b""
    if len(tokens[-1]) > LONGEST_NUMBER:
        raise damaged(subject, f"its voxels are text, and {shown(tokens[-1].decode())} is no number")
    return tokens[:-1], tokens[-1]


def _numbers(tokens: list[bytes], dtype: np.dtype[Any], subject: str) -> NDArray[Any]:
    convert = float if dtype.kind == "f" else int
    try:
        if max(map(len, tokens), default=0) > LONGEST_NUMBER:
            raise ValueError("a number is too long")
        values = [convert(token) for token in tokens]
    except ValueError as error:
        raise damaged(subject, f"a voxel is no number of type {dtype} ({shown(error)})") from error
    if dtype.kind != "f" and values:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        if min(values) < low or max(values) > high:
            raise damaged(subject, f"a voxel does not fit its type, {dtype}")
    with np.errstate(over="ignore"):
        return np.array(values, dtype=dtype)
