"""Lists of image pairs: ``id,fixed,moving,fixed_labels,moving_labels[,group]``, one pair a line.

Paths are absolute or relative to the list. ``group`` names the patients a pair shows, several of them separated by
``+`` or ``;``; a pair belongs to each of its patients. Without the column, or where it is empty, a pair is a patient
of its own, named by its id.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from regweave.errors import RegweaveError
from regweave.io.disk.atomic import atomic_path
from regweave.io.disk.files import require_file
from regweave.io.disk.output_names import SAFE_ID
from regweave.io.disk.texts import read_text
from regweave.io.images import require_image
from regweave.measures.statistics import patients_of

FILES = ("fixed", "moving", "fixed_labels", "moving_labels")
COLUMNS = ("id", *FILES, "group")
SHOWN = 5
"""Problems of one kind that a message lists before it counts the rest."""


@dataclass(frozen=True)
class PairFiles:
    """One line of a list: where the images and labels of a pair are, and whose they are."""

    id: str
    fixed: Path
    moving: Path
    fixed_labels: Path
    moving_labels: Path
    group: str

    @property
    def patients(self) -> tuple[str, ...]:
        """Patients that the pair shows."""
        return patients_of(self.group)


def read_pairs(path: str | Path) -> list[PairFiles]:
    """Read a list of pairs and check that each of its files can be opened.

    Parameters
    ----------
    path : path
        CSV file in UTF-8 with the columns of the module's description, in any order.

    Returns
    -------
    list of PairFiles
        In the order of the file, with absolute paths.

    Raises
    ------
    RegweaveError
        E132 where the list cannot be understood, E101 where it, or a file in it, cannot be opened.
    """
    path = require_file(path)
    pairs = [_pair(path, line, row) for line, row in _rows(path)]
    if not pairs:
        raise _bad(path, "it has no pairs", "write one line for each pair below the header")
    seen: set[str] = set()
    for pair in pairs:
        if pair.id in seen:
            raise _bad(path, f"id {pair.id!r} occurs twice", "give each pair its own id")
        seen.add(pair.id)
    _require_files(path, pairs)
    return pairs


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Cells by column, without surrounding blanks, and the line they are on; blank lines do not count."""
    try:
        reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
        lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(map(str.strip, row))]
    except (UnicodeDecodeError, csv.Error) as error:
        raise _bad(path, f"it is not CSV in UTF-8 ({type(error).__name__})", "save it as CSV, UTF-8") from error
    if not lines:
        raise _bad(path, "it is empty", f"begin with the line {','.join(COLUMNS)}")
    header = lines[0][1]
    missing = [name for name in COLUMNS[:-1] if name not in header]
    unknown = [name for name in header if name not in COLUMNS]
    if missing or unknown or len(set(header)) < len(header):
        found = f"columns {','.join(header)}; missing: {', '.join(missing) or 'none'}"
        # An unknown column may be a misspelt group, and then the check for leaks would pass in silence.
        raise _bad(path, f"{found}; not known: {', '.join(unknown) or 'none'}", f"the columns are {','.join(COLUMNS)}")
    for line, cells in lines[1:]:
        if len(cells) != len(header):
            raise _bad(path, f"line {line} has {len(cells)} cells, the header {len(header)}", "correct the line")
    return [(line, dict(zip(header, cells, strict=True))) for line, cells in lines[1:]]


def _pair(path: Path, line: int, row: Mapping[str, str]) -> PairFiles:
    empty = [name for name in COLUMNS[:-1] if not row[name]]
    if empty:
        raise _bad(path, f"line {line} has nothing in {', '.join(empty)}", "fill the cells or remove the line")
    if SAFE_ID.fullmatch(row["id"]) is None:
        hint = "use letters, digits, '_', '.' and '-', and begin with a letter, a digit or '_'"
        raise _bad(path, f"line {line}: id {row['id']!r} is not usable", hint)
    group = row.get("group") or row["id"]
    if not patients_of(group):
        raise _bad(path, f"line {line}: group {group!r} names no patient", "write patients as p07 or p07+p11")
    folder = path.absolute().parent
    fixed, moving, fixed_labels, moving_labels = (folder / row[name] for name in FILES)
    return PairFiles(row["id"], fixed, moving, fixed_labels, moving_labels, group)


def _require_files(path: Path, pairs: Sequence[PairFiles]) -> None:
    problems = []
    for row, pair in enumerate(pairs, start=1):
        for column in FILES:
            try:
                require_image(getattr(pair, column))
            except RegweaveError as error:
                problems.append(f"pair {row} ({pair.id}), {column}: {error.message}")
    if problems:
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        message = f"'{path}' names files that cannot be opened: {'; '.join(problems[:SHOWN])}{more}"
        raise RegweaveError("E101", message, "paths are absolute or relative to the list")


def write_pairs(path: str | Path, pairs: Iterable[PairFiles]) -> None:
    """Write a list of pairs; files below the folder of the list become relative to it."""
    path = Path(path)
    folder = path.absolute().parent
    with atomic_path(path) as part, part.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        for pair in pairs:
            files = (Path(getattr(pair, column)).absolute() for column in FILES)
            shown = [f.relative_to(folder) if f.is_relative_to(folder) else f for f in files]
            writer.writerow([pair.id, *(f.as_posix() for f in shown), pair.group])


def check_leak(train_groups: Iterable[str], test_groups: Iterable[str], *, allow: bool = False) -> tuple[str, ...]:
    """Refuse a test on patients that were trained on.

    Parameters
    ----------
    train_groups, test_groups : strings
        Groups of the pairs; a pair of two patients counts for both.
    allow : bool
        Return the patients in common instead of raising.

    Returns
    -------
    tuple of str
        Patients in both, sorted; empty where all is well.

    Raises
    ------
    RegweaveError
        E133 where a patient is in both and `allow` is not set.

    Examples
    --------
    >>> check_leak(["a+b", "c"], ["d", "b+e"], allow=True)
    ('b',)
    """
    train, test = ({p for group in groups for p in patients_of(group)} for groups in (train_groups, test_groups))
    common = tuple(sorted(train & test))
    if common and not allow:
        more = f" and {len(common) - SHOWN} more" if len(common) > SHOWN else ""
        message = f"{len(common)} of {len(test)} test patients were trained on: {', '.join(common[:SHOWN])}{more}"
        raise RegweaveError("E133", message, "test on other patients, or pass --allow-leak to see training figures")
    return common


def _bad(path: Path, reason: str, hint: str) -> RegweaveError:
    return RegweaveError("E132", f"'{path}' is not a usable list of pairs: {reason}", hint)
