"""``regweave presets``: list the presets, or print one as TOML to edit and pass back with ``--config``."""

from __future__ import annotations

from typing import Annotated

import typer

from regweave.registration.settings import preset, preset_names


def list_() -> None:
    """List the presets."""
    for name in preset_names():
        print(name)


def show(name: Annotated[str, typer.Argument(help="Preset, with or without its version.")]) -> None:
    """Print a preset as TOML."""
    print(preset(name).toml(), end="")
