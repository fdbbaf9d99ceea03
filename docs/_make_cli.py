"""Write docs/cli.md from the program itself: ``python docs/_make_cli.py``. A test compares the two."""

import inspect
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from regweave.cli.app import COMMANDS, load_command

PAGE = Path(__file__).with_name("cli.md")
INTRODUCTION = """# Commands

Made from the program's own help by `docs/_make_cli.py`. Every command ends with an
[exit status](errors.md#exit-statuses) and names what is wrong by a [code](errors.md).
`study`, `files` and `show` are groups: `regweave show presets` is `regweave presets`.
`--help` of a long command shows the usual options, `--help-all` shows all.
"""


Key = tuple[str, str]
COMMON = """## Options of many commands

A command that has one of these options names it below its table.
"""
OFTEN = 3
"""Commands with an option, of one default, that put it into the table of common ones; two if their words are equal."""
APART = {"--output", "--init", "--model", "--series", "--config", "--reference", "--classes"}
"""Options that mean something else in each command."""
HEAD = ["| argument or option | meaning |", "|---|---|"]


def page() -> str:
    """Return the page: common options, then each command with its arguments and options."""
    found = [pair for name in COMMANDS for pair in _commands(f"regweave {name}", load_command(name))]
    rows = {path: [(_key(p), _row(p)) for p in command.params if p.name != "help"] for path, command in found}
    words: dict[tuple[str, str], list[str]] = {}
    for key, row in (pair for listed in rows.values() for pair in listed):
        words.setdefault(key, []).append(row)
    common = {
        key: max(given, key=lambda row, given=given: (given.count(row), len(row)))
        for key, given in words.items()
        if len(given) + (given.count(given[0]) > 1) >= OFTEN
        and key[0].startswith("`--")
        and key[0].split("`")[1] not in APART
    }
    sections = [_section(path, command, rows[path], common.keys()) for path, command in found]
    return "\n".join([INTRODUCTION, COMMON, *HEAD, *sorted(common.values()), "", *sections])


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    members = getattr(command, "commands", None)
    if members is None:
        yield path, command
        return
    for name, member in members.items():
        yield from _commands(f"{path} {name}", member)


def _section(path: str, command: Any, rows: list[tuple[Key, str]], common: Collection[Key]) -> str:
    lines = [f"## {path}", "", inspect.cleandoc(command.help or ""), ""]
    if own := [row for key, row in rows if key not in common]:
        lines += [*HEAD, *own, ""]
    if shared := [key[0] for key, _ in rows if key in common]:
        lines += [f"Also {', '.join(shared)}.", ""]
    return "\n".join(lines)


def _key(parameter: Any) -> Key:
    return _name(parameter), _default(parameter)


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    return ", ".join(f"`{word}`" for word in [*parameter.opts, *parameter.secondary_opts])


def _row(parameter: Any) -> str:
    meaning = getattr(parameter, "help", None) or ""
    meaning = " ".join(filter(None, [meaning.replace("|", chr(92) + "|"), _default(parameter)]))
    return f"| {_name(parameter)} | {meaning} |"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "Required."
    value = parameter.default
    if value is None or value is False or callable(value):
        return ""
    return f"Default: `{getattr(value, 'value', value)}`."


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
