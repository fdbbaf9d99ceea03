"""Atomic file replacement: files are whole or absent, and nothing that others wrote is touched.

A file is written under a hidden name beside its place and renamed at the end. What stands in its place then is
replaced only if it stood there at the beginning, was meant to be replaced, and is this program's own.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from regweave.errors import RegweaveError
from regweave.io.disk import ledger
from regweave.io.disk.files import stem_of, suffix_of
from regweave.io.disk.output_names import check_name
from regweave.io.disk.parts import part_of, sweep
from regweave.io.disk.renames import exchange, rename_new

Identity = tuple[int, ...]


def unwritable(path: str | Path, error: OSError) -> RegweaveError:
    """Make the E153 error of an output that the system refuses."""
    message = f"cannot write '{path}': {error.strerror or error} (errno {error.errno})"
    return RegweaveError("E153", message, "check the folder, its permissions and the free space")


def changed(path: str | Path, kept: Path | None = None) -> RegweaveError:
    """Make the E154 error of an output whose name something else has taken."""
    message = f"output '{path}' appeared or was changed while the command ran; it stays as it is"
    if kept is None:
        return RegweaveError("E154", message, "choose another -o and run the command again")
    return RegweaveError("E154", message, f"what was computed is kept as '{kept}'")


def identity_of(path: Path) -> Identity | None:
    """Return what tells a file from one that came in its place; None where there is none."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    one = (found.st_dev, found.st_ino)
    return one if path.is_dir() else (*one, found.st_size, found.st_mtime_ns)


@dataclass(frozen=True)
class Claim:
    """Snapshot of the file at an output's name when a command began; nothing else is replaced by what it writes.

    Parameters
    ----------
    path : Path
        The output.
    before : tuple of int, optional
        Tells the older file from others; None where there was none.
    """

    path: Path
    before: Identity | None

    @contextmanager
    def writing(self, *, keep: bool = False) -> Iterator[None]:
        """Let `atomic_path` inside the block respect the claim.

        Parameters
        ----------
        keep : bool
            Where the name was taken meanwhile, keep the finished file under another one, which the error names.
        """
        token = _claims.set({**_claims.get(), self.path.absolute(): (self, keep)})
        try:
            yield
        finally:
            _claims.reset(token)

    def publish(self, part: Path, *, keep: bool) -> None:
        """Give a finished file its name, or raise E154 where another one has it now."""
        try:
            if self.before is None or not os.path.lexists(self.path):
                rename_new(part, self.path)
            elif exchange(part, self.path):
                if identity_of(part) != self.before:
                    exchange(part, self.path)
                    raise FileExistsError
            elif identity_of(self.path) == self.before:
                part.replace(self.path)
            else:
                raise FileExistsError
        except FileExistsError:
            raise changed(self.path, self._put_aside(part) if keep else None) from None

    def _put_aside(self, part: Path) -> Path:
        name = f"{stem_of(self.path)}.kept-{secrets.token_hex(4)}{suffix_of(self.path)}"
        kept = self.path.with_name(name)
        rename_new(part, kept)
        return kept


_claims: ContextVar[Mapping[Path, tuple[Claim, bool]]] = ContextVar("regweave_claims", default=MappingProxyType({}))


def require_absent(path: str | Path, *, overwrite: bool = False) -> Claim:
    """Claim the name of an output file.

    Raises
    ------
    RegweaveError
        E150 where the file exists and may not be replaced, E152 where the name cannot be used, E153 where its folder is
        missing.
    """
    check_name(path)
    path = Path(path)
    try:
        if path.is_dir():
            raise RegweaveError("E150", f"output '{path}' is a folder", "name a file with -o")
        before = identity_of(path)
        if before is not None and not (path.is_file() or path.is_symlink()):
            raise RegweaveError("E150", f"output '{path}' is a device or a pipe", "name a file with -o")
        if before is not None and not overwrite:
            raise RegweaveError("E150", f"output '{path}' exists", "pass --overwrite or choose another -o")
        if not path.absolute().parent.is_dir():
            raise RegweaveError("E153", f"the folder of output '{path}' does not exist", "make the folder first")
    except OSError as error:
        raise unwritable(path, error) from error
    sweep(path.absolute().parent, path)
    return Claim(path, before)


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary name in the same folder, renamed to `path` when the block ends well.

    The temporary name keeps the suffix, so that writers choose the right format. On any exception,
    KeyboardInterrupt included, it is removed and an older file under `path` stays as it was. An older file is replaced,
    unless a `Claim` that is being written says otherwise.

    Examples
    --------
    >>> with atomic_path("notes.txt") as part:     # doctest: +SKIP
    ...     part.write_text("done")
    """
    path = Path(path)
    part = part_of(path)
    claim, keep = _claims.get().get(path.absolute(), (None, False))
    try:
        yield part
        with part.open("rb+") as stream:
            os.fsync(stream.fileno())
        if claim is None:
            part.replace(path)
        else:
            claim.publish(part, keep=keep)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def owned_path(path: str | Path) -> Iterator[Path]:
    """Do as `atomic_path` for a file in a folder of results: E154 where that name is a file of others, else listed."""
    path = Path(path)
    ledger.check_ours(path)
    with atomic_path(path) as part:
        yield part
        ledger.check_ours(path)
    try:
        ledger.add(path)
    except OSError as error:
        raise unwritable(path, error) from error
