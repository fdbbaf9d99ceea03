"""Parts of the help that commands share: panels of options, and examples at the end."""

from __future__ import annotations

from functools import partial
from typing import Any

import typer

WIDTH = 80
"""Columns of a terminal that nobody has made wider."""
input_option = partial(typer.Option, rich_help_panel="Input")
method_option = partial(typer.Option, rich_help_panel="Method")
machine_option = partial(typer.Option, rich_help_panel="Machine")
SETTINGS: dict[str, Any] = {
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
    "context_settings": {"max_content_width": WIDTH},
}


def command_line(**settings: Any) -> typer.Typer:
    """Return an empty command line, to which the functions of a file are added."""
    return typer.Typer(**SETTINGS, add_completion=False, **settings)


def examples(*calls: str) -> str:
    """Return the end of a help text.

    Parameters
    ----------
    calls : str
        Calls as they are typed, each at most 76 characters.
    """
    return "\n".join(["Examples:", *(f"  {call}" for call in calls)])
