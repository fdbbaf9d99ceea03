"""Atomic result folders: whole or absent, and they replace nothing but an older result of this program."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from regweave.errors import RegweaveError
from regweave.io.disk import ledger
from regweave.io.disk.atomic import Identity, changed, identity_of, unwritable
from regweave.io.disk.output_names import check_name
from regweave.io.disk.parts import discard, in_work, part_of, sweep
from regweave.io.disk.renames import TAKEN, exchange, rename_new


def _require_replaceable(folder: Path, shown: str | Path, overwrite: bool) -> None:
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise RegweaveError("E150", f"output '{shown}' exists and is a file", "choose another -o")
    if not any(folder.iterdir()):
        return
    if not overwrite:
        message = f"output folder '{shown}' exists and is not empty"
        raise RegweaveError("E150", message, "pass --overwrite or choose another -o")
    if ledger.read(folder) is None:
        message = f"output folder '{shown}' holds files that are no regweave result ({ledger.MARK} lists none)"
        raise RegweaveError("E150", message, "choose another -o, or remove the folder yourself")
    others = ledger.strangers(folder)
    if others:
        message = f"output folder '{shown}' holds files that regweave did not write: {ledger.shown(others)}"
        raise RegweaveError("E150", message, "move them away, or choose another -o")


def _same_result(folder: Path, before: Identity) -> bool:
    return identity_of(folder) == before and not ledger.strangers(folder)


def _replace_result(part: Path, folder: Path, before: Identity) -> None:
    """Put `part` in the place of the older result, if that is still it and still ours alone; else FileExistsError."""
    if not _same_result(folder, before):
        raise FileExistsError
    if exchange(part, folder):
        if not _same_result(part, before):
            exchange(part, folder)
            raise FileExistsError
        old = part
    else:
        old = part_of(folder, folder=True)
        folder.rename(old)
        try:
            if not _same_result(old, before):
                raise FileExistsError
            rename_new(part, folder)
        except BaseException:
            rename_new(old, folder)
            raise
    discard(old)


def _put_in_place(part: Path, target: Path, before: Identity | None, empty: bool) -> bool:
    """Give a finished folder its name; False where something else has it now."""
    try:
        if before is None or not os.path.lexists(target):
            rename_new(part, target)
        elif empty:
            part.rename(target)  # fails by itself where the folder is empty no more
        else:
            _replace_result(part, target, before)
    except OSError as error:
        if isinstance(error, FileExistsError) or error.errno in TAKEN:
            return False
        raise
    return True


@contextmanager
def prepare_output(folder: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give a temporary sibling folder, renamed to `folder` when the block ends well.

    On any exception, KeyboardInterrupt included, the temporary folder is removed and nothing is left behind.
    With `overwrite` an older result survives until the new one is whole; a folder that holds anything else
    than a result of this program, or that appeared or was changed during the block, is never replaced.

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

    Raises
    ------
    RegweaveError
        E150 where the folder may not be replaced, E152 where its name cannot be used, E153 where it cannot be written,
        E154 where another command is writing it, or something else has taken its place meanwhile.
    """
    check_name(folder, folder=True)
    target = Path(folder).absolute().resolve()
    part, created = part_of(target, folder=True), []
    try:
        _require_replaceable(target, folder, overwrite)
        before = identity_of(target)
        empty = before is not None and not any(target.iterdir())
        if in_work(target):
            message = f"another command is writing the output '{folder}' now"
            raise RegweaveError("E154", message, "wait until it has ended, or choose another -o")
        created = [parent for parent in target.parents if not parent.exists()]
        sweep(target.parent, target)
        part.mkdir(parents=True)
    except OSError as error:
        raise unwritable(folder, error) from error
    try:
        yield part
        ledger.write(part)
        if not _put_in_place(part, target, before, empty):
            raise changed(folder)
    except OSError as error:
        raise unwritable(folder, error) from error
    except RegweaveError as error:
        if str(part) not in error.message:
            raise
        # A user knows the folder by the name that was given, not by the hidden one.
        raise type(error)(error.code, error.message.replace(str(part), str(folder)), error.hint) from error
    finally:
        discard(part)
        for parent in created:  # the innermost first; those that hold the result, or anything, stay
            with suppress(OSError):
                parent.rmdir()
