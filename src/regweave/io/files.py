"""Names, presence and digests of files."""

from __future__ import annotations

import hashlib
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


def require_file(path: str | Path) -> Path:
    """Return the path of a file that can be opened, or raise E101."""
    path = Path(path)
    if path.is_dir():
        raise RegweaveError("E101", f"'{path}' is a folder, a file is needed", "name the file inside it")
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        reason = f"{error.strerror} (errno {error.errno})"
        message = f"cannot open '{path}': {reason}"
        raise RegweaveError("E101", message, "check the name and the permissions") from error


def damaged(subject: str, reason: str) -> RegweaveError:
    """Make the E102 error of a file whose bytes are not what its header promises."""
    return RegweaveError("E102", f"{subject} is damaged: {reason}", "copy or export the file again")


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits."""
    with require_file(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
