"""Arrays in NumPy's .npz archives, with a bound on what their zip members may inflate to."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from regweave.io.disk.files import damaged, open_file
from regweave.io.disk.limits import MAX_ARCHIVE_BYTES, require_memory


def read_arrays(path: Path, names: Sequence[str]) -> list[NDArray[Any]]:
    """Read arrays of an archive by name.

    Parameters
    ----------
    path : Path
        File that `numpy.savez_compressed` wrote.
    names : sequence of str

    Raises
    ------
    RegweaveError
        E101 no regular file, E102 damaged or not such an archive, E140 more than the machine has memory for.
    """
    subject = f"'{path}'"
    with open_file(path) as stream:
        try:
            with ZipFile(stream) as archive:
                size = sum(member.file_size for member in archive.infolist())
            if size > MAX_ARCHIVE_BYTES:
                raise ValueError(f"it says that it holds {size} bytes, allowed are {MAX_ARCHIVE_BYTES}")
            require_memory(2 * size, subject)
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as stored:
                return [stored[name] for name in names]
        except (
            OSError,
            ValueError,
            KeyError,
            EOFError,
            NotImplementedError,
            RuntimeError,
            BadZipFile,
            zlib.error,
        ) as error:
            raise damaged(subject, f"it does not hold the arrays {', '.join(names)} ({error})") from error
