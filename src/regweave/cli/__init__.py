"""Command line of the program: one file a command."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from regweave.errors import EXIT_RESOURCES, RegweaveError

__all__ = ["main"]

LEAST_ADDRESS_SPACE_MB = 600  # libraries alone need about this much (`ulimit -v`); with less they fail to load
AMPLE_ADDRESS_SPACE_MB = 2048
"""Below this the linear algebra of numpy gets one thread: for several it reserves memory until there is some."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status; see `regweave.cli.app.main`."""
    limit = _address_space_mb()
    if limit is not None and limit < LEAST_ADDRESS_SPACE_MB:
        with suppress(OSError, AttributeError):
            print(
                f"error E140: this process may use {limit:.0f} MB of address space, needed are at least "
                f"{LEAST_ADDRESS_SPACE_MB} MB\n  raise the limit (ulimit -v)",
                file=sys.stderr,
            )
        return EXIT_RESOURCES
    if limit is not None and limit < AMPLE_ADDRESS_SPACE_MB:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from regweave.cli.app import main as run  # noqa: PLC0415 (after the limit is known)
    except RegweaveError as error:  # of the choice of the kernels, which are loaded with the commands
        with suppress(OSError, AttributeError):
            print(f"error {error.code}: {error.message}\n  {error.hint}", file=sys.stderr)
        return error.exit_status
    return run(arguments)


def _address_space_mb() -> float | None:
    """Limit of the address space, None where the system has or sets none."""
    try:
        import resource  # noqa: PLC0415 (not on every system)
    except ImportError:
        return None
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if soft == resource.RLIM_INFINITY else soft / 2**20
