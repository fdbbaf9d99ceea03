"""Outputs: files and folders that are whole or absent, and that replace nothing but what this program wrote.

An output is written in a hidden folder beside its place, `.NAME.part-XXXXXXXX`, and renamed at the end. The folder is
locked as long as its process runs, so the next command with that output removes what a killed one left. A folder of
results lists the names that were written into it: a folder with other names is neither replaced nor removed.
"""

import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import some, stem_of, suffix_of

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Identity = tuple[int, ...]
LONGEST, LONGEST_PATH = 255, 4000
"""Bytes that a name may have on nearly every file system, and a whole path, with room for the hidden folder."""
STEM = 140  # Bytes of an output's name in the name of its hidden folder
PART = re.compile(r"\.(?P<name>.*)\.part-[0-9a-f]{16}", re.DOTALL)
SAFE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # Identifiers of pairs, which become names of files
MARK = ".regweave-result"  # File in each folder of results, with the names that were written there
TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR}  # Errors of a rename to a name that is in use
FINISHED = re.compile(r"[0-9a-f]{64}\.(json|zip|safetensors)")
"""Names of finished tasks, fitted predictors and models on the way, which are hashes of their content."""


def check_name(path: str | Path, *, folder: bool = False) -> None:
    """Raise E152 where an output cannot have this name; a folder cannot be the present one or a root."""
    text = str(path)
    shown = os.fsencode(text).decode(errors="backslashreplace").replace("\0", "\\0")
    shown = shown if len(shown) <= 80 else f"{shown[:60]}…"
    try:
        here = Path.cwd()
    except OSError as error:
        raise RegweaveError("E153", "the present folder does not exist any more", "change to another one") from error
    longest = max((len(os.fsencode(part)) for part in Path(text).parts), default=0)
    if any("\udc80" <= c <= "\udcff" for c in text):
        problem = "is not UTF-8"
    elif "\0" in text:
        problem = "holds a null character"
    elif longest > LONGEST or len(os.fsencode(here / text)) > LONGEST_PATH:
        problem = f"is too long: {longest} bytes in one name, allowed {LONGEST}"
    elif text in {"", "."} or (folder and (here / text).resolve() in {here.resolve(), Path(here.anchor)}):
        problem = "is empty, the present folder or a root"
    else:
        return
    raise UsageError("E152", f"the output name '{shown}' {problem}", "name a new one with -o")


def unwritable(path: str | Path, error: OSError) -> RegweaveError:
    """Make the E153 error of an output that the system refuses."""
    message = f"cannot write '{path}': {error.strerror or error} (errno {error.errno})"
    return RegweaveError("E153", message, "check the folder, its permissions and the free space")


def _changed(path: str | Path, hint: str = "choose another -o and run the command again") -> RegweaveError:
    message = f"output '{path}' appeared or was changed while the command ran; it stays as it is"
    return RegweaveError("E154", message, hint)


def identity(path: Path) -> Identity | None:
    """Return numbers that differ between a file and any other or its changed content; None where there is none."""
    try:
        state = path.lstat()
    except FileNotFoundError:
        return None
    one = (state.st_dev, state.st_ino)
    return one if path.is_dir() else (*one, state.st_size, state.st_mtime_ns)


# Hidden folders and their locks


def _lock(folder: Path, *, shared: bool = False) -> int | None:
    """Lock a folder until the descriptor is closed or the process ends; BlockingIOError where another one holds it.

    Returns None where the system has no locks (Windows) or the file system has none for folders (NFS).
    """
    if fcntl is None:
        return None
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        os.close(held)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return held


@contextmanager
def _part_of(path: Path, *, parents: bool = False) -> Iterator[Path]:
    """Make and lock a hidden folder beside an output; remove it at the end unless it was renamed."""
    part = path.with_name(f".{_stem(path)}.part-{secrets.token_hex(8)}")
    part.mkdir(parents=parents)
    held = _lock(part)
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
        if held is not None:
            os.close(held)


def _stem(path: Path) -> str:
    return os.fsencode(path.name)[:STEM].decode(errors="ignore")


def sweep(folder: Path, target: Path | None = None) -> bool:
    """Remove hidden folders of killed processes, all or those of one output; return True if a running one is left."""
    running = False
    with suppress(OSError):
        for path in list(folder.iterdir()):
            match = PART.fullmatch(path.name)
            if match is None or not path.is_dir() or (target is not None and match["name"] != _stem(target)):
                continue
            try:
                held = _lock(path)
            except OSError:
                running = True
                continue
            if held is None:  # without locks a running process looks like one that was killed
                running = True
            else:
                shutil.rmtree(path, ignore_errors=True)
                os.close(held)
    return running


# Files


_claims: dict[Path, tuple[Identity | None, bool]] = {}
"""By the name of an output: the file that was there when its command began, and whether the new one is always kept."""


