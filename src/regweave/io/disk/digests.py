"""Digests of images, by which a record tells whether an image is the one that was used."""

from __future__ import annotations

import hashlib
from pathlib import Path

from regweave.errors import RegweaveError
from regweave.io.disk.files import open_file, sha256, suffix_of
from regweave.io.readers import headers

CHUNK = 1 << 20


def image_sha256(path: str | Path, *, follow_links: bool = False) -> str:
    """Return the SHA-256 of an image: of its file, or of its header followed by the file of voxels that it names.

    The header of an .mhd or .nhdr file stays the same when its voxels change. Where it cannot be understood, the digest
    is that of the header alone: reading the image will tell what is wrong.

    Parameters
    ----------
    path : path
        An image, or anything else, whose digest is that of `sha256`.
    follow_links : bool
        As in `read_image`.
    """
    path = Path(path)
    if suffix_of(path) not in headers.SUFFIXES:
        return sha256(path)
    try:
        voxels = headers.voxels_file(path, follow_links=follow_links)
    except RegweaveError:
        return sha256(path)
    if voxels == path:
        return sha256(path)
    digest = hashlib.sha256()
    for file in (path, voxels):
        with open_file(file) as stream:
            while block := stream.read(CHUNK):
                digest.update(block)
    return digest.hexdigest()
