"""Model archive: a zip file of ``model.json`` and ``arrays.safetensors``, for models with megabytes of numbers.

An archive may come from a stranger: no part of it is code, stated sizes are not used, and unknown parts are refused.
"""

import lzma
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.io.disk.files import MAX_ARCHIVE_BYTES, MAX_TEXT_BYTES, open_file
from regweave.io.disk.outputs import atomic_path

SUFFIX = ".zip"
MARK = b"PK\x03\x04"
TEXT, ARRAYS = "model.json", "arrays.safetensors"
LONGEST = {TEXT: MAX_TEXT_BYTES, ARRAYS: MAX_ARCHIVE_BYTES}
"""Largest number of bytes that is read of each part, after decompression."""
DATE = (1980, 1, 1, 0, 0, 0)  # date of the parts: the same model gives the same bytes at any time
DAMAGE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, LookupError, NotImplementedError, OSError,
    RuntimeError,
)  # fmt: skip
"""Errors of `zipfile` for damaged bytes, beside ValueError."""
Arrays = Mapping[str, NDArray[Any]]


def is_archive(path: Path) -> bool:
    """Detect a zip file by its first bytes."""
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

    try:
        with open_file(path) as stream, zipfile.ZipFile(stream) as archive:
            names = archive.namelist()
            if sorted(names) != sorted(LONGEST):  # also a part that is there twice, or has the path of another folder
                shown = ", ".join(repr(n[:40]) for n in names[:5])
                raise ValueError(f"it holds {shown or 'nothing'}, allowed: {TEXT} and {ARRAYS}")
            parts = {name: archive.open(name).read(longest + 1) for name, longest in LONGEST.items()}
    except DAMAGE as error:
        raise ValueError(f"the archive is damaged ({error})") from error
    for name, longest in LONGEST.items():
        if len(parts[name]) > longest:
            raise ValueError(f"{name} is longer than {longest} bytes")
    try:
        arrays = load(parts[ARRAYS])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{ARRAYS} is damaged ({error})") from error
    wrong = [name for name, array in arrays.items() if array.dtype not in (np.float16, np.float32, np.float64)]
    if wrong:
        raise ValueError(f"array {wrong[0][:60]!r} is {arrays[wrong[0]].dtype}, allowed: float16, float32, float64")
    return parts[TEXT].decode("utf-8"), arrays
