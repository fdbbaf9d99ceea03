"""Command line of the program: one file a command."""

import math
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from regweave import notices
from regweave.errors import EXIT_INTERNAL, EXIT_OK, EXIT_RESOURCES, Cancelled, RegweaveError, ResourceError

__all__ = ["main"]

LEAST_ADDRESS_SPACE_MB = 600  # libraries alone need about this much (`ulimit -v`); with less they fail to load
AMPLE_ADDRESS_SPACE_MB = 2048
"""Below this the linear algebra of numpy gets one thread: for several it reserves memory until there is some."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program with a command line, by default that of the process; return an exit status."""
    app = _loaded()
    if isinstance(app, int):
        return app
    with app.guarded_streams():
        try:
            try:
                with notices.shown_by(app.WarningLines()), app.stops_as_interrupts():
                    app.words.set(tuple(sys.argv[1:] if arguments is None else arguments))
                    typed = ["--help" if word == app.HELP_ALL else word for word in app.words.get()]
                    app.make_app()(args=typed, prog_name="regweave")
                status, text = EXIT_OK, ""
            finally:
                sys.stdout.flush()  # here, where a failure has a message and a status
        except (SystemExit, KeyboardInterrupt) as stop:
            code = app.INTERRUPTED if isinstance(stop, KeyboardInterrupt) else stop.code
            status, text = code if isinstance(code, int) else EXIT_OK, ""
            if status == app.INTERRUPTED:
                status, text = Cancelled.exit_status, "cancelled; nothing was written"
        except RegweaveError as error:
            stopped, status = isinstance(error, Cancelled), error.exit_status
            text = f"cancelled; {error.hint}" if stopped else f"error {error.code}: {error.message}\n  {error.hint}"
        except MemoryError:
            text = "error E140: the machine has not enough memory for this\n  use smaller images or a coarser preset"
            status = EXIT_RESOURCES
        except Exception as error:
            report, status = app.write_report(error), EXIT_INTERNAL
            text = f"internal error ({type(error).__name__}): this is a fault of the program, not of your files"
            text = f"{text}\n  please send the report {report} to the authors"
        if text:
            print(text, file=sys.stderr)
        return status


def _loaded() -> Any:
    """Load the commands, or print why not and return the exit status."""
    limit = math.inf
    with suppress(ImportError):
        import resource  # noqa: PLC0415 (not on every system)

        soft = resource.getrlimit(resource.RLIMIT_AS)[0]
        limit = math.inf if soft == resource.RLIM_INFINITY else soft / 2**20
    if limit < AMPLE_ADDRESS_SPACE_MB:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        if limit < LEAST_ADDRESS_SPACE_MB:
            message = f"this process may use {limit:.0f} MB of address space, needed are at least"
            raise ResourceError("E140", f"{message} {LEAST_ADDRESS_SPACE_MB} MB", "raise the limit (ulimit -v)")
        return import_module("regweave.cli.app")
    except RegweaveError as error:  # also of the choice of the kernels, which are loaded with the commands
        with suppress(OSError, AttributeError):
            print(f"error {error.code}: {error.message}\n  {error.hint}", file=sys.stderr)
        return error.exit_status
