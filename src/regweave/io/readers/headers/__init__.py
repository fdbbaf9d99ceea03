"""Strict readers of the text headers of images, one file for each format."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from regweave.io.disk.files import suffix_of
from regweave.io.readers.headers import meta, nrrd
from regweave.io.readers.headers.image import ImageHeader
from regweave.io.readers.payload import Payload


class Format(Protocol):
    """What a module for one format has."""

    def parse(self, path: Path, follow_links: bool, /) -> ImageHeader:
        """Read the header of a file."""
        ...

    def find_payload(self, path: Path, follow_links: bool, /) -> Payload:
        """Find where the voxels are."""
        ...


FORMATS: dict[str, Format] = {".nrrd": nrrd, ".nhdr": nrrd, ".mha": meta, ".mhd": meta}
SUFFIXES = tuple(FORMATS)


def read_header(path: Path, *, follow_links: bool = False) -> ImageHeader:
    """Read and check the header of an NRRD or MetaImage file; no voxel is read.

    Parameters
    ----------
    path : Path
        .nrrd, .nhdr, .mha or .mhd.
    follow_links : bool
        Let the header name a file of voxels outside of its own folder.
    """
    return FORMATS[suffix_of(path)].parse(path, follow_links)


def voxels_file(path: Path, *, follow_links: bool = False) -> Path:
    """Return the file that holds the voxels of an image: another one where its header says so."""
    return FORMATS[suffix_of(path)].find_payload(path, follow_links).path


__all__ = ["SUFFIXES", "ImageHeader", "read_header", "voxels_file"]
