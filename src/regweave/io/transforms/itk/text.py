"""Text transform files of ITK, .tfm and .txt: a strict reader and a writer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from regweave.io.disk.files import damaged, open_file
from regweave.io.disk.limits import require_memory
from regweave.io.transforms.itk.field_list import FieldPart, pieces_of
from regweave.io.transforms.itk.parts import COMPOSITE, Part
from regweave.types import Float64Array

HEAD = b"#Insight Transform File V1.0"
NOTE = b"#regweave "
"""Begins the comment line that holds our own words; ITK skips it."""
DECIMAL = b"0123456789+-.eE \t"
PIECE = 1 << 20
BYTES_PER_CHARACTER = 40
"""Memory for a character of a list of numbers: the shortest number is a digit and a blank, a word of its own."""


def read_text(path: Path) -> tuple[list[Part], str]:
    """Read all transforms of a text file, and our own note where there is one, or raise E102.

    Each line is a comment, empty, or one of ``Transform:``, ``Parameters:`` and ``FixedParameters:`` in this order.
    """
    subject = f"'{path}'"
    with open_file(path) as stream:
        require_memory(path.stat().st_size * 3 + PIECE * BYTES_PER_CHARACTER, subject)
        content = stream.read()
    if not content.startswith(HEAD):
        raise damaged(subject, f"no ITK transform in it; it begins with {content[:4]!r}")
    if not content.endswith(b"\n"):
        raise damaged(subject, "its last line has no end")
    note, parts, lines = "", [], _fields(content, subject)
    for key, value in lines:
        if key == b"note":
            note = value.decode("ascii", errors="replace")
        elif key == b"Transform":
            parts.append(_part(value, lines, subject))
        else:
            raise damaged(subject, f"{key[:40]!r} stands where a transform should begin")
    return parts, note


def _fields(content: bytes, subject: str) -> Iterator[tuple[bytes, bytes]]:
    """Walk through the lines that say something, as name and value."""
    start = 0
    while start < len(content):
        end = content.index(b"\n", start)
        line, start = content[start:end].strip(), end + 1
        if line.startswith(NOTE):
            yield b"note", line[len(NOTE) :]
        elif line and not line.startswith(b"#"):
            key, colon, value = line.partition(b":")
            if not colon:
                raise damaged(subject, f"a line has no name: {line[:40]!r}")
            yield key.strip(), value.strip()


def _part(type_name: bytes, lines: Iterator[tuple[bytes, bytes]], subject: str) -> Part:
    name = type_name.decode("ascii", errors="backslashreplace")
    if name.startswith(COMPOSITE):
        return Part(name, np.empty(0), np.empty(0))
    found = []
    for wanted in (b"Parameters", b"FixedParameters"):
        key, value = next(lines, (b"", b""))
        if key != wanted:
            raise damaged(subject, f"it ends before the {wanted.decode()} of a transform")
        found.append(_numbers(value, subject))
    return Part(name, *found)


def _numbers(text: bytes, subject: str) -> Float64Array:
    """Read decimal numbers that blanks part; nothing else is a number, ``nan`` and ``1_0`` neither."""
    if text.translate(None, DECIMAL):
        raise damaged(subject, "a list of numbers holds other characters than decimal numbers have")
    pieces, start = [], 0
    while start < len(text):
        end = start + PIECE
        while end < len(text) and text[end : end + 1] not in b" \t":
            end += 1
        pieces.append(_words(text[start:end].split(), subject))
        start = end
    return np.concatenate(pieces) if pieces else np.empty(0)


def _words(words: list[bytes], subject: str) -> Float64Array:
    try:
        return np.array([float(word) for word in words], dtype=np.float64)
    except ValueError as error:
        raise damaged(subject, f"a list of numbers holds what is none ({str(error)[-60:]})") from error


def to_text(parts: Sequence[Part | FieldPart], note: str = "") -> Iterator[bytes]:
    """Give the pieces of a text file; numbers in the shortest form that reads back as the same bits."""
    yield HEAD + b"\n"
    if note:
        yield NOTE + note.encode("ascii") + b"\n"
    for n, part in enumerate(parts):
        yield f"#Transform {n}\nTransform: {part.type_name}\n".encode("ascii")
        if part.type_name.startswith(COMPOSITE):
            continue
        for key, numbers in (("Parameters:", part.parameters), ("FixedParameters:", part.fixed)):
            yield key.encode("ascii")
            for piece in pieces_of(numbers):
                for start in range(0, piece.size, PIECE):
                    yield b" " + " ".join(map(repr, piece[start : start + PIECE].tolist())).encode("ascii")
            yield b"\n"
