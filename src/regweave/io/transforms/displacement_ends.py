"""Direction of displacement fields stored as images, kept in their headers."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

from regweave.io.disk.files import damaged, open_file, suffix_of
from regweave.io.transforms.ends import from_line, to_line
from regweave.types import Ends

COMMENT = 6
"""NIfTI's code of an extension that is plain text."""
KEY = "regweave"
MARK = b"regweave "
HEADER, MOST = 348, 1 << 16


def to_comment(ends: Ends) -> bytes:
    """Return the text of the NIfTI extension."""
    return MARK + to_line(ends).encode("ascii")


def read_displacement_ends(path: Path) -> Ends | None:
    """Read the ends that the header of a displacement field states, None where it does not."""
    subject = f"'{path}'"
    name = suffix_of(path)
    line = _nifti_comment(path, subject) if name in {".nii", ".nii.gz"} else _text_field(path)
    return from_line(line, subject)


def _nifti_comment(path: Path, subject: str) -> str:
    """Walk through the extensions between header and voxels, which `from_line` bounds to some kilobytes."""
    with open_file(path) as stream:
        try:
            content = (gzip.GzipFile(fileobj=stream) if path.name.lower().endswith(".gz") else stream).read(MOST)
        except (OSError, EOFError, zlib.error) as error:
            raise damaged(subject, "its header cannot be decompressed") from error
    order = "<" if content[:4] == HEADER.to_bytes(4, "little") else ">"
    end = min(int(max(0.0, min(struct.unpack_from(f"{order}f", content, 108)[0], MOST))), len(content))
    at = HEADER + 4
    while content[HEADER : HEADER + 1] == b"\1" and at + 8 <= end:
        size, code = struct.unpack_from(f"{order}2i", content, at)
        text = content[at + 8 : at + size].rstrip(b"\0")
        if code == COMMENT and text.startswith(MARK):
            return text[len(MARK) :].decode("ascii", errors="replace")
        if size < 16:
            break
        at += size
    return ""


def _text_field(path: Path) -> str:
    """Find our line in the text that NRRD and MetaImage files begin with."""
    with open_file(path) as stream:
        head = stream.read(MOST)
    for line in head.split(b"\n")[:200]:
        name, _, value = line.strip().partition(b"=")
        if name.rstrip(b" :") == KEY.encode("ascii"):
            return value.strip().decode("ascii", errors="replace")
        if not name or name.strip() == b"ElementDataFile":  # the voxels begin
            break
    return ""
