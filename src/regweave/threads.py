"""Thread counts of the kernels, held by the calling thread."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from regweave import _core, notices

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")


@contextmanager
def kernel_threads(n: int) -> Iterator[None]:
    """Let the compiled kernels use n threads where the present thread calls them inside the block."""
    before = _core.set_threads(n)
    try:
        yield
    finally:
        _core.set_threads(before)


def in_this_call(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function that threads of a pool will run belong to the present call: its record, its kernel threads."""
    n = _core.threads()

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with kernel_threads(n):
            return function(*args, **kwargs)

    return notices.in_this_context(run)


def side_by_side(function: Callable[[S], T], items: Iterable[S]) -> list[T]:
    """Results of a function for each item, in their order, from as many threads as the kernels may use here.

    For work in NumPy and SciPy that lets other threads run; kernels inside use one thread each.
    """
    given, n = list(items), _core.threads()
    if n == 1 or len(given) < 2:
        return [function(item) for item in given]

    def run(item: S) -> T:
        with kernel_threads(1):
            return function(item)

    with ThreadPoolExecutor(min(n, len(given))) as pool:
        return list(pool.map(notices.in_this_context(run), given))
