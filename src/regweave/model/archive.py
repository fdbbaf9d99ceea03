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
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.io.disk.files import open_file
from regweave.io.disk.limits import MAX_ARCHIVE_BYTES, MAX_TEXT_BYTES
from regweave.io.disk.outputs import atomic_path

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
