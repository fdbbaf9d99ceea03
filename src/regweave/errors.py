"""Exception classes with stable codes: what was found, what is allowed, what to do next."""

from __future__ import annotations

EXIT_OK = 0
EXIT_SOME_FAILED = 1
EXIT_USAGE = 2
EXIT_INPUT = 3
EXIT_RESOURCES = 4
EXIT_CANCELLED = 5
EXIT_VERDICT = 6
EXIT_INTERNAL = 70


class RegweaveError(Exception):
    """An error with a code of the catalogue in ``docs/errors.md``.

    Parameters
    ----------
    code : str
        Stable code such as ``E102``.
    message : str
        What is wrong, which file, found and allowed values.
    hint : str
        The next step.

    Examples
    --------
    >>> str(RegweaveError("E150", "output folder 'out' exists", "pass --overwrite or choose another -o"))
    "E150: output folder 'out' exists; pass --overwrite or choose another -o"
    """

    exit_status = EXIT_INPUT

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(f"{code}: {message}; {hint}")
        self.code = code
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[type[RegweaveError], tuple[str, str, str]]:
        """Let the error travel between processes."""
        return type(self), (self.code, self.message, self.hint)


class UsageError(RegweaveError):
    """The call itself is wrong: an unknown name, a bad setting."""

    exit_status = EXIT_USAGE


class ResourceError(RegweaveError):
    """The work does not fit the machine."""

    exit_status = EXIT_RESOURCES


class Cancelled(RegweaveError):
    """The user stopped the run."""

    exit_status = EXIT_CANCELLED


class RegweaveWarning(UserWarning):
    """A result that deserves a look; the message begins with a W2xx code."""
