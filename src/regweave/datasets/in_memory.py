"""Training pairs from memory: rows, tuples and images, written where worker processes read them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from regweave.datasets.manifest import FILES, IMAGES, MASKS, PairFiles, Table, read_pairs
from regweave.errors import RegweaveError
from regweave.io import read_image, read_labels, write_image, write_labels
from regweave.types import LabelMap, Volume

Pair = PairFiles | Sequence[Any] | Mapping[str, Any]
"""A line of a list; or fixed, moving, fixed labels, moving labels; or the cells of a row by column."""
Pairs = Table | Sequence[Pair]


def pairs_on_disk(pairs: Pairs, folder: Path, groups: Sequence[str] | None = None) -> list[PairFiles]:
    """Return the files of pairs; what is in memory is written first, each image once.

    Parameters
    ----------
    pairs : path, table, or sequence
        CSV file; a pandas table or rows by column; or a pair each: a PairFiles, or a tuple of fixed image, moving
        image, fixed labels and moving labels. Images are files or whatever `regweave.register` takes.
    folder : path
        Where images in memory are written, named by their content; it is made when it is needed.
    groups : sequence of str, optional
        Patients of each pair, ``p07`` or ``p07+p11``; by default those of the rows, else each pair is a patient of
        its own.

    Raises
    ------
    RegweaveError
        E132 where pairs cannot be understood, E101 where a file cannot be opened; what the readers raise.
    """
    if isinstance(pairs, str | Path):
        listed = read_pairs(pairs)
    else:
        rows = pairs.to_dict("records") if hasattr(pairs, "to_dict") else list(pairs)
        width = len(str(len(rows)))
        listed = read_pairs([_row(row, n, f"pair{n:0{width}d}", folder) for n, row in enumerate(rows)])
    if groups is None:
        return listed
    if len(groups) != len(listed):
        raise RegweaveError("E132", f"there are {len(listed)} pairs and {len(groups)} groups", "give one for each pair")
    return [replace(pair, group=str(group)) for pair, group in zip(listed, groups, strict=True)]


def _row(pair: Any, number: int, name: str, folder: Path) -> dict[str, Any]:
    """Cells of one pair, each image a file."""
    if isinstance(pair, PairFiles):
        row = dict(vars(pair))
    elif isinstance(pair, Mapping):
        row = {"id": name, **pair}
    elif len(pair) == len(FILES):
        row = {"id": name, **dict(zip(FILES, pair, strict=True))}
    else:
        message = f"pair {number} has {len(pair)} files, needed are {len(FILES)}"
        raise RegweaveError("E132", message, f"give {', '.join(FILES)}")
    named = (*FILES, *MASKS)
    return {column: _file(cell, column, folder) if column in named else cell for column, cell in row.items()}


def _file(source: Any, column: str, folder: Path) -> Any:
    """Path of an image; one in memory is written under the hash of its content. NRRD keeps every bit of a grid."""
    if source is None or isinstance(source, str | Path):
        return source
    value = read_image(source) if column in IMAGES else read_labels(source)
    digest = hashlib.sha256(np.ascontiguousarray(value.data).tobytes() + value.geometry.affine.tobytes())
    names = value.names if isinstance(value, LabelMap) else {}
    digest.update(repr((value.data.dtype.str, value.data.shape, sorted(names.items()))).encode())
    path = folder / f"{digest.hexdigest()[:32]}.nrrd"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        if names:
            lines = ["index\tname", *(f"{v}\t{n}" for v, n in sorted(names.items()))]
            path.with_suffix(".tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        if isinstance(value, Volume):
            write_image(path, value)
        else:
            write_labels(path, value)
    return path.absolute()
