"""Manifest of the files that this program wrote into a folder: nothing else in it is ever replaced or removed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from regweave.errors import RegweaveError

MARK = ".regweave-result"
"""File in each folder of results, with the names of all that was written there."""
SCHEMA = 1
SHOWN = 5
"""Names that a message lists."""


def contents(folder: Path) -> Iterator[str]:
    """Yield the names below a folder, relative to it; those of folders end with a slash. Links are not followed."""
    for where, folders, files in os.walk(folder):
        for name in folders:
            path = Path(where, name)
            yield path.relative_to(folder).as_posix() + ("" if path.is_symlink() else "/")
        for name in files:
            yield Path(where, name).relative_to(folder).as_posix()


def write(folder: Path, names: Iterable[str] | None = None) -> None:
    """Write the list of a folder: the names given, or all that is in it."""
    listed = sorted({*(contents(folder) if names is None else names), MARK})
    text = json.dumps({"schema": SCHEMA, "names": listed}, indent=0, ensure_ascii=True) + "\n"
    part = folder / f"{MARK}.new"
    part.write_text(text, encoding="ascii")
    part.replace(folder / MARK)


def read(folder: Path) -> frozenset[str] | None:
    """Return the names that were written into a folder; None where no list says it."""
    try:
        found = json.loads((folder / MARK).read_text(encoding="ascii"))
        names = found["names"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return frozenset(str(name) for name in names) if isinstance(names, list) else None


def _listed(folder: Path) -> frozenset[str]:
    """Return the names of a folder's list and of the lists in its sub-folders."""
    names = set(read(folder) or ())
    for name in list(contents(folder)):
        if name.endswith(f"/{MARK}"):
            below = name.removesuffix(MARK)
            names |= {below + inner for inner in read(folder / below) or ()} | {below}
    return frozenset(names)


def strangers(folder: Path) -> list[str]:
    """Return the names in a folder that are on no list, in order."""
    listed = _listed(folder)
    return sorted(name for name in contents(folder) if name not in listed)


def shown(names: list[str]) -> str:
    """Return the first of some names for a message."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(f"'{name}'" for name in names[:SHOWN]) + more


def remove(folder: Path) -> bool:
    """Remove what is listed, and the folder if that was all; False where something of others stays."""
    listed = _listed(folder)
    found = sorted(contents(folder), key=len, reverse=True)  # what lies in a folder goes before the folder
    for name in found:
        if name in listed and name != MARK:
            with suppress(OSError):
                path = folder / name
                path.rmdir() if name.endswith("/") else path.unlink()
    if any(name != MARK for name in contents(folder)):
        return False
    (folder / MARK).unlink(missing_ok=True)
    folder.rmdir()
    return True


def check_ours(path: Path) -> None:
    """Raise E154 where a file exists in a folder with a list and is not on it."""
    names = read(path.parent)
    if names is not None and path.name not in names and os.path.lexists(path):
        message = f"'{path}' is not of this program and would be replaced"
        raise RegweaveError("E154", message, "move it away and run the command again")


def add(path: Path) -> None:
    """Put a file on the list of its folder, if the folder has one."""
    names = read(path.parent)
    if names is not None and path.name not in names:
        write(path.parent, {*names, path.name})
