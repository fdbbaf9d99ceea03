"""``regweave check``: facts and problems of image files."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from regweave.cli.help import WIDTH, command_line, examples
from regweave.cli.options import FollowOption, JsonOption
from regweave.errors import EXIT_OK
from regweave.io import Inspection, inspect_image

app = command_line()


@app.command(epilog=examples("regweave check scans/*.nii.gz", "regweave check planning.nii.gz --json"))
def check(
    files: Annotated[list[Path], typer.Argument(help="Image or label files.", show_default=False)],
    follow_links: FollowOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check image files: header, frame, spacing, values and whether the file is whole.

    Exit status 3 if one of them cannot be used, 4 if one does not fit into
    memory; all are listed in any case.
    """
    found = [inspect_image(file, follow_links=follow_links) for file in files]
    if as_json:
        print(json.dumps([_as_dict(one) for one in found], indent=1))
    else:
        print("\n\n".join(_as_text(one) for one in found))
    status = max((problem.exit_status for one in found for problem in one.problems), default=EXIT_OK)
    if status != EXIT_OK:
        raise typer.Exit(status)


def _as_dict(one: Inspection) -> dict[str, Any]:
    problems = [{"code": p.code, "message": p.message, "hint": p.hint} for p in one.problems]
    return {
        "file": one.path,
        "ok": not problems,
        **one.facts,
        "problems": problems,
        "warnings": list(one.warnings),
    }


def _as_text(one: Inspection) -> str:
    lines = [f"{one.path}: {'not usable' if one.problems else 'ok'}"]
    flat = {**one.facts, **one.facts.get("nifti", {})}
    lines += [_line(key, _value(value)) for key, value in flat.items() if key != "nifti"]
    lines += [f"  warning {text}" for text in one.warnings]
    lines += [f"  error {p.code}: {p.message}\n    {p.hint}" for p in one.problems]
    return "\n".join(lines)


def _line(key: str, value: str) -> str:
    """One fact; what does not fit beside its name goes below."""
    line = f"  {key:<17}{value}"
    if len(line) <= WIDTH:
        return line
    below = textwrap.fill(value, WIDTH, initial_indent="    ", subsequent_indent="    ", break_long_words=False)
    return f"  {key}\n{below}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return str(value)
