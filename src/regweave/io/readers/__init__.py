"""Registry of image readers, one file each.

An image is a file, a folder or an object in memory. A reader is a module of this folder with

``READS``
    What it reads, in the words of a message.
``recognises(source, head)``
    Whether the source is its own, told by type or by the first bytes of a file.
``read(source, options)``
    The voxels as stored, placed in LPS millimetres.

A reader of files or folders also has ``files(source, options)``, all files whose bytes make the image, the one that
is named first; and a reader of files ``SUFFIXES``. The first reader that recognises a source reads it; the suffix
decides where none does. Nothing else is edited when a reader is added.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast

from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import is_folder, open_file, suffix_of
from regweave.io.formats.nifti_frame import NiftiFrame
from regweave.io.formats.stored import Stored

HEAD_BYTES = 4096


@dataclass(frozen=True)
class ReadOptions:
    """Options of reading files.

    Parameters
    ----------
    nifti_frame : {"auto", "sform", "qform"}
        The matrix that places a NIfTI file.
    follow_links : bool
        Let a header name a file of voxels outside of its own folder.
    series : str, optional
        The DICOM series that is meant, by the beginning of its hash, where a folder holds several.
    """

    nifti_frame: NiftiFrame = "auto"
    follow_links: bool = False
    series: str | None = None


class Reader(Protocol):
    """Protocol of an image reader, which a file in this folder follows."""

    READS: str

    def recognises(self, source: Any, head: bytes) -> bool:
        """Tell whether the source, a Path or an object, is this reader's."""

    def read(self, source: Any, options: ReadOptions) -> Stored:
        """Voxels as stored."""


@cache
def available() -> tuple[Reader, ...]:
    """Return the readers: the files of this folder, in the order of their names."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(cast("Reader", importlib.import_module(f"{__name__}.{name}")) for name in names)


def suffixes(reader: Reader | None = None) -> tuple[str, ...]:
    """Suffixes of the files of one reader, or of all."""
    if reader is None:
        return tuple(suffix for one in available() for suffix in suffixes(one))
    return tuple(getattr(reader, "SUFFIXES", ()))


def read(source: Any, options: ReadOptions) -> Stored:
    """Read a path or an object with its reader; see `find` for what is refused."""
    path = as_path(source)
    return find(source).read(source if path is None else path, options)


def files_of(path: str | Path, options: ReadOptions) -> tuple[Path, ...]:
    """Return the files that hold an image; a file that is no image stands for itself.

    Raises
    ------
    RegweaveError
        E101 where there is no such file, or no image in a folder.
    """
    try:
        reader: Any = find(path)
    except RegweaveError as error:
        if error.code == "E101":
            raise
        return (Path(path),)
    return tuple(reader.files(Path(path), options))


def as_path(source: Any) -> Path | None:
    """Return the path that a source is, None for an object."""
    return Path(source) if isinstance(source, str | os.PathLike) else None


def find(source: Any) -> Reader:
    """Return the reader of a source.

    Raises
    ------
    RegweaveError
        E101 no such file, or a folder without an image; E102 a file named as another format than it has; E103 a
        file of no known format.
    UsageError
        E108 an object of no known type.
    """
    path = as_path(source)
    head, suffix = b"", ""
    if path is not None and not is_folder(path):
        suffix = suffix_of(path)
        with open_file(path) as stream:
            head = stream.read(HEAD_BYTES)
    found = next((reader for reader in available() if reader.recognises(path or source, head)), None)
    named = next((reader for reader in available() if suffix in suffixes(reader)), None)
    if found is not None and named not in (None, found):
        message = f"'{path}' is {found.READS} by its content, its suffix is '{suffix}'"
        raise RegweaveError("E102", message, "give the file the suffix of what it holds, or export it again")
    found = found or named
    if found is None:
        raise _unreadable(source, path, head)
    return found


def is_a(source: Any, package: str, name: str) -> bool:
    """Tell whether an object is of a class of that name in a package, without importing the package.

    Examples
    --------
    >>> import fractions
    >>> is_a(fractions.Fraction(1), "fractions", "Fraction"), is_a(fractions.Fraction(1), "numbers", "Fraction")
    (True, False)
    """
    return any(kind.__name__ == name and kind.__module__.split(".")[0] == package for kind in type(source).__mro__)


def _unreadable(source: Any, path: Path | None, head: bytes) -> RegweaveError:
    known = ", ".join(suffixes())
    if path is None:
        kinds = ", ".join(reader.READS for reader in available() if not hasattr(reader, "files"))
        message = f"cannot read an image from an object of type {type(source).__module__}.{type(source).__qualname__}"
        return UsageError("E108", message, f"give a path or one of: {kinds}")
    if is_folder(path):
        message = f"'{path}' is a folder without an image file ({known}) or DICOM series"
        return RegweaveError("E101", message, "name the image, or a folder of DICOM slices")
    message = f"'{path}' has the suffix '{suffix_of(path)}', readable are {known}"
    return RegweaveError("E103", message, "convert the image to one of these formats")
