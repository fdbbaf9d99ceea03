"""``regweave report``: make the page of a result again from its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from regweave.errors import RegweaveError
from regweave.report import evaluation, registration, reproduce, training

FOLDERS: dict[str, Callable[[Path], Path]] = {
    "result.json": registration.write_page,
    "results.json": evaluation.write_page,
    "reproduce.json": reproduce.write_page,
}
"""What writes the page of a folder, by the file that tells what the folder is."""


def report(
    result: Annotated[Path, typer.Argument(help="Folder of a registration or an evaluation, or a model file.")],
) -> None:
    """Make the HTML page of a result again from the JSON and the images that belong to it."""
    Console().print(f"page        {write_page(result)}", soft_wrap=True)


def write_page(result: Path) -> Path:
    """Write the page of a registration, an evaluation or a model; return where it is."""
    if result.is_file():
        return training.write_page(result)
    for name, write in FOLDERS.items():
        if (result / name).is_file():
            return write(result)
    message = f"'{result}' is no result: it has no {' and no '.join(FOLDERS)}"
    hint = "give a folder that `register`, `evaluate` or `reproduce` wrote, or a model file"
    raise RegweaveError("E198", message, hint)
