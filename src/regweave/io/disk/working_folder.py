"""Locked working folders of long runs, so that a run can be continued: one at a time."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from regweave.errors import RegweaveError
from regweave.io.disk import ledger
from regweave.io.disk.outputs import check_name, lock, sweep, unwritable

FINISHED = re.compile(r"[0-9a-f]{64}\.(json|zip|safetensors)")
"""Names of finished tasks, fitted predictors and models on the way, which are hashes of their content."""


@contextmanager
def working_folder(folder: str | Path, store: str, what: str, *, resume: bool) -> Iterator[None]:
    """Take a folder for one run, which keeps finished work in the sub-folder `store`.

    Where the block fails before anything is finished, what was made for it is removed.

    Parameters
    ----------
    folder : path
        New, empty, or with `resume` one that such a run left.
    store : str
        Name of the sub-folder.
    what : str
        What the folder holds, for messages: ``"an evaluation"``.
    resume : bool
        Go on with what an earlier run left.

    Raises
    ------
    RegweaveError
        E150 where the folder holds something else, or finished work without `resume`; E152, E153 where it cannot be
        made; E155 where another run is at work in it.
    """
    check_name(folder)
    folder = Path(folder)
    try:
        _check(folder, store, what, resume)
        made = [path for path in (folder / store, folder, *folder.absolute().parents) if not path.exists()]
        (folder / store).mkdir(parents=True, exist_ok=True)
        held = lock(folder / store)
    except BlockingIOError:
        message = f"another run is at work in '{folder}'"
        raise RegweaveError("E155", message, "wait until it has ended, or choose another -o") from None
    except OSError as error:
        raise unwritable(folder, error) from error
    try:
        if folder in made or {path.name for path in folder.iterdir()} == {store}:
            ledger.write(folder, {f"{store}/"})
        for place in (folder, folder / store):
            sweep(place)
        yield
    except BaseException:
        _undo(folder, store, made)
        raise
    finally:
        if held is not None:
            os.close(held)


def _check(folder: Path, store: str, what: str, resume: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise RegweaveError("E150", f"output '{folder}' exists and is a file", "choose another -o")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not (folder / store).is_dir():
        raise RegweaveError("E150", f"folder '{folder}' holds something else than {what}", "choose another -o")
    if not resume and _holds_work(folder, store):
        message = f"folder '{folder}' holds {what}"
        raise RegweaveError("E150", message, "pass --resume to continue it, or choose another -o")


def _holds_work(folder: Path, store: str) -> bool:
    """Tell whether anything but our list and empty folders is there."""
    names = [name for name in ledger.contents(folder) if not name.endswith("/") and name != ledger.MARK]
    return any(not name.startswith(f"{store}/") or FINISHED.fullmatch(Path(name).name) for name in names)


def _undo(folder: Path, store: str, made: list[Path]) -> None:
    """Remove the folders that were made for a run which finished nothing."""
    if folder / store not in made or _holds_work(folder, store):
        return
    with suppress(OSError):
        for path in sorted((folder / store).rglob("*"), reverse=True):
            path.rmdir()  # empty folders alone: a file ends the attempt
        (folder / store).rmdir()
        (folder / ledger.MARK).unlink(missing_ok=True)
        for path in made[1:]:
            path.rmdir()


def clear(folder: Path, stores: tuple[str, ...]) -> None:
    """Remove finished work from the sub-folders of a working folder, and the folder if that was all."""
    for store in stores:
        with suppress(OSError):
            for path in list((folder / store).iterdir()):
                if FINISHED.fullmatch(path.name):
                    path.unlink()
            (folder / store).rmdir()
    with suppress(OSError):
        if {path.name for path in folder.iterdir()} <= {ledger.MARK}:
            (folder / ledger.MARK).unlink(missing_ok=True)
            folder.rmdir()
