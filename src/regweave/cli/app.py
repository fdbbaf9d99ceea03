"""Program ``regweave``: its commands, their common settings, its streams and signals, and the exit statuses."""

import errno
import io
import os
import platform
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import regweave
from regweave.errors import EXIT_OK, Cancelled, RegweaveError
from regweave.notices import terminal_safe

WIDTH = 80  # columns of help and tables
HELP_ALL = "--help-all"
SETTINGS: dict[str, Any] = {
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
    "context_settings": {"max_content_width": WIDTH},
}
words: ContextVar[tuple[str, ...]] = ContextVar("regweave_words", default=())
"""Command line of the running process after the name of the program, for records."""


class CommandLine(typer.Typer):
    """Command line to which the functions of a module are added."""

    def add(self, *calls: str, **settings: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Add a function; typed calls of it, each at most 76 characters, end its help."""
        return self.command(epilog="\n".join(["Examples:", *(f"  {call}" for call in calls)]), **settings)


command_line = partial(CommandLine, **SETTINGS, add_completion=False)
"""An empty command line."""


def usual(names: str) -> type[TyperCommand]:
    """Return a class of commands whose ``--help`` shows the named options alone; ``--help-all`` shows all."""

    class Usual(TyperCommand):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            if (option := self.get_help_option(ctx)) is not None:
                option.help = f"Show this message and exit; {HELP_ALL} shows all options."
            for parameter in self.params:
                named = parameter.name in names.split() or HELP_ALL in words.get()
                vars(parameter)["hidden"] = parameter.param_type_name == "option" and not named
            super().format_help(ctx, formatter)

    return Usual


COMMANDS: dict[str, tuple[str, str, str]] = {
    "register": ("register", "Register", "Register two images; write transforms, numbers and a page."),
    "batch": ("batch", "Register", "Register a list of pairs, each into its own folder."),
    "plan": ("register", "Register", "Forecast memory and time of a registration."),
    "contours": ("clinic", "Clinic", "Bring contours of a planning CT onto a later one."),
    "clinic": ("clinic", "Clinic", "Check reviews of contours, or test contours on phantoms."),
    "atlas": ("studies", "Studies", "Build a folder of atlases, or evaluate it."),
    "segment": ("studies", "Studies", "Segment images by fused labels of atlases."),
    "template": ("studies", "Studies", "Build the mean intensity and shape of images."),
    "bids": ("studies", "Studies", "Register the images of a BIDS dataset."),
    "series": ("studies", "Studies", "Bring the volumes of a 4-D image to their mean."),
    "measure": ("studies", "Studies", "Measure structures, and an image in each of them."),
    "report": ("report", "Look", "Make the page of a result again."),
    "rules": ("program", "Look", "Print the rules for pass, look and fail."),
    "train": ("models", "Learn", "Train metric weights of each structure from masks."),
    "evaluate": ("evaluate", "Learn", "Compare models and baselines on a list of pairs."),
    "models": ("models", "Learn", "List models; show or compare their weights."),
    "demo": ("demo", "Learn", "Train, register and evaluate, on phantoms or your scans."),
    "warp": ("warp", "Files", "Move images, labels, points, contours or doses."),
    "convert": ("files", "Files", "Write a transform in another format."),
    "check": ("files", "Files", "Look for faults in image files and DICOM folders."),
    "presets": ("program", "Program", "List presets or print one as TOML."),
    "about": ("program", "Program", "Print the versions of everything that runs here."),
}
"""Module of each command, the panel of the list in which it stands, and its line there: the list loads no command."""
GROUPS: dict[str, tuple[str, str]] = {
    "study": ("template series measure", "Build templates, align 4-D series, measure structures."),
    "files": ("convert check", "Convert transforms; look for faults in image files."),
    "show": ("rules models presets about", "Print rules, models, presets and versions."),
}
"""Commands that the list shows as one, and its line there; each is called with or without the name of its group."""
SHORT = {"weights": ["models"], "signoff": ["clinic", "signoff"]}  # short forms of commands that the list leaves out
FIRST = """Examples:
  regweave demo
  regweave register later.nii.gz planning.nii.gz -o result
  regweave register --help"""
INTERRUPTED = 130  # exit status of typer where Ctrl-C ends a command
STOPS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Windows has no terminal that hangs up."""
EXIT_STATUS = """Exit status:
  0   done
  1   done, but some registrations failed; the results name them
  2   wrong call: unknown option, value or name
  3   an input cannot be used
  4   the work does not fit the machine
  5   cancelled (Ctrl-C, SIGTERM, SIGHUP); nothing half-written is left
  6   done, but a verdict is fail and --strict is given
  70  a fault of the program; a report was written"""


class _Commands(TyperGroup):
    """Commands whose modules are loaded when they are called by name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find a command by the first word, as the list does, and load its module."""
        name, listed, rest = super().resolve_command(ctx, [*SHORT.get(args[0], args[:1]), *args[1:]])
        return name, load_command(name) if name in COMMANDS else listed, rest


@contextmanager
def resumable(kept: str = "finished registrations are kept", again: str = "continue with --resume") -> Iterator[None]:
    """State, where Ctrl-C ends the block, what is kept and how to go on."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Cancelled("E190", "cancelled", f"{kept}; {again}") from error


def load_command(name: str) -> Any:
    """Load the command, or the group of commands, of a name in `COMMANDS`; a module may have several."""
    command: Any = get_command(import_module(f"regweave.cli.{COMMANDS[name][0]}").app)
    return getattr(command, "commands", {}).get(name, command)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"regweave {regweave.__version__}")
        raise typer.Exit(EXIT_OK)


def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Deformable registration of 3-D medical images. For research use only; not a medical device."""


def make_app() -> typer.Typer:
    """Put the program together: its commands are names and lines of help until one is called."""
    app = typer.Typer(**SETTINGS, cls=_Commands, epilog=f"{FIRST}\n\n{EXIT_STATUS}")
    app.callback()(_program)
    grouped = {name: group for group, (members, _) in GROUPS.items() for name in members.split()}
    groups = {group: typer.Typer(**SETTINGS, cls=_Commands, add_completion=False) for group in GROUPS}
    for name, (_, panel, summary) in COMMANDS.items():
        app.command(name, help=summary, rich_help_panel=panel, hidden=name in grouped)(
            lambda: None
        )  # loaded when it is called
        if name in grouped:
            groups[grouped[name]].command(name, help=summary)(lambda: None)
    for name, group in groups.items():
        members, summary = GROUPS[name]
        app.add_typer(group, name=name, help=summary, rich_help_panel=COMMANDS[members.split()[0]][1])
    return app


def write_report(error: Exception) -> Path:
    """Write where it happened, without the error's own text and the arguments: they may name a patient."""
    lines = [
        f"regweave {regweave.__version__}, Python {platform.python_version()}, {platform.platform()}\n",
        f"{type(error).__module__}.{type(error).__qualname__}\n",
        *traceback.format_tb(error.__traceback__),
    ]
    with tempfile.NamedTemporaryFile(
        "w", prefix="regweave-report-", suffix=".txt", delete=False, encoding="utf-8"
    ) as stream:
        stream.writelines(lines)
    return Path(stream.name)


class WarningLines(set[str]):
    """Our warnings that were printed."""

    def __call__(self, text: str) -> None:
        """Print a warning as one line on stderr, none of them twice; those of libraries do not change."""
        if text not in self:
            self.add(text)
            print(f"warning {text}", file=sys.stderr)


@contextmanager
def stops_as_interrupts() -> Iterator[None]:
    """Let a job scheduler's SIGTERM and a terminal that is closed clean up as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    # `nohup` has set SIGHUP to be ignored: leave it so.
    wanted = [s for s in STOPS if signal.getsignal(s) is not signal.SIG_IGN]
    before = {s: signal.signal(s, interrupt) for s in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
