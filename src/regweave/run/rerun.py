"""Reproduction of a registration from its record: the same files, settings, start and weights give the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regweave import __version__, notices
from regweave.config.presets import validate
from regweave.config.settings import Settings
from regweave.errors import RegweaveError
from regweave.io import image_sha256
from regweave.io.disk.files import is_file
from regweave.model import shipped_models
from regweave.run.read import Reading
from regweave.run.record import MEMORY, ModelUse, StartRecord
from regweave.run.result import load

INPUTS = ("fixed", "moving", "fixed_labels", "moving_labels", "fixed_mask", "moving_mask")


def recorded_call(record: str | Path, **files: str | Path | None) -> dict[str, Any]:
    """Return the arguments of `register` that a record holds, after comparing every file with its hash.

    Parameters
    ----------
    record : path
        ``result.json``, or the folder that holds it.
    **files : paths, optional
        New places of ``fixed``, ``moving``, their labels and masks.

    Raises
    ------
    RegweaveError
        E178 where the record is damaged; E174 where the run cannot be repeated: a file is not the one that was used.

    Warns
    -----
    RegweaveWarning
        W213, where another version of the program made the record.
    """
    path = Path(record)
    run = load(path).provenance
    reading, settings = run.call.reading, run.settings
    if not isinstance(settings, Settings):  # a plug-in is missing: the error names it
        settings = validate(settings.content(), f"'{path}'")
    missing = [name for name in ("fixed", "moving") if name not in run.inputs]
    if missing:
        raise RegweaveError("E174", f"'{path}' names no {missing[0]} image", "give a record that is whole")
    if run.regweave != __version__:
        notices.warn(f"W213: '{path}' was made by regweave {run.regweave}, this is {__version__}; bits may differ")
    return {
        **{
            name: _same(files.get(name) or one.path, one.sha256, name, path, reading)
            for name, one in run.inputs.items() if name in INPUTS
        },
        "config": settings,
        "model": None if run.model is None else _model(run.model, path),
        "metrics": run.call.metrics,
        "init": _start(run.start, path, reading),
        "predict_classes": run.call.predict_classes,
        "device": run.device,
        "reading": reading,
    }  # fmt: skip


def _start(start: StartRecord, record: Path, reading: Reading) -> Any:
    """Return the start: a file, a matrix, or a method of that name."""
    if start.file is not None or start.requested == MEMORY:
        return _same(start.file, start.sha256, "start", record, reading)
    return [list(row) for row in start.matrix] if start.requested == "matrix" else start.requested


def _model(model: ModelUse, record: Path) -> Path:
    """Find the model: where it was, or the shipped one of its name."""
    where = model.path
    if where is not None and not is_file(where):
        where = str(shipped_models().get(model.name, where))
    return _same(where, model.sha256, f"model {model.name}", record, Reading())


def _same(file: str | Path | None, expected: str | None, name: str, record: Path, reading: Reading) -> Path:
    what = f"the {name.replace('_', ' ')}"
    if file is None:
        message = f"{what} of '{record}' was an object in memory"
        raise RegweaveError("E174", message, "name the file, where it is an image or labels; save the model or start")
    found = image_sha256(file, follow_links=reading.follow_links, series=reading.series(name))
    if found != expected:
        message = f"{what}, '{file}', is not the file that was used: SHA-256 {found}, recorded {expected}"
        raise RegweaveError("E174", message, "restore the file, or register anew without --from")
    return Path(file)
