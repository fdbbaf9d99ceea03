"""GPU kernels: the compiled module `_cuda`, where the build has it, and the GPUs that its driver shows."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

MODULE = "regweave._cuda"
"""Compiled where the build finds nvcc; loads without a driver."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that the driver shows: its name, bytes of memory and architecture."""

    name: str
    memory_bytes: int
    architecture: tuple[int, int]


def module() -> Any | None:
    """Return the compiled kernels; None where this build has none."""
    return None if find_spec(MODULE) is None else import_module(MODULE)


def gpus() -> tuple[tuple[Gpu, ...], str]:
    """Return the GPUs of this machine, and where there is none, why."""
    found = module()
    if found is None:
        return (), "this build of regweave has no GPU kernels"
    listed, why = found.devices()
    return tuple(Gpu(name, memory, (major, minor)) for name, memory, major, minor in listed), why
