"""Damage to files: bytes as disks and networks lose them, text as hands and programs spoil it."""

import gzip
import json
import re
from collections.abc import Callable

import numpy as np

Rng = np.random.Generator
Mutation = Callable[[bytes, Rng], bytes]

NUMBERS = [
    b"0", b"-1", b"1", b"2", b"nan", b"inf", b"-inf", b"1e300", b"-1e300", b"1e-300", b"5e-324", b"1e30", b"2147483647",
    b"2147483648", b"-2147483649", b"4294967296", b"9223372036854775807", b"18446744073709551616", b"1,5", b"0x10", b"",
    b"abc", b"1 2", b"1" * 400, b"true", b"null", b"[]", b'"x"', b"\xc2\xb2",
]  # fmt: skip
BYTES = [0, 1, 2, 3, 4, 8, 16, 32, 64, 127, 128, 254, 255]


def flip(data: bytes, rng: Rng) -> bytes:
    """Flip one to eight bits."""
    out = bytearray(data)
    for place in rng.integers(0, len(out), rng.integers(1, 9)):
        out[place] ^= 1 << int(rng.integers(8))
    return bytes(out)


def flip_head(data: bytes, rng: Rng) -> bytes:
    """Flip bits near the beginning, where headers are."""
    head = min(len(data), 512)
    return flip(data[:head], rng) + data[head:]


def poke(data: bytes, rng: Rng) -> bytes:
    """Set one to four neighbouring bytes to values on the edge of something."""
    at, n = int(rng.integers(len(data))), int(rng.integers(1, 5))
    if rng.random() < 0.6:
        at = min(at, int(rng.integers(min(len(data), 512))))
    return data[:at] + bytes(rng.choice(BYTES, n).astype(np.uint8)) + data[at + n :]


def cut(data: bytes, rng: Rng) -> bytes:
    """Lose the end."""
    return data[: int(rng.integers(len(data)))]


def lose(data: bytes, rng: Rng) -> bytes:
    """Lose a piece of the middle."""
    at, n = int(rng.integers(len(data))), int(rng.integers(1, 65))
    return data[:at] + data[at + n :]


def insert(data: bytes, rng: Rng) -> bytes:
    """Insert bytes."""
    at = int(rng.integers(len(data) + 1))
    return data[:at] + rng.bytes(int(rng.integers(1, 65))) + data[at:]


def repeat(data: bytes, rng: Rng) -> bytes:
    """Repeat a piece."""
    at, n = int(rng.integers(len(data))), int(rng.integers(1, 257))
    return data[: at + n] + data[at : at + n] * int(rng.integers(1, 4)) + data[at + n :]


def swap_number(data: bytes, rng: Rng) -> bytes:
    """Put another number, or something that is none, where a number stands in text."""
    found = list(re.finditer(rb"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])", data[:20000]))
    if not found:
        return poke(data, rng)
    chosen = found[int(rng.integers(len(found)))]
    return data[: chosen.start()] + NUMBERS[int(rng.integers(len(NUMBERS)))] + data[chosen.end() :]


def shuffle_lines(data: bytes, rng: Rng) -> bytes:
    """Drop a line, repeat it, move it, or empty its value."""
    lines = data.split(b"\n")
    at, what = int(rng.integers(min(len(lines), 60))), int(rng.integers(4))
    line = lines.pop(at)
    if what == 1:
        lines[at:at] = [line, line]
    elif what == 2:
        lines.insert(int(rng.integers(min(len(lines), 60) + 1)), line)
    elif what == 3:
        lines.insert(at, re.sub(rb"([=:,\t]).*", rb"\1", line))
    return b"\n".join(lines)


def swap_word(data: bytes, rng: Rng) -> bytes:
    """Put a word of the file where another stands."""
    words = list(re.finditer(rb"[A-Za-z_]{2,40}", data[:20000]))
    if len(words) < 2:
        return poke(data, rng)
    a, b = (words[int(n)] for n in rng.integers(0, len(words), 2))
    return data[: a.start()] + b.group() + data[a.end() :]


def swap_value(data: bytes, rng: Rng) -> bytes:
    """Put another kind of value somewhere into JSON."""
    try:
        content = json.loads(data)
    except ValueError:
        return swap_number(data, rng)
    others: list[object] = [None, [], {}, "x", -1, 0, 1e308, 10**30, True, [[1]], {"a": 1}, "x" * 5000, [1.5] * 300]
    places: list[tuple[object, object]] = []
    pending: list[object] = [content]
    while pending and len(places) < 400:
        node = pending.pop()
        items = node.items() if isinstance(node, dict) else enumerate(node[:20]) if isinstance(node, list) else ()
        for key, value in items:
            places.append((node, key))
            pending.append(value)
    if not places:
        return swap_number(data, rng)
    node, key = places[int(rng.integers(len(places)))]
    node[key] = others[int(rng.integers(len(others)))]  # type: ignore[index]
    return json.dumps(content).encode()


def inside_gzip(mutation: Mutation) -> Mutation:
    """Damage what is compressed and compress it again: check sums then hold."""

    def mutate(data: bytes, rng: Rng) -> bytes:
        return gzip.compress(mutation(gzip.decompress(data), rng), 1, mtime=0)

    mutate.__doc__ = mutation.__doc__
    return mutate


BINARY: tuple[Mutation, ...] = (flip, flip_head, poke, cut, lose, insert, repeat)
TEXT: tuple[Mutation, ...] = (swap_number, shuffle_lines, swap_word, flip, cut, lose, insert, repeat)
JSON: tuple[Mutation, ...] = (swap_value, swap_value, *TEXT)
