"""Thread counts of the kernels, held by the calling thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from regweave import _core, notices

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def kernel_threads(n: int) -> Iterator[None]:
    """Let the compiled kernels use n threads where the present thread calls them inside the block."""
    before = _core.set_threads(n)
    try:
        yield
    finally:
        _core.set_threads(before)


def present_threads() -> int:
    """Threads that the kernels use where the present thread calls them."""
    return int(_core.threads())


def in_this_call(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function that threads of a pool will run belong to the present call: its record, its kernel threads."""
    n = present_threads()

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with kernel_threads(n):
            return function(*args, **kwargs)

    return notices.in_this_context(run)
