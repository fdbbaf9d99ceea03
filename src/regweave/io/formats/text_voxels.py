"""Voxels that are written as text: decimal numbers, or hexadecimal digits of their bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.io.disk.files import damaged
from regweave.io.disk.texts import shown
from regweave.io.formats.inflate import CHUNK, Readable

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
