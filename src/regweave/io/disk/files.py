"""Files for reading: names, presence, digests, and limits of length and memory."""

from __future__ import annotations

import ctypes
import hashlib
import io
import os
import re
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from regweave.errors import RegweaveError, ResourceError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of the Windows API."""

    _fields_ = (
        ("length", ctypes.c_uint32), ("load", ctypes.c_uint32), ("total", ctypes.c_uint64),
        ("free", ctypes.c_uint64), ("page_total", ctypes.c_uint64), ("page_free", ctypes.c_uint64),
        ("virtual_total", ctypes.c_uint64), ("virtual_free", ctypes.c_uint64),
        ("extended_free", ctypes.c_uint64),
    )  # fmt: skip


class _ProcessMemory(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS of the Windows API."""

    _fields_ = (
        ("length", ctypes.c_uint32), ("faults", ctypes.c_uint32), ("peak", ctypes.c_size_t),
        ("present", ctypes.c_size_t), ("quota", ctypes.c_size_t * 4), ("pages", ctypes.c_size_t),
        ("pages_peak", ctypes.c_size_t),
    )  # fmt: skip


def total_memory() -> int:
    """Return the bytes of memory of the machine."""
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    _called(_kernel32().GlobalMemoryStatusEx(ctypes.byref(status)))
    return int(status.total)


def address_limit() -> int | None:
    """Return the bytes of address space that this process may use, None where the system sets no limit."""
    if resource is None:
        return None
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def peak_memory() -> int:
    """Return the most bytes of memory that this process has held so far."""
    if resource is not None:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << (0 if sys.platform == "darwin" else 10)
    kernel, found = _kernel32(), _ProcessMemory(length=ctypes.sizeof(_ProcessMemory))
    kernel.GetCurrentProcess.restype = ctypes.c_void_p  # a handle has the width of a pointer
    kernel.K32GetProcessMemoryInfo.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
    _called(kernel.K32GetProcessMemoryInfo(kernel.GetCurrentProcess(), ctypes.byref(found), found.length))
    return int(found.peak)


def _kernel32() -> Any:
    # By name: type checkers on other systems do not know it.
    return getattr(ctypes, "WinDLL")("kernel32")  # noqa: B009


def _called(succeeded: int) -> None:
    if not succeeded:
        raise OSError("the system does not say how much memory there is")


MAX_TEXT_BYTES = 64 << 20
"""Largest model, settings file, list, table of names or points: the largest that training writes has 100 kB."""
MAX_HEADER_BYTES = 1 << 20
"""Largest text header of an image."""
MAX_EXTENSION_BYTES = 64 << 20
"""Largest distance from the start of a NIfTI file to its voxels: headers of DICOM series are kept there."""
MAX_ARCHIVE_BYTES = 1 << 30
"""Most that the arrays of one archive may take: maps of nodes have some megabytes."""
MAX_NESTING = 64
"""Deepest lists and tables in JSON and TOML."""
MAX_DIGITS = 40
"""Longest whole number in JSON and TOML."""
BYTES_PER_VALUE = 10
"""What a voxel takes beside its stored form: as float32, as float32 again while it is checked, and two marks."""


def available_memory() -> int:
    """Return the bytes that this process may still take: of the machine, its container and its own limit."""
    found = [total_memory()]
    with suppress(OSError, ValueError):
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        found += [int(kb) << 10 for kb in re.findall(r"^MemAvailable:\s*(\d+) kB", text, flags=re.MULTILINE)]
    with suppress(OSError, ValueError):
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    limit = address_limit()
    return min(found if limit is None else [*found, limit])


def require_memory(needed: int, subject: str) -> None:
    """Raise E140 where a header asks for more memory than there is, before any of it is taken."""
    there = available_memory()
    if needed > there:
        message = f"{subject} needs about {needed / 2**20:.0f} MB to be read and {there / 2**20:.0f} MB are free"
        raise ResourceError("E140", message, "crop or downsample the image, or use a machine with more memory")


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


def contradiction(subject: str, reason: str) -> RegweaveError:
    """Make the E113 error of a header that says two things which cannot both hold."""
    message = f"the header of {subject} contradicts itself: {reason}"
    return RegweaveError("E113", message, "export the file again, or correct its header")


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits."""
    with open_file(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
