"""Resource limits of reading: how long a text may be, how deep it may nest, how much memory an image may ask for."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from regweave.errors import ResourceError
from regweave.io.disk.memory import address_limit, total_memory

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
