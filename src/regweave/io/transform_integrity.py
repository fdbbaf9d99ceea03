"""Check that a transform file is whole before ITK reads it.

ITK takes a text file that ends before its parameters for the identity, and fills the missing end of a .mat
file with whatever lies in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from regweave.io.files import damaged

HDF_MARK = b"\x89HDF\r\n\x1a\n"
MAT_SIZES = (8, 4, 4, 2, 2, 1)
"""Bytes of a number by the P digit of a MATLAB level 4 type code."""


def verify_hdf(path: Path) -> None:
    """Compare the length that an HDF5 superblock states with that of the file."""
    with path.open("rb") as stream:
        block = stream.read(64)
    if not block.startswith(HDF_MARK) or len(block) < 64:
        raise damaged(f"'{path}'", f"no HDF5 mark in it; it begins with {block[:4]!r}")
    at = 40 if block[8] < 2 else 28  # HDF5 format, superblock versions 0-1 and 2-3, offsets of eight bytes
    expected, found = int.from_bytes(block[at : at + 8], "little"), path.stat().st_size
    if found < expected:
        raise damaged(f"'{path}'", f"{expected} bytes expected, {found} found")


def verify_text(path: Path) -> None:
    """Look for both lists of numbers after each transform, and for the end of the last line."""
    text = path.read_text(encoding="utf-8", errors="replace")
    blocks = [block for block in text.split("\nTransform:")[1:] if "CompositeTransform" not in block.split("\n")[0]]
    if not text.startswith("#Insight Transform File") or not blocks:
        raise damaged(f"'{path}'", "no ITK transform in it")
    for block in blocks:
        if "\nParameters:" not in block or "\nFixedParameters:" not in block:
            raise damaged(f"'{path}'", "it ends before the numbers of a transform")
    if not text.endswith("\n"):
        raise damaged(f"'{path}'", "its last line has no end")


def verify_mat(path: Path) -> None:
    """Walk through the arrays of a MATLAB level 4 file; the last must end where the file ends."""
    content = path.read_bytes()
    order = "<" if len(content) >= 4 and int.from_bytes(content[:4], "little") < 1000 else ">"
    at = 0
    while at < len(content):
        if len(content) - at < 20:
            raise damaged(f"'{path}'", "it ends in the middle of an array")
        kind, rows, columns, _, name = struct.unpack_from(f"{order}5i", content, at)
        digit = kind // 10 % 10
        if digit >= len(MAT_SIZES) or min(kind, rows, columns, name) < 0:
            raise damaged(f"'{path}'", f"no ITK transform in it; it begins with {content[:4]!r}")
        at += 20 + name + rows * columns * MAT_SIZES[digit]
    if at != len(content) or at == 0:
        raise damaged(f"'{path}'", f"{at} bytes expected, {len(content)} found")


VERIFIERS: dict[str, Callable[[Path], None]] = {
    ".h5": verify_hdf,
    ".hdf5": verify_hdf,
    ".hdf": verify_hdf,
    ".tfm": verify_text,
    ".txt": verify_text,
    ".mat": verify_mat,
}
