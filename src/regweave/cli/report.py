"""``regweave report``: make the page of a result again from its files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from regweave.cli.options import JsonOption
from regweave.errors import RegweaveError
from regweave.report import demo, evaluation, registration, reproduce, training

FOLDERS: dict[str, Callable[[Path], Path]] = {
    "result.json": registration.write_page,
    "results.json": evaluation.write_page,
    "reproduce.json": reproduce.write_page,
    "demo.json": demo.write_pages,
}
"""What writes the page of a folder, by the file that tells what the folder is."""


def report(
    result: Annotated[Path, typer.Argument(help="Folder of a result, or a model file.")],
    as_json: JsonOption = False,
) -> None:
    """Make the HTML page of a result again from the JSON and the images that belong to it.

    A result is the folder of `register`, `evaluate`, `reproduce` or `demo`, or
    the model that `train` wrote. An evaluation gets its list of registrations
    too, a demo all of its pages.
    """
    page = write_page(result)
    print(json.dumps({"page": str(page)}, ensure_ascii=False) if as_json else f"page        {page}")


def write_page(result: Path) -> Path:
    """Write the page of a folder or a model; return where it is."""
    if result.is_file():
        return training.write_page(result)
    for name, write in FOLDERS.items():
        if (result / name).is_file():
            return write(result)
    message = f"'{result}' is no result: it has no {' and no '.join(FOLDERS)}"
    hint = "give a folder that `register`, `evaluate`, `reproduce` or `demo` wrote, or a model file"
    raise RegweaveError("E198", message, hint)
