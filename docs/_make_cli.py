"""Write docs/cli.md from the program itself: ``python docs/_make_cli.py``. A test compares the two."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regweave.cli.app import COMMANDS, load_command

PAGE = Path(__file__).with_name("cli.md")
INTRODUCTION = """# Commands

Made from the program's own help by `docs/_make_cli.py`. Every command ends with an
[exit status](errors.md#exit-statuses) and names what is wrong by a [code](errors.md).
"""


def page() -> str:
    """Return the page: each command with its arguments and options."""
    found = [pair for name in COMMANDS for pair in _commands(f"regweave {name}", load_command(name))]
    sections = [_section(path, command) for path, command in found]
    return "\n".join([INTRODUCTION, *sections])


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    members = getattr(command, "commands", None)
    if members is None:
        yield path, command
        return
    for name, member in members.items():
        yield from _commands(f"{path} {name}", member)


def _section(path: str, command: Any) -> str:
    lines = [f"## {path}", "", inspect.cleandoc(command.help or ""), ""]
    lines += ["| argument or option | meaning | default |", "|---|---|---|"]
    lines += [_row(p) for p in command.params if p.name != "help"]
    return "\n".join(lines) + "\n"


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = f"`{parameter.metavar or parameter.name.upper()}`"
    else:
        name = ", ".join(f"`{word}`" for word in [*parameter.opts, *parameter.secondary_opts])
    meaning = getattr(parameter, "help", None) or ""
    return f"| {name} | {meaning.replace('|', chr(92) + '|')} | {_default(parameter)} |"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if value is None or value is False or callable(value):
        return ""
    return f"`{getattr(value, 'value', value)}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
