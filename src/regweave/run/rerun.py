"""Reproduction of a registration from its record: the same files, settings, start and weights give the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regweave import __version__, notices
from regweave.config import presets as registration_settings
from regweave.errors import RegweaveError, UsageError
from regweave.io import image_sha256
from regweave.io.disk.files import is_file, is_folder
from regweave.io.disk.text import parse_json, read_text
from regweave.measures.verdict import Rules, default_rules, parse_rules
from regweave.model import shipped_models
from regweave.run.read import Reading
from regweave.run.record import MEMORY

RECORD = "result.json"
INPUTS = ("fixed", "moving", "fixed_labels", "moving_labels", "fixed_mask", "moving_mask")


def recorded_call(record: str | Path, **files: str | Path | None) -> dict[str, Any]:
    """Return the arguments of `register` that a record stands for, after comparing every file with its hash.

    Parameters
    ----------
    record : path
        ``result.json``, or the folder that holds it.
    **files : paths, optional
        Where ``fixed``, ``moving``, their labels and masks are now, if not where the record says.

    Raises
    ------
    RegweaveError
        E174 where the record holds no run that can be repeated, or a file is not the one that was used.

    Warns
    -----
    RegweaveWarning
        W213, where another version of the program made the record.
    """
    path = Path(record) / RECORD if is_folder(record) else Path(record)
    try:
        run = parse_json(read_text(path), constants=True)["provenance"]
        call, start, model = run["call"], run["start"], run["model"]
        settings = registration_settings.validate(run["settings"], f"'{path}'")
        reading = Reading.from_json(call["reading"])
        arguments: dict[str, Any] = {
            name: _same(files.get(name) or one["path"], one["sha256"], name, path, reading)
            for name, one in run["inputs"].items() if name in INPUTS
        }  # fmt: skip
        arguments |= {
            "config": settings,
            "model": None if model is None else _model(model, path),
            "metrics": call["metrics"],
            "init": _start(start, path, reading),
            "predict_classes": _flag(call["predict_classes"]),
            "device": str(run["device"]),
            "reading": reading,
        }
        made_by = str(run["regweave"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"'{path}' holds no registration that can be run again ({type(error).__name__}: {error})"
        raise RegweaveError("E174", message, "give the result.json of `regweave register`") from error
    missing = [name for name in ("fixed", "moving") if name not in arguments]
    if missing:
        raise RegweaveError("E174", f"'{path}' names no {missing[0]} image", "give a record that is whole")
    if made_by != __version__:
        notices.warn(f"W213: '{path}' was made by regweave {made_by}, this is {__version__}; bits may differ")
    return arguments


def _flag(found: object) -> bool:
    if not isinstance(found, bool):
        raise TypeError(f"predict_classes is {found!r}, allowed: true, false")
    return found


def recorded_rules(record: str | Path) -> Rules:
    """Return the acceptance criteria of a record; one of before verdicts is judged by the shipped ones.

    Raises
    ------
    RegweaveError
        E174 where the record holds something else.
    """
    path = Path(record) / RECORD if is_folder(record) else Path(record)
    try:
        found = parse_json(read_text(path), constants=True).get("rules")
        if found is None:
            return default_rules()
        sources = {rule: {"source": text} for rule, text in found.get("sources", {}).items()}
        tables = {rule: {**limits, **sources.get(rule, {})} for rule, limits in found["limits"].items()}
        return parse_rules({"name": found["name"], **tables}, str(path))
    except (UsageError, KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"'{path}' holds no rules that can be used again ({type(error).__name__})"
        raise RegweaveError("E174", message, "give the rules with --rules") from error


def _start(recorded: Mapping[str, Any], record: Path, reading: Reading) -> Any:
    """Return the start: a file, a matrix, or a method of that name."""
    if recorded["file"] is not None or recorded["requested"] == MEMORY:
        return _same(recorded["file"], recorded["sha256"], "start", record, reading)
    return recorded["matrix"] if recorded["requested"] == "matrix" else recorded["requested"]


def _model(recorded: Mapping[str, Any], record: Path) -> Path:
    """Find the model: where it was, or the shipped one of its name."""
    where = recorded["path"]
    if where is not None and not is_file(where):
        where = shipped_models().get(str(recorded["name"]), Path(where))
    return _same(where, recorded["sha256"], f"model {recorded['name']}", record, Reading())


def _same(file: str | Path | None, expected: str, name: str, record: Path, reading: Reading) -> Path:
    what = f"the {name.replace('_', ' ')}"
    if file is None:
        message = f"{what} of '{record}' was an object in memory"
        raise RegweaveError("E174", message, "name the file, where it is an image or labels; save the model or start")
    found = image_sha256(file, follow_links=reading.follow_links, series=reading.series(name))
    if found != expected:
        message = f"{what}, '{file}', is not the file that was used: SHA-256 {found}, recorded {expected}"
        raise RegweaveError("E174", message, "restore the file, or register anew without --from")
    return Path(file)
