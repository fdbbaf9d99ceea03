"""List the presets, or print one as TOML to edit and pass back with --config."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from regweave.cli.help import command_line, examples
from regweave.cli.options import JsonOption, complete_preset
from regweave.config.presets import preset, preset_names
from regweave.training.options import default_table

app = command_line(help=__doc__)


@app.command("list", epilog=examples("regweave presets list"))
def list_(*, as_json: JsonOption = False) -> None:
    """List the presets."""
    names = preset_names()
    print(json.dumps(names) if as_json else "\n".join(names))


@app.command(epilog=examples("regweave presets show default > mine.toml"))
def show(
    name: Annotated[str, typer.Argument(help="Preset, with or without its version.", autocompletion=complete_preset)],
    *,
    as_json: JsonOption = False,
) -> None:
    """Print a preset as TOML, with the options of `regweave train`; or the preset as JSON with the same keys."""
    found = preset(name)
    print(found.model_dump_json(indent=1) if as_json else f"{found.toml()}\n{default_table()}", end="\n" * as_json)
