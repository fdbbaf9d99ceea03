"""Model archive: a zip file of ``model.json`` and ``arrays.safetensors``.

For models that hold megabytes of numbers. An archive may come from a stranger: nothing in it is code, no size that it
states is believed, and the parts that are not known are refused.
"""

from __future__ import annotations

import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.errors import UsageError
from regweave.io.disk.files import MAX_ARCHIVE_BYTES, MAX_TEXT_BYTES, open_file
from regweave.io.disk.outputs import atomic_path
from regweave.predictors import Parts
from regweave.registry import REGISTRIES

SUFFIX = ".zip"
MARK = b"PK\x03\x04"
TEXT, ARRAYS = "model.json", "arrays.safetensors"
LONGEST = {TEXT: MAX_TEXT_BYTES, ARRAYS: MAX_ARCHIVE_BYTES}
"""Most bytes that are read of each part, compressed or not."""
DATE = (1980, 1, 1, 0, 0, 0)
"""Date of the parts: the same model gives the same bytes whenever it is written."""
DAMAGE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, LookupError, NotImplementedError, OSError,
    RuntimeError,
)  # fmt: skip
"""What the modules of the archive raise for damaged bytes, beside ValueError."""
Arrays = Mapping[str, NDArray[Any]]


def is_archive(path: Path) -> bool:
    """Tell a zip file by its first bytes."""
    with open_file(path) as stream:
        return stream.read(len(MARK)) == MARK


def write_archive(path: Path, text: str, arrays: Arrays) -> None:
    """Write text and arrays; the same ones give the same bytes."""
    from safetensors.numpy import save  # noqa: PLC0415 - most models are JSON

    parts = {TEXT: text.encode("utf-8"), ARRAYS: save({n: np.ascontiguousarray(a) for n, a in arrays.items()})}
    with atomic_path(path) as part, zipfile.ZipFile(part, "w") as archive:
        for name, content in parts.items():
            info = zipfile.ZipInfo(name, DATE)
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED if name == TEXT else zipfile.ZIP_STORED
            archive.writestr(info, content)


def read_archive(path: Path) -> tuple[str, dict[str, NDArray[Any]]]:
    """Return text and arrays, or raise ValueError."""
    from safetensors import SafetensorError  # noqa: PLC0415
    from safetensors.numpy import load  # noqa: PLC0415

    with open_file(path) as stream:
        parts = _parts(stream)
    try:
        arrays = load(parts[ARRAYS])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{ARRAYS} is damaged ({error})") from error
    wrong = [name for name, array in arrays.items() if array.dtype not in (np.float16, np.float32, np.float64)]
    if wrong:
        raise ValueError(f"array {wrong[0][:60]!r} is {arrays[wrong[0]].dtype}, allowed: float16, float32, float64")
    return parts[TEXT].decode("utf-8"), arrays


def _parts(stream: io.BufferedReader) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(stream) as archive:
            names = archive.namelist()
            if sorted(names) != sorted(LONGEST):
                shown = ", ".join(repr(n[:40]) for n in names[:5])
                raise ValueError(f"it holds {shown or 'nothing'}, allowed: {TEXT} and {ARRAYS}")
            return {name: _content(archive, name) for name in LONGEST}
    except DAMAGE as error:
        raise ValueError(f"the archive is damaged ({error})") from error


def _content(archive: zipfile.ZipFile, name: str) -> bytes:
    """Bytes of a part, as many as it has and not as many as it states."""
    with archive.open(name) as part:
        content = part.read(LONGEST[name] + 1)
    if len(content) > LONGEST[name]:
        raise ValueError(f"{name} is longer than {LONGEST[name]} bytes")
    return content


MODALITIES = ("ct", "mr", "multi")
"""Banks that the rows of the weights may stand for."""
MOST_CLASSES = 4096
MOST_MEMBERS = 32
LONGEST_NAME = 200
LARGEST_LABEL = 2**63 - 1
LARGEST_WEIGHT = 1e6
"""Weights of the terms of an energy; sums over all nodes and labels stay finite."""
STIFFNESS = (1e-3, 1e3)
"""Factors of the smoothness of a class; none is free to tear, none rigid."""
PREDICTOR_VOXEL_MM = (1e-4, 1e3)
LARGEST_LAYER_WEIGHT = 1e6
"""Weights of a perceptron, whose features are about 1: float32 holds all sums."""
MOST_LAYER_WEIGHTS = 10_000_000
MOST_LISTED = 100_000
"""Numbers of a predictor that are written as text."""


def check_model(content: Mapping[str, Any]) -> None:
    """Check every number of a model, and the number and length of names.

    Raises
    ------
    ValueError
        Names the key, what was found and what is allowed.
    """
    classes = _table(content, "classes", MOST_CLASSES)
    for key, name in classes.items():
        if not (key.isascii() and key.isdigit() and len(key) < 20 and int(key) <= LARGEST_LABEL):
            raise ValueError(f"classes has the key {key[:40]!r}, allowed: whole numbers from 0 to {LARGEST_LABEL}")
        _name(name, f"classes[{key!r}]")
    _check_table(content, classes)
    if content.get("without_mask") is not None:
        _check_table(_table(content, "without_mask", MOST_MEMBERS), classes)
    for key in ("settings", "evidence"):
        if key in content or key == "settings":
            _table(content, key, MOST_CLASSES)
    if content["modality"] not in MODALITIES:
        raise ValueError(f"modality is {_short(content['modality'])}, allowed: {', '.join(MODALITIES)}")
    if content.get("scales") is not None:
        raise ValueError(f"scales is {_short(content['scales'])}, allowed: null; scales are fitted to each pair")
    if content.get("class_predictor") is not None:
        _table(content, "class_predictor", MOST_MEMBERS)


