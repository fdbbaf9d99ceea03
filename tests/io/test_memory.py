"""Memory of the machine and of the process, on POSIX as it is and on Windows as its API is described."""

from __future__ import annotations

import ctypes
import os
import types

import numpy as np
import pytest

from regweave.io.disk import files as memory


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="Windows")
def test_posix():
    before = memory.peak_memory()
    held = np.ones(before // 8 + (8 << 20))  # more than was ever held, and touched
    assert held.nbytes < memory.peak_memory() < memory.total_memory()
    assert memory.peak_memory() >= before


def _windows(monkeypatch, *, succeeds: bool) -> None:
    """Take POSIX away and answer as the kernel of Windows does: the structure's length is checked, then filled."""

    def status(pointer) -> int:
        found = ctypes.cast(pointer, ctypes.POINTER(memory._MemoryStatus)).contents
        found.total = 16 << 30
        return int(succeeds and found.length == 64)

    def counters(handle, pointer, length) -> int:
        found = ctypes.cast(pointer, ctypes.POINTER(memory._ProcessMemory)).contents
        found.peak = 5 << 30
        return int(succeeds and handle == 1 << 40 and length == found.length == 72)

    def process() -> int:
        return 1 << 40

    kernel = types.SimpleNamespace(
        GlobalMemoryStatusEx=status, GetCurrentProcess=process, K32GetProcessMemoryInfo=counters
    )
    monkeypatch.delattr(os, "sysconf")
    monkeypatch.setattr(memory, "resource", None)
    monkeypatch.setattr(ctypes, "WinDLL", lambda name: {"kernel32": kernel}[name], raising=False)


def test_windows(monkeypatch):
    _windows(monkeypatch, succeeds=True)
    assert (memory.total_memory(), memory.peak_memory(), memory.address_limit()) == (16 << 30, 5 << 30, None)


def test_windows_that_does_not_answer(monkeypatch):
    _windows(monkeypatch, succeeds=False)
    for ask in (memory.total_memory, memory.peak_memory):
        with pytest.raises(OSError, match="does not say"):
            ask()
