"""``regweave rules``: acceptance criteria of a registration."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from regweave.cli.help import command_line, examples
from regweave.cli.options import JsonOption
from regweave.measures.verdict import CLINIC, SHIPPED, clinic_rules, default_rules, read_rules, shipped_text

app = command_line()


@app.command(epilog=examples("regweave rules > mine.toml", "regweave rules mine.toml"))
def rules(
    file: Annotated[Path | None, typer.Argument(help="Rules file to check; by default the shipped rules.")] = None,
    *,
    clinic: Annotated[bool, typer.Option("--clinic", help="The rules of propagated contours, with sources.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the shipped rules for pass, look and fail as TOML, or check a file of your own.

    Edit them and pass the file to `register`, `contours`, `evaluate` or
    `report` with --rules.
    """
    shipped = clinic_rules() if clinic else default_rules()
    found = shipped if file is None else read_rules(file)
    if as_json:
        print(json.dumps(asdict(found), indent=1, ensure_ascii=False))
    elif file is None:
        print(shipped_text(CLINIC if clinic else SHIPPED), end="")
    else:
        print("\n".join(f"{rule}: {found.words(rule)}" for rule in found.limits))
