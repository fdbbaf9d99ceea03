"""Streamed decompression of gzip, zlib and bzip2 with a bound on each step: no stream is believed about its length."""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable
from typing import Any, Literal, Protocol

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
