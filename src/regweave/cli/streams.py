"""Standard streams that may be closed, full or gone: a command does its work all the same."""

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

    Text that cannot be written to standard error is dropped: a full disk under a log file is no reason to stop.
    Standard output is a result, so its first failure raises E153; a reader that has closed the pipe (``| head``) does
    not count. Control characters of printed texts, such as names from files, are replaced by their numbers; rich writes
    its own through ``rich_proxied_file``.
    """

    def __init__(self, stream: TextIO, *, needed: bool, safe: bool = True) -> None:
        self._stream, self._needed, self._lost, self._safe = stream, needed, False, safe
        if safe:
            self.rich_proxied_file = _Guarded(stream, needed=needed, safe=False)

    def write(self, text: str) -> int:
        if text == "":  # libraries test a stream with it, and swallow the error
            return 0
        try:
            bar = text[0] == "\r"  # a progress bar begins its line again
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
        first, self._lost = not self._lost, True
        # The rest goes nowhere: Python would try once more at the end, and change the exit status.
        with suppress(OSError, ValueError, io.UnsupportedOperation):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            self._stream.flush()
        if self._needed and first and error.errno != errno.EPIPE:
            message = f"cannot write to standard output: {error.strerror or error} (errno {error.errno})"
            hint = "files that were asked for are written; check the free space"
            raise RegweaveError("E153", message, hint) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Make standard output and standard error fit for use inside the block."""
    for number in range(3):  # the next file that is opened would get the number of a closed stream
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
    before = sys.stdout, sys.stderr
    texts = [stream for stream in before if isinstance(stream, io.TextIOWrapper)]
    handlers = [stream.errors for stream in texts]
    for stream in texts:  # names of files may have letters that the encoding lacks
        stream.reconfigure(errors="backslashreplace")
    out, err = (stream or io.StringIO() for stream in before)  # Python has None for a closed one
    sys.stdout, sys.stderr = _Guarded(out, needed=True), _Guarded(err, needed=False)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream, errors in zip(texts, handlers, strict=True):
            stream.reconfigure(errors=errors)
