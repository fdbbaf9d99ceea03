"""Deflated streams of large arrays: pieces are compressed side by side, and the bytes do not depend on the threads."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from regweave.kernels.threads import present_threads

S = TypeVar("S")
T = TypeVar("T")
BLOCK = 1 << 20
"""Bytes that are compressed by themselves; each block begins without the words of the one before."""
SAMPLE = 1 << 16
LEVEL = 1
WORTH = 0.98
"""A search for repeated words must save this much of a sample: it finds none in the noise of floating-point scans."""
HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"
"""Of a gzip file without name or time: the same content gives the same bytes."""
WAITING = 2
"""Pieces for each thread that are taken before the first of them is done."""


def in_order(function: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """Give the results of a function in the order of the items, which are taken few at a time.

    The function runs in as many threads as the kernels may use here; it should let other threads run, as zlib does.

    Examples
    --------
    >>> list(in_order(len, ["a", "bc"]))
    [1, 2]
    """
    n = present_threads()
    if n == 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(n) as pool:
        waiting: deque[Future[T]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > WAITING * n:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def gzip_pieces(pieces: Iterable[bytes | NDArray[np.generic]]) -> Iterator[bytes]:
    """Give the parts of a gzip file that holds these pieces, one after the other.

    Examples
    --------
    >>> import gzip
    >>> gzip.decompress(b"".join(gzip_pieces([b"some ", b"bytes"])))
    b'some bytes'
    """
    check, length = 0, 0
    yield HEAD
    for block, packed in in_order(lambda raw: (raw, _deflated(raw)), _blocks(pieces)):
        check, length = zlib.crc32(block, check), length + len(block)
        yield packed
    yield b"\x03\x00" + check.to_bytes(4, "little") + (length & 0xFFFFFFFF).to_bytes(4, "little")


def _blocks(pieces: Iterable[bytes | NDArray[np.generic]]) -> Iterator[memoryview]:
    for piece in pieces:
        flat = memoryview(piece) if isinstance(piece, bytes) else np.ascontiguousarray(piece).reshape(-1).data
        raw = flat.cast("B")
        for start in range(0, len(raw), BLOCK):
            yield raw[start : start + BLOCK]


def _deflated(raw: memoryview) -> bytes:
    """Compress a block that another may follow: it ends at a whole byte, without the mark of an end."""
    strategy = zlib.Z_DEFAULT_STRATEGY
    if len(raw) > SAMPLE:
        sample = raw[: min(SAMPLE, len(raw))]
        runs, words = (len(_packed(sample, s)) for s in (zlib.Z_RLE, zlib.Z_DEFAULT_STRATEGY))
        strategy = zlib.Z_RLE if words > WORTH * runs else zlib.Z_DEFAULT_STRATEGY
    return _packed(raw, strategy)


def _packed(raw: memoryview, strategy: int) -> bytes:
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, strategy)
    return packer.compress(raw) + packer.flush(zlib.Z_SYNC_FLUSH)