def _link_new(part: Path, path: Path) -> None:
    """Give a file a second name that is not in use, or raise FileExistsError."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links: reserve the name
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        part.replace(path)


def require_absent(path: str | Path, *, overwrite: bool = False, keep: bool = False) -> None:
    """Claim the name of an output file: `atomic_path` replaces nothing there but the file of this moment.

    With `keep` a finished file whose name was taken meanwhile is kept under another one, which the error names.
    """
    check_name(path)
    path = Path(path)
    try:
        before = identity(path)
        if path.is_dir() or (before is not None and not (path.is_file() or path.is_symlink())):
            what = "a folder" if path.is_dir() else "a device or a pipe"
            raise RegweaveError("E150", f"output '{path}' is {what}", "name a file with -o")
        if before is not None and not overwrite:
            raise RegweaveError("E150", f"output '{path}' exists", "pass --overwrite or choose another -o")
        if not path.absolute().parent.is_dir():
            raise RegweaveError("E153", f"the folder of output '{path}' does not exist", "make the folder first")
    except OSError as error:
        raise unwritable(path, error) from error
    sweep(path.absolute().parent, path)
    _claims[path.absolute()] = before, keep


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary name in the same folder, renamed to `path` when the block ends well.

    On any exception, KeyboardInterrupt included, the temporary file is removed and an older file under `path` stays
    unchanged. An older file is replaced, unless the claim of `require_absent` forbids it.
    """
    path = Path(path)
    claim = _claims.pop(path.absolute(), None)
    try:
        with _part_of(path) as folder:
            part = folder / path.name
            yield part
            with part.open("rb+") as stream:
                os.fsync(stream.fileno())
            now = identity(path)
            if claim is None or (now is not None and now == claim[0]):
                part.replace(path)
                return
            try:
                _link_new(part, path)
            except FileExistsError:
                if not claim[1]:
                    raise _changed(path) from None
                kept = path.with_name(f"{stem_of(path)}.kept-{secrets.token_hex(4)}{suffix_of(path)}")
                _link_new(part, kept)
                raise _changed(path, f"what was computed is kept as '{kept}'") from None
    except OSError as error:
        raise unwritable(path, error) from error


# Folders of results, and the list of what was written into them


@contextmanager
def owned_path(path: str | Path) -> Iterator[Path]:
    """Do as `atomic_path` for a file in a folder of results: E154 where that name is a file of others, else listed."""
    path = Path(path)
    _require_ours(path)
    with atomic_path(path) as part:
        yield part
        _require_ours(path)
    names = _names(path.parent)
    try:
        if names is not None and path.name not in names:
            _list(path.parent, {*names, path.name})
    except OSError as error:
        raise unwritable(path, error) from error


def _require_ours(path: Path) -> None:
    names = _names(path.parent)
    if names is not None and path.name not in names and os.path.lexists(path):
        message = f"'{path}' is not of this program and would be replaced"
        raise RegweaveError("E154", message, "move it away and run the command again")


