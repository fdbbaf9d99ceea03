"""Names, presence and digests of files."""

from __future__ import annotations

import hashlib
import io
import os
import stat
from pathlib import Path

from regweave.errors import RegweaveError

DOUBLE_SUFFIXES = (".nii.gz", ".mrk.json")


def suffix_of(path: Path) -> str:
    """Return the suffix in lower case, both parts where two belong together.

    Examples
    --------
    >>> suffix_of(Path("scan.NII.gz")), suffix_of(Path("a.b.nrrd"))
    ('.nii.gz', '.nrrd')
    """
    name = path.name.lower()
    for suffix in DOUBLE_SUFFIXES:
        if name.endswith(suffix) and name != suffix:
            return suffix
    return path.suffix.lower()


def stem_of(path: Path) -> str:
    """Return the name without the suffix that `suffix_of` names.

    Examples
    --------
    >>> stem_of(Path("folder/scan.nii.gz"))
    'scan'
    """
    suffix = suffix_of(path)
    return path.name[: len(path.name) - len(suffix)] if suffix else path.name


def open_file(path: str | Path) -> io.BufferedReader:
    """Open a regular file for reading, or raise E101.

    Pipes and devices have no end that can be waited for: they are told by the open descriptor, which no rename can
    exchange, and opening never blocks.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _unopened(path, f"{error.strerror} (errno {error.errno})") from error
    except ValueError as error:  # a NUL in the name
        raise _unopened(path, str(error)) from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise RegweaveError("E101", f"'{path}' is a folder, a file is needed", "name the file inside it")
    message = f"'{path}' is a pipe or a device, a regular file is needed"
    raise RegweaveError("E101", message, "write the content to a file first")


def _unopened(path: str | Path, reason: str) -> RegweaveError:
    return RegweaveError("E101", f"cannot open '{path}': {reason}", "check the name and the permissions")


def require_file(path: str | Path) -> Path:
    """Return the path of a regular file that can be opened, or raise E101."""
    with open_file(path):
        return Path(path)


def exists(path: str | Path) -> bool:
    """Tell whether something bears the name; a name that no file can bear, too long or with a NUL, does not exist."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def is_file(path: str | Path) -> bool:
    """Tell whether a regular file bears the name; as `exists`, it never fails."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: str | Path) -> bool:
    """Tell whether a folder bears the name; as `exists`, it never fails."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def damaged(subject: str, reason: str) -> RegweaveError:
    """Make the E102 error of a file whose bytes are not what its header promises."""
    return RegweaveError("E102", f"{subject} is damaged: {reason}", "copy or export the file again")


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits."""
    with open_file(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
