"""JSON records: finite numbers, whole files, and the versions that made them."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from regweave import __version__
from regweave.io.disk.outputs import atomic_path

DEPENDENCIES = ("numpy", "scipy", "SimpleITK", "h5py", "nibabel", "pydantic")
"""Libraries whose versions can change a number."""


def plain(value: Any) -> Any:
    """Replace what JSON has no word for: numbers that are not finite become null.

    Examples
    --------
    >>> plain({1: (0.5, float("nan"))})
    {'1': [0.5, None]}
    """
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def record_text(content: Mapping[str, Any]) -> str:
    """Return a JSON object as the text of a file."""
    return json.dumps(plain(content), indent=2) + "\n"


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object, whole or not at all."""
    with atomic_path(path) as part:
        part.write_text(record_text(content), encoding="utf-8")


@cache
def _versions() -> dict[str, str]:
    """Versions of the libraries, looked up once: each is a file of many lines."""
    return {name: metadata.version(name) for name in DEPENDENCIES}


def this_program() -> dict[str, Any]:
    """Versions of the program, of Python and of the libraries that compute."""
    return {
        "regweave": __version__,
        "python": platform.python_version(),
        "dependencies": _versions().copy(),
        "platform": platform.system() + "-" + platform.machine(),
    }
