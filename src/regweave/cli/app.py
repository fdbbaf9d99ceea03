"""The program ``regweave``: its commands, and what an error looks like from outside."""

from __future__ import annotations

import functools
import platform
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import regweave
from regweave import notices
from regweave.cli import words
from regweave.cli.files import check, convert, warp
from regweave.cli.help import SUMMARIES, WIDTH, Command, Group
from regweave.cli.learning import demo, evaluate, reproduce, train, weights
from regweave.cli.program import about, presets, report, rules
from regweave.cli.registration import plan, register
from regweave.cli.streams import guarded_streams
from regweave.errors import (
    EXIT_INTERNAL,
    EXIT_OK,
    Cancelled,
    RegweaveError,
    ResourceError,
)

COMMANDS: tuple[Callable[..., None], ...] = (
    register.register,
    train.train,
    evaluate.evaluate,
    report.report,
    rules.rules,
    reproduce.reproduce,
    plan.plan,
    check.check,
    convert.convert,
    demo.demo,
    about.about,
)
"""Each function becomes the command of its name."""
GROUPS: dict[str, tuple[Callable[..., None], ...]] = {
    "warp": (warp.image, warp.labels, warp.points),
    "presets": (presets.list_, presets.show),
    "weights": (weights.list_, weights.show, weights.compare),
}
STOPS = (signal.SIGTERM, signal.SIGHUP)
GROUP_HELP = {"warp": warp.__doc__, "presets": presets.__doc__, "weights": weights.__doc__}


def _cancellable(command: Callable[..., None]) -> Callable[..., None]:
    """Turn Ctrl-C into an error of ours before typer turns it into exit status 130."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt as error:
            raise Cancelled("E190", "cancelled", "nothing was written") from error

    return run


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
    """Put the program together from `COMMANDS` and `GROUPS`."""
    settings: dict[str, Any] = {
        "no_args_is_help": True,
        "pretty_exceptions_enable": False,
        "rich_markup_mode": None,
        "context_settings": {"max_content_width": WIDTH},
        "cls": Group,
    }
    app = typer.Typer(**settings)
    app.callback()(_program)
    for command in COMMANDS:
        _add(app, command)
    for name, members in GROUPS.items():
        group = typer.Typer(**settings, add_completion=False, help=GROUP_HELP[name])
        for command in members:
            _add(group, command, f"{name} ")
        app.add_typer(group, name=name, short_help=SUMMARIES[name])
    return app


def _add(app: typer.Typer, command: Callable[..., None], before: str = "") -> None:
    name = command.__name__.rstrip("_")
    app.command(name, cls=Command, short_help=SUMMARIES.get(before + name))(_cancellable(command))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        Command line without the program's name; by default that of the process.

    Returns
    -------
    int
        0 done, 1 some pairs failed, 2 usage, 3 input, 4 resources, 5 cancelled, 70 internal.
    """
    with guarded_streams():
        return _run(None if arguments is None else list(arguments))


def _run(arguments: list[str] | None) -> int:
    try:
        try:
            with _warnings_as_lines(), _stops_as_interrupts():
                words.given.set(tuple(sys.argv[1:] if arguments is None else arguments))
                make_app()(args=arguments, prog_name="regweave")
        finally:
            sys.stdout.flush()  # here, where a failure has a message and a status
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else EXIT_OK
    except (Cancelled, KeyboardInterrupt) as error:
        left = error.hint if isinstance(error, Cancelled) else "nothing was written"
        return _fail(f"cancelled; {left}", Cancelled.exit_status)
    except RegweaveError as error:
        return _fail(f"error {error.code}: {error.message}\n  {error.hint}", error.exit_status)
    except MemoryError:
        text = "error E140: the machine has not enough memory for this\n  use smaller images or a coarser preset"
        return _fail(text, ResourceError.exit_status)
    except Exception as error:
        report = _write_report(error)
        text = f"internal error ({type(error).__name__}): this is a fault of the program, not of your files"
        return _fail(f"{text}\n  please send the report {report} to the authors", EXIT_INTERNAL)
    return EXIT_OK


def _fail(text: str, status: int) -> int:
    print(text, file=sys.stderr)
    return status


def _write_report(error: Exception) -> Path:
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


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Print our warnings as one line each on stderr, none of them twice; those of libraries stay as they are."""
    shown: set[str] = set()

    def show(text: str) -> None:
        if text not in shown:
            shown.add(text)
            print(f"warning {text}", file=sys.stderr)

    with notices.shown_by(show):
        yield


@contextmanager
def _stops_as_interrupts() -> Iterator[None]:
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
