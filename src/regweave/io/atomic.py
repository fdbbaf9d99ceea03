"""Writing that ends in a whole result or in none."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from regweave.errors import RegweaveError
from regweave.io.files import stem_of, suffix_of

MARK = ".regweave-result"
"""Empty file in each folder that `prepare_output` finished: only such a folder is ever replaced."""


def _unwritable(path: Path, error: OSError) -> RegweaveError:
    message = f"cannot write '{path}': {error.strerror or error} (errno {error.errno})"
    return RegweaveError("E153", message, "check the folder, its permissions and the free space")


def require_absent(path: str | Path, *, overwrite: bool = False) -> None:
    """Raise E150 where the file exists and may not be replaced, E153 where its folder is missing."""
    path = Path(path)
    if path.is_dir():
        raise RegweaveError("E150", f"output '{path}' is a folder", "name a file with -o")
    if path.exists() and not overwrite:
        raise RegweaveError("E150", f"output '{path}' exists", "pass --overwrite or choose another -o")
    if not path.absolute().parent.is_dir():
        raise RegweaveError("E153", f"the folder of output '{path}' does not exist", "make the folder first")


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary name in the same folder, renamed to `path` when the block ends well.

    The temporary name keeps the suffix, so that writers choose the right format. On any exception,
    KeyboardInterrupt included, it is removed and an older file under `path` stays as it was.

    Examples
    --------
    >>> with atomic_path("notes.txt") as part:     # doctest: +SKIP
    ...     part.write_text("done")
    """
    path = Path(path)
    part = path.parent / f".{stem_of(path)}.part-{secrets.token_hex(4)}{suffix_of(path)}"
    try:
        yield part
        with part.open("rb+") as stream:
            os.fsync(stream.fileno())
        part.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        part.unlink(missing_ok=True)


def _require_replaceable(folder: Path, shown: str | Path, overwrite: bool) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise RegweaveError("E150", f"output '{shown}' exists and is a file", "choose another -o")
    if not any(folder.iterdir()):
        return
    if not overwrite:
        message = f"output folder '{shown}' exists and is not empty"
        raise RegweaveError("E150", message, "pass --overwrite or choose another -o")
    if not (folder / MARK).is_file():
        message = f"output folder '{shown}' holds files that are no regweave result ({MARK} is missing)"
        raise RegweaveError("E150", message, "choose another -o, or remove the folder yourself")


def _replace_folder(part: Path, folder: Path) -> None:
    """Put `part` in the place of `folder`; the old one comes back if that fails."""
    if not folder.exists():
        part.rename(folder)
        return
    old = folder.with_name(f".{folder.name}.old-{secrets.token_hex(4)}")
    folder.rename(old)
    try:
        part.rename(folder)
    except BaseException:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def prepare_output(folder: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give a temporary sibling folder, renamed to `folder` when the block ends well.

    On any exception, KeyboardInterrupt included, the temporary folder is removed and nothing is left behind.
    With `overwrite` an older result survives until the new one is whole; a folder that holds anything else
    than a result of this program is never replaced.

    Parameters
    ----------
    folder : path
        Where the result will be; may exist if it is empty.
    overwrite : bool
        Replace an older result.

    Yields
    ------
    Path
        The folder to write into.
    """
    target = Path(folder).absolute().resolve()
    _require_replaceable(target, folder, overwrite)
    part = target.with_name(f".{target.name}.part-{secrets.token_hex(4)}")
    created = [parent for parent in target.parents if not parent.exists()]
    try:
        part.mkdir(parents=True)
    except OSError as error:
        raise _unwritable(Path(folder), error) from error
    try:
        yield part
        (part / MARK).touch()
        _replace_folder(part, target)
    except OSError as error:
        raise _unwritable(Path(folder), error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
        for parent in created:  # the innermost first; those that hold the result, or anything, stay
            with suppress(OSError):
                parent.rmdir()
