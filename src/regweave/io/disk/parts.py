"""Names of temporary files, which tell whose they are, and the removal of what a killed process left."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import secrets
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path

from regweave.io.disk import ledger
from regweave.io.disk.files import stem_of, suffix_of

STEM = 140
"""Bytes of the name of an output that the name of its part repeats: there must be room for the rest."""
PROCESSES = Path("/proc")
PART = re.compile(r"\.(?P<name>.*)\.part-(?P<place>[0-9a-f]{8})-(?P<pid>\d+)-(?P<start>\d+)-[0-9a-f]{8}(\.[\w.]*)?")


def part_of(path: Path, *, folder: bool = False) -> Path:
    """Return a hidden name beside `path` that names this process; a file keeps its suffix, which tells the format."""
    suffix = "" if folder or len(suffix_of(path)) > 16 else suffix_of(path)
    tail = f".part-{_place()}-{os.getpid()}-{_start(os.getpid())}-{secrets.token_hex(4)}{suffix}"
    return path.with_name(f".{_stem(path, folder)}{tail}")


def _stem(path: Path, folder: bool) -> str:
    """Return as much of the name as leaves room for the rest of that of its part."""
    return os.fsencode(path.name if folder else stem_of(path))[:STEM].decode(errors="ignore")


@cache
def _place() -> str:
    """Return digits that tell this machine, boot and container: numbers of processes mean nothing elsewhere."""
    facts = [platform.node()]
    with suppress(OSError):
        facts.append((PROCESSES / "sys/kernel/random/boot_id").read_text(encoding="ascii"))
        facts.append(str((PROCESSES / "self/ns/pid").stat().st_ino))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]


def _start(pid: int) -> int:
    """Return when a process began, in ticks since the boot; 0 where the system does not say it."""
    try:
        text = (PROCESSES / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def _gone(place: str, pid: int, start: int) -> bool:
    """Tell whether the process has certainly ended; never of another machine."""
    if place != _place():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    return start != 0 and _start(pid) not in {0, start}


def sweep(folder: Path, target: Path | None = None) -> None:
    """Remove the parts in a folder whose process was killed.

    Parameters
    ----------
    folder : path
        Where to look; its sub-folders are left alone.
    target : path, optional
        Only parts of this output.
    """
    wanted = None if target is None else {_stem(target, False), _stem(target, True)}
    with suppress(OSError):
        for path in list(folder.iterdir()):
            found = PART.fullmatch(path.name)
            if found is None or (wanted is not None and found["name"] not in wanted):
                continue
            if _gone(found["place"], int(found["pid"]), int(found["start"])):
                discard(path)


def in_work(target: Path) -> bool:
    """Tell whether another running process of this machine writes the folder that is to have this name."""
    name = _stem(target, True)
    if name != target.name or not target.parent.is_dir():
        return False
    parts = (PART.fullmatch(path.name) for path in target.parent.iterdir())
    found = [one for one in parts if one is not None and one["name"] == name and one["place"] == _place()]
    pids = [(int(one["pid"]), int(one["start"])) for one in found]
    return any(pid != os.getpid() and not _gone(_place(), pid, start) for pid, start in pids)


def discard(part: Path) -> None:
    """Remove a part. One that is a finished folder may hold an older result: then only what is listed in it goes."""
    with suppress(OSError):
        if not part.is_dir() or part.is_symlink():
            part.unlink(missing_ok=True)
        elif (part / ledger.MARK).is_file():
            ledger.remove(part)
        else:
            shutil.rmtree(part, ignore_errors=True)
