"""Tables of image pairs, one pair a line, with the columns that a command needs; and their folds by patient.

Paths are absolute or relative to the list. ``group`` names the patients a pair shows, several of them separated by
``+`` or ``;``; a pair belongs to each of its patients. Without the column, or where it is empty, a pair is a patient
of its own, named by its id.
"""

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from regweave.errors import RegweaveError
from regweave.io import read_image, read_labels, write_image, write_labels
from regweave.io.disk.files import read_text, require_file
from regweave.io.disk.outputs import SAFE_ID, atomic_path
from regweave.io.images import files_of
from regweave.io.labels import join_names
from regweave.measures.statistics import patients_of
from regweave.run.read import Reading
from regweave.types import LabelMap, Volume

IMAGES = ("fixed", "moving")
FILES = (*IMAGES, "fixed_labels", "moving_labels")
MASKS = ("fixed_mask", "moving_mask")
COLUMNS = ("id", *FILES, "group")
LONGEST_ID = 200  # characters of an id, which becomes the name of a folder and is part of the records
SHOWN = 5  # problems of one kind that a message lists before it counts the rest
Table = str | Path | Iterable[Mapping[str, Any]]  # a CSV file, or rows by column: dictionaries, or a pandas table


@dataclass(frozen=True)
class PairFiles:
    """One line of a list: where the images and labels of a pair are, and whose they are."""

    id: str
    fixed: Path
    moving: Path
    fixed_labels: Path
    moving_labels: Path
    group: str
    fixed_mask: Path | None = None
    moving_mask: Path | None = None

    @property
    def files(self) -> dict[str, Any]:
        """Files of the pair by column; masks where there are any."""
        return {name: path for name in (*FILES, *MASKS) if (path := getattr(self, name)) is not None}

    @property
    def patients(self) -> tuple[str, ...]:
        """Patients that the pair shows."""
        return patients_of(self.group)


