"""Lines of an NRRD header: which fields there are, and how vectors, words and quoted text in them are written."""

from __future__ import annotations

import re
from pathlib import Path

from regweave.io.disk.files import damaged
from regweave.io.disk.limits import MAX_HEADER_BYTES
from regweave.io.disk.texts import shown
from regweave.io.formats.headers.fields import Fields, contradiction, decode, read_block

MARK = re.compile(rb"NRRD000[1-5]\r?\n")
NAMES = {
    "dimension": (), "type": (), "sizes": (), "encoding": (), "endian": (), "space": (), "space dimension": (),
    "space origin": (), "space directions": (), "space units": (), "measurement frame": (), "spacings": (),
    "thicknesses": (), "kinds": (), "labels": (), "units": (), "min": (), "max": (), "content": (), "number": (),
    "sample units": ("sampleunits",), "axis mins": ("axismins",), "axis maxs": ("axismaxs",),
    "centerings": ("centers",), "old min": ("oldmin",), "old max": ("oldmax",), "block size": ("blocksize",),
    "data file": ("datafile",), "line skip": ("lineskip",), "byte skip": ("byteskip",),
}  # fmt: skip
"""Fields of the format with their other spellings; case does not count."""
FIELDS = {spelling: name for name, others in NAMES.items() for spelling in (name, *others)}
VECTORS = re.compile(r"\s*(?:(none)|\(([^()]*)\))\s*(?=$|[\s(])", re.IGNORECASE)
WORDS = re.compile(r'"([^"]*)"|(\S+)')


def read_fields(path: Path) -> tuple[Fields, dict[str, str], int]:
    """Return the fields, the free keys, and the byte behind the empty line that ends the header (−1 without one)."""
    block, subject = read_block(path), f"'{path}'"
    if MARK.match(block) is None:
        raise damaged(subject, f"no NRRD header in it; it begins with {block[:4]!r}")
    values: dict[str, str] = {}
    keys: dict[str, str] = {}
    start, end = block.index(b"\n") + 1, -1
    while start < len(block):
        stop = block.find(b"\n", start)
        line = decode(block[start : stop if stop >= 0 else len(block)])
        start = stop + 1 if stop >= 0 else len(block)
        if not line:
            end = start
            break
        if not line.startswith("#"):
            _add(line, values, keys, subject)
    missing = [name for name in ("dimension", "type", "sizes", "encoding") if name not in values]
    if missing or (end < 0 and ("data file" not in values or len(block) == MAX_HEADER_BYTES)):
        raise damaged(subject, f"its NRRD header is not whole; missing: {', '.join(missing) or 'its last line'}")
    return Fields(subject, values), keys, end


def _add(line: str, values: dict[str, str], keys: dict[str, str], subject: str) -> None:
    free, field = line.find(":="), line.find(": ")
    if free >= 0 and (field < 0 or free < field):
        key, value, into = line[:free], line[free + 2 :], keys
    elif field >= 0 and line[:field].strip().lower() in FIELDS:
        key, value, into = FIELDS[line[:field].strip().lower()], line[field + 2 :].strip(), values
    else:
        raise damaged(subject, f"{shown(line)} is no line of an NRRD header")
    if key in into:
        raise contradiction(subject, f"{shown(key)} stands twice")
    into[key] = value


def vectors(fields: Fields, key: str, count: int, length: int) -> list[list[float] | None]:
    """Return so many vectors of a field, each ``(x,y,z)``, or None for ``none``."""
    text, found, at = fields.values[key], [], 0
    while at < len(text):
        match = VECTORS.match(text, at)
        if match is None:
            raise fields.bad(key, f"{count} vectors as (x,y,z) or none")
        found.append(None if match[1] else _vector(fields, key, match[2], length))
        at = match.end()
    if len(found) != count:
        raise contradiction(fields.subject, f"{key} has {len(found)} vectors, for its dimensions needed are {count}")
    return found


def _vector(fields: Fields, key: str, text: str, length: int) -> list[float] | None:
    tokens = [token.strip() for token in text.split(",")]
    if len(tokens) == length and all(token.lower() == "nan" for token in tokens):
        return None
    return fields.parse_numbers(key, tokens, length)


def words(fields: Fields, key: str, count: int) -> list[str]:
    """Return so many words of a field, in lower case, quoted or not."""
    found = [(match[1] or match[2] or "").lower() for match in WORDS.finditer(fields.values[key])]
    if len(found) != count:
        raise contradiction(fields.subject, f"{key} has {len(found)} entries, for its dimensions needed are {count}")
    return found


def numbers_or_nan(fields: Fields, key: str, count: int) -> list[float | None]:
    """Return so many numbers of a field, None for ``nan``: axes that a field says nothing about."""
    tokens = fields.values[key].split()
    stated = [token for token in tokens if token.lower() != "nan"]
    if len(tokens) != count:
        raise contradiction(fields.subject, f"{key} has {len(tokens)} numbers, for its dimensions needed are {count}")
    values = iter(fields.parse_numbers(key, stated, len(stated)))
    return [None if token.lower() == "nan" else next(values) for token in tokens]
