"""Names of labels: JSON, TSV with ``index`` and ``name``, or ITK-SNAP's label file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import is_file, require_file, stem_of
from regweave.io.disk.texts import parse_json, parse_table, read_text, shown

SNAP_LINE = re.compile(r'^\s*(\d+)(?:\s+[\d.]+){6}\s+"([^"\n]*)"\s*$', re.MULTILINE | re.ASCII)
"""A label of ITK-SNAP: its value, colour, opacity, two switches and its name."""


def find_names(labels: Path) -> Path | None:
    """Find names beside a label map: its own TSV, labels.json, labels.tsv or dseg.tsv, in this order."""
    candidates = (f"{stem_of(labels)}.tsv", "labels.json", "labels.tsv", "dseg.tsv")
    return next((labels.parent / name for name in candidates if is_file(labels.parent / name)), None)


def require_names(given: Any) -> str | Path | dict[int, str] | None:
    """Return names of labels as they were given, a file or a mapping from value to name, or raise E142."""
    if given is None or isinstance(given, str | Path):
        return given
    if isinstance(given, Mapping):
        try:
            names = {_value(value): name for value, name in given.items()}
        except (TypeError, ValueError):
            names = {}
        if len(names) == len(given) > 0 and all(isinstance(name, str) and name.strip() for name in names.values()):
            return names
    found = f"label_names is {shown(given)} of type {type(given).__name__}"
    raise UsageError("E142", found, 'give a file, or names by value: {1: "liver", 2: "spleen"}')


def read_names(path: str | Path | Mapping[int, str]) -> dict[int, str]:
    """Read the names of labels by value, or raise E107; a mapping of names is checked: E142."""
    if not isinstance(path, str | Path):
        return dict(require_names(path) or {})  # type: ignore[arg-type]
    path = require_file(path)
    reader = READERS.get(path.suffix.lower(), _read_json)
    try:
        pairs = reader(path)
        names = {_value(value): str(name) for value, name in pairs}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        message = f"'{path}' is not a list of label names ({type(error).__name__}: {error})"
        hint = 'write JSON {"1": "Liver"} or {"Liver": 1}, TSV with index and name, or an ITK-SNAP label file'
        raise RegweaveError("E107", message, hint) from error
    if len(names) < len(pairs):
        raise RegweaveError("E107", f"'{path}' names a label twice", "keep one name for each value")
    return names


def read_name_map(path: str | Path) -> dict[str, str]:
    """Read new names of structures by their old ones: JSON ``{"old": "new"}``, or TSV with ``old`` and ``new``.

    Raises
    ------
    RegweaveError
        E107 where the file is neither.
    """
    path = require_file(path)
    try:
        if path.suffix.lower() == ".tsv":
            pairs = [(row["old"], row["new"]) for row in parse_table(read_text(path), "\t")]
        else:
            pairs = list(parse_json(read_text(path)).items())
        if not all(isinstance(name, str) for pair in pairs for name in pair):
            raise TypeError("a name is no text")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        message = f"'{path}' is not a map of names ({type(error).__name__}: {error})"
        raise RegweaveError("E107", message, 'write JSON {"old": "new"}, or TSV with old and new') from error
    return dict(pairs)


def _read_json(path: Path) -> list[tuple[Any, Any]]:
    content = parse_json(read_text(path)).items()
    if all(isinstance(value, str) for _, value in content):
        return [(key, value) for key, value in content]
    if all(isinstance(value, int) and not isinstance(value, bool) for _, value in content):
        return [(value, key) for key, value in content]
    raise TypeError("neither names by value nor values by name")


def _read_tsv(path: Path) -> list[tuple[Any, Any]]:
    return [(row["index"], row["name"]) for row in parse_table(read_text(path), "\t")]


def _read_snap(path: Path) -> list[tuple[Any, Any]]:
    found = SNAP_LINE.findall(read_text(path))
    if not found:
        raise ValueError('no line of the form: 1 255 0 0 1 1 1 "Liver"')
    return found


READERS = {".tsv": _read_tsv, ".txt": _read_snap, ".label": _read_snap}


def _value(found: Any) -> int:
    """Return a label value; `int` alone would take 1_0 for ten, and 1.5 and True for one."""
    if not isinstance(found, str | Integral) or isinstance(found, bool):
        raise TypeError(f"{shown(found)} is no label value")
    if isinstance(found, str) and re.fullmatch(r"\s*\d{1,20}\s*", found, re.ASCII) is None:
        raise ValueError(f"{shown(found)} is no label value")
    return int(found)