@dataclass(frozen=True)
class TableColumns:
    """Columns of a table that a command reads; a required cell may not be empty."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    files: tuple[str, ...]  # those that name files
    why: str  # reason for the required ones, for messages
    reserved: tuple[str, ...] = ()  # names of outputs, which no id may be
    least: int = 1  # rows, one or two


SCORED = TableColumns(
    ("id", *FILES), ("group", *MASKS), (*FILES, *MASKS),
    "scores are computed from both; to register without labels use `regweave batch`",
)  # fmt: skip


@dataclass(frozen=True)
class PairTable:
    """Rows of a table, checked: ids are unique and safe, files can be opened."""

    name: str  # the table in messages
    folder: Path  # start of relative paths
    rows: tuple[Mapping[str, str], ...]  # cells by column; those that name files are absolute, empty ones are left out


def read_table(table: Table, columns: TableColumns) -> PairTable:
    """Read a table of pairs: a CSV file in UTF-8, mappings, or a pandas table, with columns in any order.

    Raises E132 where the table cannot be understood, E101 where it, or a file in it, cannot be opened.
    """
    if isinstance(table, str | Path):
        path = require_file(table)
        name, folder, lines = f"'{path}'", path.absolute().parent, _lines(path)
    else:
        name, folder = "the table", Path.cwd()
        given = table.to_dict("records") if hasattr(table, "to_dict") else [dict(row) for row in table]
        header = list(dict.fromkeys(str(word) for row in given for word in row))
        # What is missing in a row, None or NaN, is an empty cell.
        lines = [(1, header), *((n, [_cell(row.get(c)) for c in header]) for n, row in enumerate(given, start=2))]
    if not lines:
        raise _bad(name, "it is empty", f"begin with the line {','.join((*columns.required, *columns.optional))}")
    _check_header(name, lines[0][1], columns)
    rows = [_row(name, line, dict(zip(lines[0][1], cells, strict=True)), columns) for line, cells in lines[1:]]
    if len(rows) < columns.least:
        found = "it has one row, two or more are needed" if rows else "it has no pairs"
        raise _bad(name, found, "write one line for each pair below the header")
    seen: set[str] = set()
    for row in rows:
        if row["id"].lower() in columns.reserved:
            hint = f"give it another id than {', '.join(columns.reserved)}"
            raise _bad(name, f"the id {row['id']!r} is the name of an output", hint)
        if row["id"].lower() in seen:
            raise _bad(name, f"id {row['id']!r} occurs twice", "give each pair its own id, not by case alone")
        seen.add(row["id"].lower())
    placed = [{k: str(folder / v) if k in columns.files else v for k, v in row.items() if v} for row in rows]
    _require_files(name, placed, columns)
    return PairTable(name, folder, tuple(placed))


def read_pairs(listed: Table) -> list[PairFiles]:
    """Read a list of pairs with labels, as `read_table` does; the paths of the result are absolute."""
    table, found = read_table(listed, SCORED), []
    for row in table.rows:
        group = row.get("group", row["id"])
        if not patients_of(group):
            reason = f"{row['id']}: group {group!r} names no patient"
            raise _bad(table.name, reason, "write patients as p07 or p07+p11")
        files = {column: Path(row[column]) for column in (*FILES, *MASKS) if column in row}
        found.append(PairFiles(row["id"], group=group, **files))
    return found


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    name = f"'{path}'"
    try:
        reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
        lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(map(str.strip, row))]
    except (UnicodeDecodeError, csv.Error) as error:
        raise _bad(name, f"it is not CSV in UTF-8 ({type(error).__name__})", "save it as CSV, UTF-8") from error
    for line, cells in lines:
        if len(cells) != len(lines[0][1]):
            message = f"line {line} has {len(cells)} cells, the header {len(lines[0][1])}"
            raise _bad(name, message, "correct the line")
    return lines


def _cell(value: object) -> str:
    if value is None or (not isinstance(value, str) and str(value) in {"nan", "<NA>"}):  # pandas' empty cells
        return ""
    if isinstance(value, str | Path | int):
        return str(value).strip()
    message = f"a cell of the table holds a {type(value).__name__}, needed are names of files and words"
    raise RegweaveError("E132", message, "save images first, or register them one by one with `regweave.register`")


def _check_header(name: str, header: Sequence[str], columns: TableColumns) -> None:
    other = next((sign for sign in (";", "\t", "|") if any(sign in column for column in header)), None)
    if len(header) == 1 and other is not None:
        word = {"\t": "a tab"}.get(other, other)
        raise _bad(name, f"the separator is {word}, commas are needed", "save it as CSV with commas")
    missing = [column for column in columns.required if column not in header]
    unknown = [column for column in header if column not in (*columns.required, *columns.optional)]
    twice = sorted({column for column in header if header.count(column) > 1})
    if missing:
        raise _bad(name, f"it lacks the columns {' and '.join(missing)} (missing: {', '.join(missing)})", columns.why)
    if unknown or twice:
        # An unknown column may be a misspelt group, and then the check for leaks would pass in silence.
        known = ", ".join((*columns.required, *columns.optional))
        reason = f"columns not known: {', '.join(unknown) or 'none'}; columns twice: {', '.join(twice) or 'none'}"
        raise _bad(name, reason, f"the columns are {known}")


def _row(name: str, line: int, row: Mapping[str, str], columns: TableColumns) -> Mapping[str, str]:
    empty = [column for column in columns.required if not row[column]]
    if empty:
        raise _bad(name, f"line {line} has nothing in {', '.join(empty)}", "fill the cells or remove the line")
    if len(row["id"]) > LONGEST_ID:
        message = f"line {line}: id {row['id'][:20] + '…'!r} has {len(row['id'])} characters, allowed are {LONGEST_ID}"
        raise _bad(name, message, "give the pair a shorter id: its folder has this name")
    if SAFE_ID.fullmatch(row["id"]) is None:
        hint = "use letters, digits, '_', '.' and '-', and begin with a letter, a digit or '_'"
        raise _bad(name, f"line {line}: id {row['id']!r} is not usable", hint)
    return row


def _require_files(name: str, rows: Sequence[Mapping[str, str]], columns: TableColumns) -> None:
    problems = []
    for number, row in enumerate(rows, start=1):
        for column in columns.files:
            try:
                for file in files_of(row[column]) if column in row else ():
                    require_file(file)
            except RegweaveError as error:
                problems.append(f"pair {number} ({row['id']}), {column}: {error.message}")
    if problems:
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        message = f"{name} names files that cannot be opened: {'; '.join(problems[:SHOWN])}{more}"
        raise RegweaveError("E101", message, "paths are absolute or relative to the list")


def write_pairs(path: str | Path, pairs: Iterable[PairFiles]) -> None:
    """Write a list of pairs; files below the folder of the list become relative to it."""
    path = Path(path)
    folder = path.absolute().parent
    with atomic_path(path) as part, part.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        pairs = list(pairs)
        masks = tuple(column for column in MASKS if any(column in pair.files for pair in pairs))
        writer.writerow((*COLUMNS, *masks))
        for pair in pairs:
            files = {column: path.absolute() for column, path in pair.files.items()}
            shown = {c: (f.relative_to(folder) if f.is_relative_to(folder) else f).as_posix() for c, f in files.items()}
            writer.writerow([pair.id, *(shown[c] for c in FILES), pair.group, *(shown.get(c, "") for c in masks)])


def in_one_numbering(reading: Reading, pairs: Sequence[PairFiles]) -> Reading:
    """Return rules that number the structures of a list alike, by their names."""
    files = dict.fromkeys(file for pair in pairs for file in (pair.moving_labels, pair.fixed_labels))
    joined = join_names(reading.names_beside(file) for file in files)
    return replace(reading, numbering=joined) if joined and reading.label_names is None else reading


def check_leak(train_groups: Iterable[str], test_groups: Iterable[str], *, allow: bool = False) -> tuple[str, ...]:
    """Return the patients that both groups have; refuse them (E133) unless `allow` is set.

    A pair of two patients counts for both.
    """
    train, test = ({p for group in groups for p in patients_of(group)} for groups in (train_groups, test_groups))
    common = tuple(sorted(train & test))
    if common and not allow:
        more = f" and {len(common) - SHOWN} more" if len(common) > SHOWN else ""
        message = f"{len(common)} of {len(test)} test patients were trained on: {', '.join(common[:SHOWN])}{more}"
        raise RegweaveError("E133", message, "test on other patients, or pass --allow-leak to see training figures")
    return common


def _bad(name: str, reason: str, hint: str) -> RegweaveError:
    return RegweaveError("E132", f"{name} is not a usable list: {reason}", hint)


Pair = PairFiles | Sequence[Any] | Mapping[str, Any]
"""A line of a list; or fixed, moving, fixed labels, moving labels; or the cells of a row by column."""
Pairs = Table | Sequence[Pair]


def pairs_on_disk(pairs: Pairs, folder: Path, groups: Sequence[str] | None = None) -> list[PairFiles]:
    """Return the files of pairs; what is in memory is written into the folder first, each image once, by its content.

    Pairs are a CSV file; a pandas table or rows by column; or a pair each: a PairFiles, or a tuple of fixed image,
    moving image, fixed labels and moving labels. Images are files or whatever `regweave.register` takes. ``groups`` are
    the patients of each pair, ``p07`` or ``p07+p11``; by default those of the rows, else each pair is a patient of its
    own. Pairs that cannot be understood are E132, a file that cannot be opened E101.
    """
    if isinstance(pairs, str | Path):
        listed = read_pairs(pairs)
    else:
        rows = pairs.to_dict("records") if hasattr(pairs, "to_dict") else list(pairs)
        width = len(str(len(rows)))
        listed = read_pairs([_cells_of(row, n, f"pair{n:0{width}d}", folder) for n, row in enumerate(rows)])
    if groups is None:
        return listed
    if len(groups) != len(listed):
        raise RegweaveError("E132", f"there are {len(listed)} pairs and {len(groups)} groups", "give one for each pair")
    return [replace(pair, group=str(group)) for pair, group in zip(listed, groups, strict=True)]


def _cells_of(pair: Any, number: int, name: str, folder: Path) -> dict[str, Any]:
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


DEALS = 64  # random ways to deal the patients that are compared


@dataclass(frozen=True)
class Fold:
    """One split; ``dropped`` pairs have patients on both sides and are used on neither."""

    train: tuple[PairFiles, ...]
    test: tuple[PairFiles, ...]
    dropped: tuple[PairFiles, ...]


def split_groups(pairs: Sequence[PairFiles], k: int, seed: int = 0) -> list[Fold]:
    """Split pairs into k folds by patient.

    A pair is in the test set of a fold if all its patients are left out there, in its training set if none is.
    Where the patients fall into k or more sets that share no pair, whole sets are dealt and no pair is dropped;
    else, of many random deals of single patients, the one that keeps most pairs for testing is taken. The seed chooses
    the deal; the order of the pairs does not matter. The test sets have no pair in common.

    Raises E134 where a fold would have nothing to train or to test on.
    """
    units = connected_patients(pairs)
    if len(units) < k:
        units = [(patient,) for patient in sorted({name for pair in pairs for name in pair.patients})]
    if k < 2 or len(units) < k:
        hint = "ask for at least 2 folds and no more than there are patients"
        raise RegweaveError("E134", f"{k} folds from {len(units)} patients", hint)
    rng = np.random.default_rng(seed)
    orders = (rng.permutation(len(units)) for _ in range(DEALS))
    deals = [_folds(pairs, [{p for i in order[n::k] for p in units[i]} for n in range(k)]) for order in orders]
    best = max(deals, key=lambda folds: (min(len(f.test) for f in folds), sum(len(f.test) for f in folds)))
    for number, fold in enumerate(best, start=1):
        if not (fold.train and fold.test):
            message = f"fold {number} of {k} has {len(fold.train)} training and {len(fold.test)} test pairs"
            raise RegweaveError("E134", message, "ask for fewer folds, or list more pairs of each patient")
    return best


def one_by_one(pairs: Sequence[PairFiles]) -> list[Fold]:
    """Leave out one pair after the other, and train on those that show none of its patients.

    Nothing is dropped, as `split_groups` must where pairs tie the patients together; it serves where training costs
    nothing. A pair that shares a patient with every other one cannot be judged and has no fold.
    """
    folds = []
    for pair in pairs:
        train = tuple(p for p in pairs if not set(p.patients) & set(pair.patients))
        if train:
            folds.append(Fold(train, (pair,), tuple(p for p in pairs if p is not pair and p not in train)))
    return folds


def connected_patients(pairs: Sequence[PairFiles]) -> list[tuple[str, ...]]:
    """Find the sets of patients that pairs tie together, each sorted, in the order of their first patient."""
    sets: list[set[str]] = []
    for pair in pairs:
        mine = set(pair.patients)
        for other in [s for s in sets if s & mine]:
            mine |= other
            sets.remove(other)
        sets.append(mine)
    return sorted(tuple(sorted(s)) for s in sets)


def _folds(pairs: Sequence[PairFiles], parts: Sequence[set[str]]) -> list[Fold]:
    folds = []
    for part in parts:
        test = tuple(p for p in pairs if part.issuperset(p.patients))
        train = tuple(p for p in pairs if part.isdisjoint(p.patients))
        dropped = tuple(p for p in pairs if p not in test and p not in train)
        folds.append(Fold(train, test, dropped))
    return folds


def cover_patients(pairs: Sequence[PairFiles], limit: int, seed: int = 0) -> list[PairFiles]:
    """Choose pairs one after the other, each time one whose patients were chosen least; at most so many.

    The order of the pairs does not matter, the seed draws among equals, and a larger limit only adds pairs.
    """
    listed = sorted(pairs, key=lambda p: p.id)
    left = [listed[k] for k in np.random.default_rng(seed).permutation(len(listed))]
    used: Counter[str] = Counter()
    chosen: list[PairFiles] = []
    while left and len(chosen) < limit:
        best = min(left, key=lambda p: (max(used[name] for name in p.patients), sum(used[n] for n in p.patients)))
        left.remove(best)
        used.update(best.patients)
        chosen.append(best)
    return chosen


def deal_patients(pairs: Sequence[PairFiles], parts: int, seed: int = 0) -> dict[str, int]:
    """Deal the patients of pairs into parts of like size, so that many pairs are within one part.

    Patients that pairs connect stay together where there are enough such sets and none is most of all; else each
    patient goes where most patients are that share a pair with it, as long as there is room. The seed draws among
    equals. Return the number of the part of each patient.
    """
    units = connected_patients(pairs)
    rng = np.random.default_rng(seed)
    largest, n = max(map(len, units)), sum(map(len, units))
    if len(units) < parts or largest > 2 * -(-n // parts):
        return _deal_one_by_one(pairs, parts, rng)
    order = sorted(rng.permutation(len(units)).tolist(), key=lambda k: -len(units[k]))
    sizes = [0] * parts
    out: dict[str, int] = {}
    for k in order:
        part = sizes.index(min(sizes))
        out.update(dict.fromkeys(units[k], part))
        sizes[part] += len(units[k])
    return out


def _deal_one_by_one(pairs: Sequence[PairFiles], parts: int, rng: np.random.Generator) -> dict[str, int]:
    """Deal patients in a random order, each to the part with most of its partners among those with room."""
    names = sorted({name for pair in pairs for name in pair.patients})
    room = -(-len(names) // parts)
    out: dict[str, int] = {}
    for k in rng.permutation(len(names)):
        name = names[k]
        partners = Counter(
            out[other] for p in pairs if name in p.patients for other in p.patients if other != name and other in out
        )
        sizes = Counter(out.values())
        free = [part for part in range(parts) if sizes[part] < room]
        out[name] = max(free, key=lambda part: (partners[part], -sizes[part]))
    return out
