"""Strict readers of the text headers of images, one file for each format."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

from regweave.io.disk.files import damaged, open_file, suffix_of
from regweave.io.formats.headers import meta, nrrd
from regweave.io.formats.headers.image import ImageHeader
from regweave.io.formats.payload import Payload


class Format(Protocol):
    """Protocol of a module for one header format."""

    BEGINS: re.Pattern[bytes]

    def parse(self, path: Path, follow_links: bool, /) -> ImageHeader:
        """Read the header of a file."""
        ...

    def find_payload(self, path: Path, follow_links: bool, /) -> Payload:
        """Find where the voxels are."""
        ...


FORMATS: dict[str, Format] = {".nrrd": nrrd, ".nhdr": nrrd, ".mha": meta, ".mhd": meta}
SUFFIXES = tuple(FORMATS)


def format_of_head(head: bytes) -> Format | None:
    """Return the format of a file by its first bytes."""
    return next((one for one in FORMATS.values() if one.BEGINS.match(head)), None)


def _format(path: Path) -> Format:
    suffix = suffix_of(path)
    if suffix in FORMATS:
        return FORMATS[suffix]
    with open_file(path) as stream:
        found = format_of_head(stream.peek())
    if found is None:
        raise damaged(f"'{path}'", "it has no header of NRRD or MetaImage")
    return found


def read_header(path: Path, *, follow_links: bool = False) -> ImageHeader:
    """Read and check the header of an NRRD or MetaImage file; no voxel is read.

    Parameters
    ----------
    path : Path
        .nrrd, .nhdr, .mha or .mhd, or a file of another name that begins as these do.
    follow_links : bool
        Let the header name a file of voxels outside of its own folder.
    """
    return _format(path).parse(path, follow_links)


def voxels_file(path: Path, *, follow_links: bool = False) -> Path:
    """Return the file that holds the voxels of an image: another one where its header says so."""
    return _format(path).find_payload(path, follow_links).path


__all__ = ["SUFFIXES", "ImageHeader", "format_of_head", "read_header", "voxels_file"]
