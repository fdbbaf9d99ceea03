"""NRRD and MetaImage reader: files with a text header."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regweave.errors import RegweaveError
from regweave.io.formats import headers
from regweave.io.formats.stored import Stored
from regweave.io.formats.validate import require_scalar, volume_shape
from regweave.io.geometry import make_geometry
from regweave.io.readers import ReadOptions

READS = "NRRD or MetaImage"
SUFFIXES = headers.SUFFIXES


def recognises(source: Any, head: bytes) -> bool:
    """Tell by the first line."""
    return headers.format_of_head(head) is not None


def files(source: Path, options: ReadOptions) -> tuple[Path, ...]:
    """Return the header, and the file of voxels that it names.

    A header that cannot be understood stands alone: reading the image will tell what is wrong.
    """
    try:
        voxels = headers.voxels_file(source, follow_links=options.follow_links)
    except RegweaveError:
        return (source,)
    return (source,) if voxels == source else (source, voxels)


def read(source: Path, options: ReadOptions) -> Stored:
    """Read a file; what its header forbids is refused before voxels are read."""
    head = headers.read_header(source, follow_links=options.follow_links)
    require_scalar(head.dtype, head.components, head.subject)
    shape = volume_shape(head.shape, head.subject)
    assert head.affine is not None  # there are three axes
    return Stored(head.read_voxels(), make_geometry(shape, head.affine, head.subject), head.subject)
