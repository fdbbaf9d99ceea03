"""Engines that minimise an energy: one file each, whose name is the engine's name everywhere.

An engine sees numbers only, never an image. Adding one is adding a file with a ``minimize`` here.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol, cast

from regweave.errors import UsageError
from regweave.types import Energy, IntArray, Solution

__all__ = ["Engine", "available", "get"]


class Engine(Protocol):
    """The ``minimize`` of an engine's file.

    The result is never worse than ``init``, its energy is recomputed from its labels, and no labelling has an
    energy below its lower bound.
    """

    def __call__(self, energy: Energy, init: IntArray | None = None, *, max_iter: int = ...) -> Solution:
        """Minimise ``energy`` from the labels ``init`` (default: the best unary of each node)."""
        ...


def available() -> list[str]:
    """Return the names of the engines, sorted.

    Examples
    --------
    >>> available()
    ['exhaustive', 'fastpd', 'icm', 'trws']
    """
    return sorted(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))


def get(name: str) -> Engine:
    """Return the ``minimize`` of an engine.

    Raises
    ------
    UsageError
        E180, where there is no engine of this name.

    Examples
    --------
    >>> get("trws").__module__
    'regweave.engines.trws'
    """
    if name not in available():
        raise UsageError("E180", f"unknown engine {name!r}", f"available: {', '.join(available())}")
    return cast("Engine", import_module(f"{__name__}.{name}").minimize)
