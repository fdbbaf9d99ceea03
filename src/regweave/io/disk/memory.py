"""Memory of the machine and of this process, asked of the system.

POSIX answers through ``sysconf`` and ``getrusage``, Windows through two functions of its kernel.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

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
