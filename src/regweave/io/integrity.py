"""Check the bytes of NRRD and MetaImage files before ITK sees them.

ITK accepts a compressed MetaImage with a flipped byte (it prints "Uncompress failed" and goes on) and a
gzipped NRRD with a wrong CRC, so the compressed stream is verified here.
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regweave.errors import RegweaveError
from regweave.io.files import damaged, suffix_of

MAX_HEADER = 1 << 20
CHUNK = 1 << 22
RATIO = 1100
DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "zlib": zlib.decompressobj,
    "gzip": lambda: zlib.decompressobj(31),
    "gz": lambda: zlib.decompressobj(31),
    "bzip2": bz2.BZ2Decompressor,
    "bz2": bz2.BZ2Decompressor,
}


@dataclass(frozen=True)
class DataBlock:
    """Where the voxels of a file are: in which file, from which byte, in which encoding."""

    path: Path
    offset: int
    encoding: str


def find_data(path: Path) -> DataBlock | None:
    """Find the voxels that a header names; None where that takes more than one block of bytes."""
    with path.open("rb") as stream:
        block = stream.read(MAX_HEADER)
    reader = _nrrd_block if suffix_of(path) in {".nrrd", ".nhdr"} else _meta_block
    return reader(path, block)


def _require_beside(path: Path, name: str) -> Path:
    data = path.parent / name
    if not data.is_file():
        raise damaged(f"'{path}'", f"the file of its voxels, '{name}', is missing")
    return data


def _meta_block(path: Path, block: bytes) -> DataBlock | None:
    start = 0
    fields: dict[str, str] = {}
    while (end := block.find(b"\n", start)) >= 0 and len(fields) < 200:
        key, _, value = block[start:end].decode("latin-1").partition("=")
        fields[key.strip().lower()] = value.strip()
        start = end + 1
        if key.strip().lower() == "elementdatafile":
            break
    name = fields.get("elementdatafile", "")
    if not name or "dimsize" not in fields:
        raise damaged(f"'{path}'", f"no MetaImage header in it; it begins with {block[:4]!r}")
    encoding = "zlib" if fields.get("compresseddata", "").lower() == "true" else "raw"
    if name.split()[0].lower() == "list" or "%" in name or fields.get("binarydata", "").lower() == "false":
        return None
    if name.lower() == "local":
        return DataBlock(path, start, encoding)
    return DataBlock(_require_beside(path, name), 0, encoding)


def _nrrd_block(path: Path, block: bytes) -> DataBlock | None:
    if not block.startswith(b"NRRD0"):
        raise damaged(f"'{path}'", f"no NRRD header in it; it begins with {block[:4]!r}")
    ends = [(block.find(mark), len(mark)) for mark in (b"\n\n", b"\r\n\r\n")]
    found = [(at, at + length) for at, length in ends if at >= 0]
    stop, offset = min(found, default=(len(block), len(block)))
    fields = {}
    for line in block[:stop].decode("latin-1").splitlines()[1:]:
        key, _, value = line.partition(": ")
        fields[key.strip().lower()] = value.strip()
    encoding = fields.get("encoding", "").lower()
    skips = any(fields.get(key, "0") != "0" for key in ("byte skip", "byteskip", "line skip", "lineskip"))
    name = fields.get("data file", fields.get("datafile", ""))
    if not encoding or (not found and not name):
        raise damaged(f"'{path}'", "its NRRD header is not whole")
    if skips or name.split()[:1] == ["LIST"] or "%" in name:
        return None
    return DataBlock(_require_beside(path, name), 0, encoding) if name else DataBlock(path, offset, encoding)


def verify_data(block: DataBlock, expected: int, subject: str) -> None:
    """Raise E102 where a block does not hold the expected number of bytes, or its check sum is wrong."""
    size = block.path.stat().st_size - block.offset
    limit = size if block.encoding == "raw" else size * RATIO
    if expected > limit:
        raise damaged(subject, f"its header promises {expected} bytes of voxels, found {size} ({block.encoding})")
    if block.encoding not in DECOMPRESSORS:
        return
    try:
        found = _decompressed_size(block)
    except (zlib.error, OSError, EOFError) as error:
        raise damaged(subject, f"its {block.encoding} stream is broken ({error})") from error
    if found != expected:
        raise damaged(subject, f"{expected} bytes of voxels expected, {found} found")


def _decompressed_size(block: DataBlock) -> int:
    decompressor, found = DECOMPRESSORS[block.encoding](), 0
    with block.path.open("rb") as stream:
        stream.seek(block.offset)
        while not decompressor.eof and (chunk := stream.read(CHUNK)):
            found += len(decompressor.decompress(chunk))
    if not decompressor.eof:
        raise EOFError(f"ends after {found} bytes of voxels")
    return found


def unreadable(subject: str, error: RuntimeError) -> RegweaveError:
    """Make the E102 error of a file that ITK refuses, without ITK's source lines and addresses."""
    last = str(error).strip().splitlines()[-1].strip()
    return damaged(subject, f"ITK cannot read it ({last[:160]})")
