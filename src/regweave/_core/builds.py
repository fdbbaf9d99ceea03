"""Run-time dispatch between builds of the compiled kernels.

The same sources are compiled for the oldest processor of a platform and, on x86-64, for AVX2 with fused
multiply-add; each build is a module of its own. ``REGWEAVE_SIMD`` names one of them, for tests and for comparing
machines; otherwise the processor decides.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from regweave.errors import UsageError

BUILDS = ("baseline", "avx2")  # from the plainest to the fastest
VARIABLE = "REGWEAVE_SIMD"


def usable() -> tuple[str, ...]:
    """Return the builds that are installed and that this processor can run."""
    built = tuple(name for name in BUILDS if find_spec(f"regweave._core_{name}") is not None)
    if len(built) == 1:  # made for this machine
        return built
    return BUILDS if load(BUILDS[0]).has_avx2() else BUILDS[:1]


def choose() -> str:
    """Return the build that ``REGWEAVE_SIMD`` names, else the fastest usable one."""
    named = os.environ.get(VARIABLE, "")
    known = usable()
    if named and named not in known:
        raise UsageError(
            "E159",
            f"{VARIABLE} is {named!r}, the builds of the kernels that run here are {', '.join(known)}",
            "choose one of them, or unset the variable",
        )
    return named or known[-1]


def load(name: str) -> ModuleType:
    """Import the kernels of one build."""
    return import_module(f"regweave._core_{name}")
