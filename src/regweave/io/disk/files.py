"""Files for reading: names, presence, digests, and limits of length and memory."""

import hashlib
import io
import os
import re
import stat
import sys
from contextlib import suppress
from pathlib import Path

from regweave.errors import RegweaveError, ResourceError

try:
    import resource
except ImportError:  # Windows, where no limit of memory is known
    resource = None  # type: ignore[assignment]

DOUBLE_SUFFIXES = (".nii.gz", ".mrk.json")
MAX_TEXT_BYTES = 64 << 20
"""Largest model, settings file, list, table of names or points: the largest that training writes has 100 kB."""
MAX_HEADER_BYTES = 1 << 20  # Largest text header of an image
MAX_EXTENSION_BYTES = 64 << 20
"""Largest distance from the start of a NIfTI file to its voxels: headers of DICOM series are kept there."""
MAX_ARCHIVE_BYTES = 1 << 30  # Most that the arrays of one archive may take: maps of nodes have some megabytes
BYTES_PER_VALUE = 10
"""Memory of a voxel beside its stored form: as float32, as float32 again while it is checked, and two marks."""
exists, is_file, is_folder = os.path.exists, os.path.isfile, os.path.isdir
"""They never fail: a name that no file can have, too long or with a NUL, is none."""


def suffix_of(path: Path) -> str:
    """Return the suffix in lower case, both parts where two belong together."""
    name = path.name.lower()
    double = next((suffix for suffix in DOUBLE_SUFFIXES if name.endswith(suffix) and name != suffix), None)
    return double or path.suffix.lower()


def stem_of(path: Path) -> str:
    """Return the name without the suffix of `suffix_of`."""
    return path.name[: len(path.name) - len(suffix_of(path))]


def open_file(path: str | Path) -> io.BufferedReader:
    """Open a regular file for reading, or raise E101.

    Pipes and devices, which have no end, are recognised by the open descriptor, which no rename can exchange. Opening
    never blocks.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:  # a NUL in the name is a ValueError
        reason = f"{error.strerror} (errno {error.errno})" if isinstance(error, OSError) else str(error)
        raise RegweaveError("E101", f"cannot open '{path}': {reason}", "check the name and the permissions") from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise RegweaveError("E101", f"'{path}' is a folder, a file is needed", "name the file inside it")
    message = f"'{path}' is a pipe or a device, a regular file is needed"
    raise RegweaveError("E101", message, "write the content to a file first")


def require_file(path: str | Path) -> Path:
    """Return the path of a regular file that can be opened, or raise E101."""
    with open_file(path):
        return Path(path)


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits."""
    with open_file(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def damaged(subject: str, reason: str) -> RegweaveError:
    """Make the E102 error of a file whose bytes are not what its header promises."""
    return RegweaveError("E102", f"{subject} is damaged: {reason}", "copy or export the file again")


def contradiction(subject: str, reason: str) -> RegweaveError:
    """Make the E113 error of a header with two statements that exclude each other."""
    message = f"the header of {subject} contradicts itself: {reason}"
    return RegweaveError("E113", message, "export the file again, or correct its header")


def require_memory(needed: int, subject: str) -> None:
    """Raise E140 where a header asks for more memory than there is, before any of it is taken."""
    free = available_memory()
    if needed > free:
        message = f"{subject} needs about {needed / 2**20:.0f} MB to be read and {free / 2**20:.0f} MB are free"
        raise ResourceError("E140", message, "crop or downsample the image, or use a machine with more memory")


def available_memory() -> int:
    """Return the bytes that this process may still take: of the machine, its container and its own limit."""
    limits = [total_memory()]
    with suppress(OSError, ValueError):
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        limits += [int(kb) << 10 for kb in re.findall(r"^MemAvailable:\s*(\d+) kB", text, flags=re.MULTILINE)]
    if resource is not None and (soft := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        limits.append(soft)
    return min(limits)


def total_memory() -> int:
    """Return the bytes of memory of the machine, or of the container where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else sys.maxsize
    with suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return total


def peak_memory_mb() -> float:
    """Most memory that this process has held so far, in megabytes; 0 where the system does not count it."""
    if resource is None:
        return 0.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** (20 if sys.platform == "darwin" else 10)
