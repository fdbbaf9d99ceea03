"""Strict readers of the text headers of images, one file for each format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from regweave.io.files import suffix_of
from regweave.io.headers import meta, nrrd
from regweave.io.headers.image import ImageHeader

PARSERS: dict[str, Callable[[Path, bool], ImageHeader]] = {
    ".nrrd": nrrd.parse,
    ".nhdr": nrrd.parse,
    ".mha": meta.parse,
    ".mhd": meta.parse,
}
SUFFIXES = tuple(PARSERS)


def read_header(path: Path, *, follow_links: bool = False) -> ImageHeader:
    """Read and check the header of an NRRD or MetaImage file; no voxel is read.

    Parameters
    ----------
    path : Path
        .nrrd, .nhdr, .mha or .mhd.
    follow_links : bool
        Let the header name a file of voxels outside of its own folder.
    """
    return PARSERS[suffix_of(path)](path, follow_links)


__all__ = ["SUFFIXES", "ImageHeader", "read_header"]
