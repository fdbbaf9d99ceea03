"""Guarded standard streams: they may be closed, full or gone, and a command does its work all the same."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from regweave.errors import RegweaveError
from regweave.notices import terminal_safe


class _Guarded:
    """A text stream whose failures do not reach the command that prints.

    What cannot be shown on standard error is dropped: a full disk under a log file is no reason to stop. Standard
    output is a result, so its failure is an error of ours, told once; but a reader that has gone (``| head``) has
    seen enough. Control characters of printed texts, such as names from files, are replaced by their numbers; rich
    writes its own through ``rich_proxied_file``.
    """

    def __init__(self, stream: TextIO, *, needed: bool, safe: bool = True) -> None:
        self._stream, self._needed, self._lost, self._safe = stream, needed, False, safe
        if safe:
            self.rich_proxied_file = _Guarded(stream, needed=needed, safe=False)

    def write(self, text: str) -> int:
        if text == "":  # libraries try out a stream so, and swallow what comes of it
            return 0
        try:
            bar = text[0] == "\r"  # a progress bar begins its line anew
            self._stream.write(text[:bar] + terminal_safe(text[bar:]) if self._safe else text)
        except OSError as error:
            self._fail(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        told, self._lost = self._lost, True
        self._drop_the_rest()
        if self._needed and not told and error.errno != errno.EPIPE:
            message = f"cannot write to standard output: {error.strerror or error} (errno {error.errno})"
            raise RegweaveError(
                "E153", message, "files that were asked for are written; check the free space"
            ) from error

    def _drop_the_rest(self) -> None:
        """Let what the stream still holds go nowhere: Python would try once more at the end and change the status."""
        with suppress(OSError, ValueError, io.UnsupportedOperation):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _open_closed_streams() -> None:
    """Put the null device where a standard stream is closed, or the next file that is opened would take its place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one


def _escape_odd_names(stream: TextIO | None) -> str | None:
    """Let a stream print names of files that its encoding has no letters for; return how it took them before."""
    if not isinstance(stream, io.TextIOWrapper):
        return None
    before = stream.errors
    stream.reconfigure(errors="backslashreplace")
    return before


@contextmanager
def _any_character(stream: Any) -> Iterator[None]:
    """Let a stream of few characters (ASCII, or a name that is not UTF-8) show the others by their numbers."""
    errors = getattr(stream, "errors", None)
    if errors != "strict" or not isinstance(stream, io.TextIOWrapper):
        yield
        return
    stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            stream.reconfigure(errors=errors)


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Make standard output and standard error fit for use inside the block."""
    _open_closed_streams()
    before = sys.stdout, sys.stderr
    handling = [_escape_odd_names(stream) for stream in before]
    out, err = (stream or io.StringIO() for stream in before)  # Python has None for a closed one
    sys.stdout, sys.stderr = _Guarded(out, needed=True), _Guarded(err, needed=False)
    try:
        with _any_character(out):
            yield
    finally:
        sys.stdout, sys.stderr = before
        for stream, errors in zip(before, handling, strict=True):
            if errors is not None and isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors=errors)