def _check_table(content: Mapping[str, Any], classes: Mapping[str, Any]) -> None:
    """Check weights, smoothness and stiffness."""
    _check_weights(_table(content, "weights", MOST_MEMBERS), classes)
    require_number(content["pairwise"], "pairwise", (0.0, LARGEST_WEIGHT))
    if content.get("stiffness") is not None:
        for key, value in _table(content, "stiffness", MOST_CLASSES).items():
            if key not in classes:
                raise ValueError(f"stiffness has the key {key[:40]!r}, allowed: {', '.join(list(classes)[:10])}")
            require_number(value, f"stiffness[{key!r}]", STIFFNESS)


def require_number(value: Any, key: str, allowed: tuple[float, float]) -> None:
    """Refuse what is no number in a range; NaN lies in none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not allowed[0] <= value <= allowed[1]:
        raise ValueError(f"{key} is {_short(value)}, allowed: a number from {allowed[0]:g} to {allowed[1]:g}")


def _check_weights(weights: Mapping[str, Any], classes: Mapping[str, Any]) -> None:
    for member, row in weights.items():
        _name(member, "a member of weights")
        if not isinstance(row, dict):
            raise ValueError(f"weights[{member!r}] is {_short(row)}, not a table of classes")
        for c in classes:
            if c not in row:
                raise ValueError(f"weights[{member!r}] has no number for class {c}")
            require_number(row[c], f"weights[{member!r}][{c!r}]", (-LARGEST_WEIGHT, LARGEST_WEIGHT))
    if not any(row[c] for row in weights.values() for c in classes):
        raise ValueError("weights are all 0: no metric has a say")


def check_arrays(parts: Parts) -> None:
    """Check the voxel size, the names and the arrays of a predictor; ValueError names what is wrong."""
    for size in ("voxel_mm", "unit_mm"):
        if size in parts.fields:
            require_number(parts.fields[size], f"class_predictor.{size}", PREDICTOR_VOXEL_MM)
    listed = parts.fields.get("classes", [0])
    whole = isinstance(listed, list) and all(type(c) is int for c in listed)
    if not whole or listed[:1] != [0] or any(a >= b for a, b in pairwise(listed)):
        found = _short(listed)
        raise ValueError(f"class_predictor.classes is {found}, allowed: whole numbers, 0 first, ascending, each once")
    names = _table(parts.fields, "names", MOST_CLASSES)
    for key, name in names.items():
        _name(name, f"class_predictor.names[{key[:40]!r}]")
    limit = LARGEST_LAYER_WEIGHT
    for key, values in parts.arrays.items():
        if not 1 <= values.size <= MOST_LAYER_WEIGHTS or not (np.abs(values.astype(np.float64)) <= limit).all():
            raise ValueError(
                f"class_predictor.{parts.kind}.{key[:40]} has shape {values.shape} or a number beyond ±{limit:g}, "
                f"allowed: at most {MOST_LAYER_WEIGHTS} numbers within it"
            )


def require_listable(parts: Parts | None, path: Path) -> None:
    """Raise E152 where a predictor holds too many numbers to be written as text."""
    numbers = 0 if parts is None else sum(array.size for array in parts.arrays.values())
    if parts is not None and numbers > MOST_LISTED:
        message = f"{path} would be JSON, and the model's predictor, {parts.kind}, holds {numbers} numbers"
        raise UsageError("E152", f"{message}; allowed in JSON: {MOST_LISTED}", f"write it to {path.stem}.zip")


def require_plugins(named: Any, path: str | Path) -> None:
    """Raise E169 where a model needs a plug-in that is not here, with the package that it came from."""
    if not isinstance(named, dict) or len(named) > MOST_MEMBERS:
        return
    for key, origin in named.items():
        kind, _, name = str(key).partition("/")
        registry = REGISTRIES.get(kind)
        if registry is None or name in registry.available():
            continue
        told = origin if isinstance(origin, dict) else {}
        package = " ".join(str(told[k]) for k in ("distribution", "version") if told.get(k))
        place = f"package {package}" if package else str(told.get("from", "another program"))
        message = f"{path} needs the {registry.noun} {name!r} of {place[:100]}, which is not here"
        raise UsageError("E169", message, "install it if you trust it; a model cannot bring code")


def _table(content: Mapping[str, Any], key: str, most: int) -> dict[str, Any]:
    table = content[key]
    if not isinstance(table, dict):
        raise ValueError(f"{key} is {_short(table)}, not a table")
    if len(table) > most:
        raise ValueError(f"{key} has {len(table)} entries, allowed: at most {most}")
    return table


def _name(value: Any, key: str) -> None:
    if not isinstance(value, str) or len(value) > LONGEST_NAME:
        raise ValueError(f"{key} is {_short(value)}, allowed: text of at most {LONGEST_NAME} characters")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
