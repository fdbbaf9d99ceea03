"""List the presets, or print one as TOML to edit and pass back with --config."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from regweave.cli.options import JsonOption
from regweave.registration.settings import preset, preset_names


def list_(*, as_json: JsonOption = False) -> None:
    """List the presets."""
    names = preset_names()
    print(json.dumps(names) if as_json else "\n".join(names))


def show(name: Annotated[str, typer.Argument(help="Preset, with or without its version.")]) -> None:
    """Print a preset as TOML."""
    print(preset(name).toml(), end="")
