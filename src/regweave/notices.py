"""Collection of warnings by the call which gave them.

A warning goes two ways: to the user, and into the record of each call that is running. Both ways are kept in context
variables, so that calls in several threads or tasks at once have right records, and no hook of Python's ``warnings``
module is ever replaced. A thread sees the calls of the one that started it only if it runs in a copy of its context;
see `in_this_context`.
"""

import contextvars
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from regweave.errors import RegweaveWarning

P = ParamSpec("P")
T = TypeVar("T")
Show = Callable[[str], None]


def _as_python_warning(text: str) -> None:
    """Show a warning as one of the first line outside of this package, where a user's filters look for it."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "regweave":
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RegweaveWarning, stacklevel=level + 1)


_records: ContextVar[tuple[list[str], ...]] = ContextVar("regweave_records", default=())
_show: ContextVar[Show] = ContextVar("regweave_show", default=_as_python_warning)

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters, but for tab and line feed, and characters that change the order of the text round them."""


def terminal_safe(text: str) -> str:
    r"""Replace control characters by their numbers, as JSON writes them."""
    return CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def warn(text: str) -> None:
    """Add a warning to the record of every call that is running in this context, and show it.

    The text begins with a W2xx code of ``docs/errors.md``.
    """
    for record in _records.get():
        record.append(text)
    _show.get()(text)


@contextmanager
def collected() -> Iterator[list[str]]:
    """Give a list that receives the text of each warning inside the block; an outer block's list receives it too.

    A text that Python shows only once is in every record that it belongs to.
    """
    texts: list[str] = []
    token = _records.set((*_records.get(), texts))
    try:
        yield texts
    finally:
        _records.reset(token)


@contextmanager
def shown_by(show: Show) -> Iterator[None]:
    """Let a function show the warnings inside the block, in place of Python's own way."""
    token = _show.set(show)
    try:
        yield
    finally:
        _show.reset(token)


@contextmanager
def muted(prefix: str = "") -> Iterator[None]:
    """Show no warning inside the block whose text begins with `prefix`; records receive it all the same."""
    outer = _show.get()

    def show(text: str) -> None:
        if not text.startswith(prefix):
            outer(text)

    with shown_by(show):
        yield


@contextmanager
def unheard() -> Iterator[None]:
    """Neither show nor record the warnings of the block: they are about something that is no part of the result."""
    token = _records.set(())
    try:
        with muted():
            yield
    finally:
        _records.reset(token)


@contextmanager
def deferred() -> Iterator[None]:
    """Show the warnings of the block when it has ended, as where Python's own warnings are silenced inside it."""
    outer, texts = _show.get(), list[str]()
    try:
        with shown_by(texts.append):
            yield
    finally:
        for text in texts:
            outer(text)


def in_this_context(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function that another thread will call see what the present context holds: records, threads.

    Threads of a pool begin with an empty context. Each call runs in a separate copy: two threads may
    not share one.
    """
    present = contextvars.copy_context()

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return present.copy().run(function, *args, **kwargs)

    return run