@contextmanager
def prepare_output(folder: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary sibling folder, renamed to `folder` when the block ends well.

    On any exception, KeyboardInterrupt included, the temporary folder is removed and nothing is left behind.
    With `overwrite` an older result stays until the new one is whole; a folder that holds anything else than a result
    of this program, or that appeared or was changed during the block, is never replaced.
    """
    check_name(folder, folder=True)
    target, created = Path(folder).absolute().resolve(), list[Path]()
    part = target  # until there is one
    try:
        _require_replaceable(target, folder, overwrite)
        before = identity(target)
        if sweep(target.parent, target):
            message = f"another command is writing the output '{folder}' now"
            raise RegweaveError("E154", message, "wait until it has ended, or choose another -o")
        created = [parent for parent in target.parents if not parent.exists()]
        with _part_of(target, parents=True) as part:
            yield part
            _list(part, _contents(part))
            if not _publish_folder(part, target, before):
                raise _changed(folder)
    except OSError as error:
        raise unwritable(folder, error) from error
    except RegweaveError as error:
        if str(part) == str(target) or str(part) not in error.message:
            raise
        # The user gave the name of the folder, not that of the hidden one.
        raise type(error)(error.code, error.message.replace(str(part), str(folder)), error.hint) from error
    finally:
        for parent in created:  # the innermost first; those that hold the result, or anything, stay
            with suppress(OSError):
                parent.rmdir()


def _require_replaceable(folder: Path, given: str | Path, overwrite: bool) -> None:
    hint = "choose another -o, or move away what is there"
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        problem = "exists and is a file"
    elif not any(folder.iterdir()):
        return
    elif not overwrite:
        problem, hint = "exists and is not empty", "pass --overwrite or choose another -o"
    elif _names(folder) is None:
        problem = f"holds files that are no regweave result ({MARK} lists none)"
    elif others := strangers(folder):
        problem = f"holds files that regweave did not write: {some([repr(name) for name in others])}"
    else:
        return
    raise RegweaveError("E150", f"output '{given}' {problem}", hint)


def _publish_folder(part: Path, target: Path, before: Identity | None) -> bool:
    """Give a finished folder its name; False where something else has it now. An older result is moved aside first."""
    old = target.with_name(f"{_stem(target)}.old-{secrets.token_hex(4)}")
    try:
        if before is not None and target.is_dir() and any(target.iterdir()):
            if identity(target) != before or _names(target) is None:
                return False
            target.rename(old)
            if strangers(old):
                old.rename(target)
                return False
        part.rename(target)  # fails by itself where the name is a file, or a folder that is not empty
    except OSError as error:
        if error.errno in TAKEN:
            return False
        raise
    if old.is_dir() and not strangers(old):
        shutil.rmtree(old, ignore_errors=True)
    return True


def _contents(folder: Path) -> Iterator[str]:
    """Yield the names below a folder, relative to it; those of folders end with a slash. Links are not followed."""
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(where, name)
            is_folder = name in folders and not path.is_symlink()
            yield path.relative_to(folder).as_posix() + ("/" if is_folder else "")


def _names(folder: Path) -> frozenset[str] | None:
    try:
        names = json.loads((folder / MARK).read_text(encoding="ascii"))["names"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return frozenset(map(str, names)) if isinstance(names, list) else None


def _list(folder: Path, names: Iterable[str]) -> None:
    new = folder / f"{MARK}.new"
    new.write_text(json.dumps({"schema": 1, "names": sorted({*names, MARK})}, indent=0) + "\n", encoding="ascii")
    new.replace(folder / MARK)


def strangers(folder: Path) -> list[str]:
    """Return the names in a folder that are neither on its list nor on those of its sub-folders, in order."""
    present = set(_contents(folder))
    listed = set(_names(folder) or ())
    for below in (name.removesuffix(MARK) for name in present if name.endswith(f"/{MARK}")):
        listed |= {below, *(below + name for name in _names(folder / below) or ())}
    return sorted(present - listed)


# Folders of long runs


@contextmanager
def working_folder(folder: str | Path, store: str, what: str, *, resume: bool, shared: bool = False) -> Iterator[None]:
    """Lock a folder for one run, which keeps finished work in the sub-folder `store`, so that it can be continued.

    The folder is new, empty, or with `resume` one that such a run left; ``what`` names its content in messages. Where
    the block fails before anything is finished, what was made for it is removed. Runs that are ``shared`` are at work
    in one folder together.
    """
    check_name(folder)
    folder = Path(folder)
    try:
        _require_resumable(folder, store, what, resume)
        made = [path for path in (folder / store, folder, *folder.absolute().parents) if not path.exists()]
        (folder / store).mkdir(parents=True, exist_ok=True)
        held = _lock(folder / store, shared=shared)
    except BlockingIOError:
        message = f"another run is at work in '{folder}'"
        raise RegweaveError("E155", message, "wait until it has ended, or choose another -o") from None
    except OSError as error:
        raise unwritable(folder, error) from error
    try:
        if folder in made or {path.name for path in folder.iterdir()} == {store}:
            with suppress(FileNotFoundError):  # another shard has listed it at the same moment
                _list(folder, {f"{store}/"})
        for place in (folder, folder / store):
            sweep(place)
        yield
    except BaseException:
        if not shared and folder / store in made and not _holds_work(folder, store):
            clear(folder, store, made[1:])
        raise
    finally:
        if held is not None:
            os.close(held)


def _require_resumable(folder: Path, store: str, what: str, resume: bool) -> None:
    hint = "choose another -o"
    if folder.exists() and not folder.is_dir():
        problem = "is a file"
    elif not (folder / store).is_dir():
        if not folder.is_dir() or not any(folder.iterdir()):
            return
        problem = f"holds something else than {what}"
    elif resume or not _holds_work(folder, store):
        return
    else:
        problem, hint = f"holds {what}", "pass --resume to continue it, or choose another -o"
    raise RegweaveError("E150", f"output '{folder}' {problem}", hint)


def _holds_work(folder: Path, store: str) -> bool:
    """Return whether anything but the list and empty folders is there."""
    names = [name for name in _contents(folder) if not name.endswith("/") and name != MARK]
    return any(not name.startswith(f"{store}/") or FINISHED.fullmatch(Path(name).name) for name in names)


def clear(folder: Path, store: str, made: Sequence[Path] | None = None) -> None:
    """Remove finished work from a working folder, and those of the folders `made` that are left empty: by default it.

    Files of others stay, and with them their folders.
    """
    for path in (*sorted((folder / store).rglob("*"), reverse=True), folder / store):
        with suppress(OSError):
            if FINISHED.fullmatch(path.name):
                path.unlink()
            else:
                path.rmdir()
    with suppress(OSError):
        if {path.name for path in folder.iterdir()} <= {MARK}:
            (folder / MARK).unlink(missing_ok=True)
            for path in [folder] if made is None else made:
                path.rmdir()
