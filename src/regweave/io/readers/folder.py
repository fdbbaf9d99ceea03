"""Folder reader: a folder that holds exactly one image file.

Sidecar files, as those of BIDS, and the voxels of a detached header do not count.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regweave.errors import RegweaveError
from regweave.io import readers
from regweave.io.disk.files import is_file, is_folder, suffix_of
from regweave.io.formats.stored import Stored

READS = "a folder with one image"
SHOWN = 5


def recognises(source: Any, head: bytes) -> bool:
    """Tell by the suffixes of its files."""
    return isinstance(source, Path) and is_folder(source) and bool(_images(source))


def files(source: Path, options: readers.ReadOptions) -> tuple[Path, ...]:
    """Return the files of the one image."""
    return readers.files_of(_only(source), options)


def read(source: Path, options: readers.ReadOptions) -> Stored:
    """Read the one image, or raise E101 with a list of those that are there."""
    return readers.read(_only(source), options)


def _images(folder: Path) -> list[Path]:
    known = readers.suffixes()
    try:
        names = sorted(folder.iterdir())
    except OSError as error:
        message = f"cannot open '{folder}': {error.strerror} (errno {error.errno})"
        raise RegweaveError("E101", message, "check the name and the permissions") from error
    return [path for path in names if suffix_of(path) in known and is_file(path) and not path.name.startswith(".")]


def _only(folder: Path) -> Path:
    found = _images(folder)
    if len(found) == 1:
        return found[0]
    listed = ", ".join(path.name for path in found[:SHOWN]) + (" …" if len(found) > SHOWN else "")
    message = f"'{folder}' is a folder with {len(found)} images, one is needed: {listed}"
    raise RegweaveError("E101", message, "name the file that is meant")
