"""Names of labels: JSON, TSV or ITK-SNAP files, and structures matched by normalised name or by number.

Numbers of labels mean nothing outside the file that holds them: two contouring systems number the same organs
differently. Where both sides name their structures, names decide.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import numpy as np

from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import parse_json, parse_rows, parse_table, read_text, require_file, shown
from regweave.types import LabelMap

LONGEST_MAP = 1_000_000  # Bytes of a map of names
SNAP_LINE = re.compile(r'^\s*(\d+)(?:\s+[\d.]+){6}\s+"([^"\n]*)"\s*$', re.MULTILINE | re.ASCII)
"""A label of ITK-SNAP: its value, colour, opacity, two switches and its name."""


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
    """Read new names of structures by their old ones: JSON ``{"old": "new"}``, or two columns; E107 for neither.

    Columns have a comma or a tab between them; a first line ``old``, ``new`` is their header.
    """
    text = read_text(path, LONGEST_MAP)
    try:
        if text.lstrip().startswith("{"):
            pairs = list(parse_json(text).items())
        else:
            rows = [row for row in parse_rows(text.splitlines(), "\t" if "\t" in text else ",") if any(row)]
            pairs = [(old, new) for old, new in rows[rows[:1] == [["old", "new"]] :]]
        names = {old.strip(): new.strip() for old, new in pairs}
        if not names or not all(names) or not all(names.values()):
            raise ValueError("it maps no name, or an empty one")
    except (ValueError, TypeError, AttributeError) as error:
        message = f"'{path}' is not a map of names ({type(error).__name__}: {error})"
        hint = 'write JSON {"old": "new"}, or a line "old,new" for each structure'
        raise UsageError("E107", message, hint) from error
    return names


def _read_json(path: Path) -> list[tuple[Any, Any]]:
    content = parse_json(read_text(path)).items()
    if all(isinstance(value, str) for _, value in content):
        return [(key, value) for key, value in content]
    if all(isinstance(value, int) and not isinstance(value, bool) for _, value in content):
        return [(value, key) for key, value in content]
    raise TypeError("neither names by value nor values by name")


def _read_snap(path: Path) -> list[tuple[Any, Any]]:
    found = SNAP_LINE.findall(read_text(path))
    if not found:
        raise ValueError('no line of the form: 1 255 0 0 1 1 1 "Liver"')
    return found


READERS: dict[str, Callable[[Path], list[tuple[Any, Any]]]] = {
    ".tsv": lambda path: [(row["index"], row["name"]) for row in parse_table(read_text(path), "\t")],
    ".txt": _read_snap,
    ".label": _read_snap,
}


def _value(found: Any) -> int:
    """Return a label value; `int` alone would take 1_0 for ten, and 1.5 and True for one."""
    if not isinstance(found, str | Integral) or isinstance(found, bool):
        raise TypeError(f"{shown(found)} is no label value")
    if isinstance(found, str) and re.fullmatch(r"\s*\d{1,20}\s*", found, re.ASCII) is None:
        raise ValueError(f"{shown(found)} is no label value")
    return int(found)


Names = Mapping[int, str]
WORDS = {
    "l": "left", "lt": "left", "r": "right", "rt": "right", "oesophagus": "esophagus",
    "haemorrhage": "hemorrhage", "grey": "gray",
}  # fmt: skip
"""Ways to write the same word."""
WHOLE = {
    "brstem": "brainstem", "brainstm": "brainstem", "cord": "spinalcord", "spinalcrd": "spinalcord",
    "myelon": "spinalcord", "bonemandible": "mandible", "mandibula": "mandible", "parotidgland": "parotid",
    "parotis": "parotid", "glandparotid": "parotid", "glndparotid": "parotid",
}  # fmt: skip
"""Names of one organ in planning systems and TG-263, their words joined, without the side."""
SIDES = ("left", "right")


def normalised(name: str) -> str:
    """Return a name in one spelling, without case and separators, its side first."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    words = [WORDS.get(word, word) for word in re.findall(r"[^\W_]+", spaced.casefold())]
    words = [part for word in words for part in re.sub(r"^(left|right)(?=\w{3})", r"\1 ", word).split()]
    sides = sorted(word for word in words if word in SIDES)
    joined = "".join(word for word in words if word not in SIDES)
    return " ".join([*sides, WHOLE.get(joined, joined)])


def real_names(names: Names, values: Iterable[int] | None = None) -> dict[int, str]:
    """Names that hold more than the number, of some values or of all; never that of the background."""
    kept = names.keys() if values is None else values
    found = {v: names[v] for v in kept if v != 0 and v in names}
    return {v: name for v, name in found.items() if normalised(name) not in {"", str(v)}}


@dataclass(frozen=True)
class StructureMatch:
    """Which structure of one list is which of another, and whether names or numbers decided.

    ``to`` has the value in the other list for each value that it has, ``unknown`` the values that it lacks.
    """

    by: Literal["name", "number"]
    to: Mapping[int, int]
    unknown: tuple[int, ...]

    def apply(self, labels: LabelMap) -> LabelMap:
        """Return the labels in the numbers of the other list; values that it lacks become background."""
        return _renumbered(labels, self.to)


def match_structures(labels: LabelMap, known: Names, subject: str, owner: str) -> StructureMatch:
    """Match the structures of a label map with the names of another list; names that are numbers count as none.

    ``subject`` and ``owner`` name the two sides in messages. Raises E130 where both sides have names and none agrees,
    or two labels have the name of one structure.
    """
    values = labels.values()
    ours, theirs = real_names(labels.names, values), real_names(known)
    if not ours or not theirs:
        to = {v: v for v in values if v in known and v != 0}
        return StructureMatch("number", to, tuple(v for v in values if v not in to))
    by_name = {normalised(name): value for value, name in theirs.items()}
    if len(by_name) < len(theirs):
        raise _contradiction("name one structure twice", ours, theirs, subject, owner)
    to = {v: by_name[normalised(name)] for v, name in ours.items() if normalised(name) in by_name}
    if not to or len(set(to.values())) < len(to):
        what = "name no structure in common" if not to else "name one structure twice"
        raise _contradiction(what, ours, theirs, subject, owner)
    if _same(to):  # the numbering is the same: labels without a name may go by it
        to |= {v: v for v in values if v not in ours and v in known and v not in to.values()}
    return StructureMatch("name", dict(sorted(to.items())), tuple(v for v in values if v not in to))


def in_numbering(labels: LabelMap, reference: Names, subject: str, owner: str) -> LabelMap:
    """Give structures the numbers that a reference has for their names.

    A structure that the reference does not name keeps its number, or gets a free one where the reference means
    another structure by it.
    """
    match = match_structures(labels, reference, subject, owner) if reference else None
    if match is None or match.by == "number":
        return labels
    to, taken = dict(match.to), set(reference)
    for value in match.unknown:
        free = value if value not in taken | set(to.values()) else max(taken | set(to.values()) | set(to)) + 1
        to[value] = free
    return _renumbered(labels, to)


def _same(to: Mapping[int, int]) -> bool:
    return all(a == b for a, b in to.items())


def _renumbered(labels: LabelMap, to: Mapping[int, int]) -> LabelMap:
    if _same(to) and set(labels.values()) <= {0, *to}:
        return labels
    out = np.zeros(labels.data.shape, dtype=np.min_scalar_type(max(to.values(), default=0)))
    for value, other in to.items():
        out[labels.data == value] = other
    return LabelMap(out, labels.geometry, {b: labels.names[a] for a, b in to.items() if a in labels.names})


def join_names(lists: Iterable[Names]) -> dict[int, str]:
    """Return one numbering of the structures of several lists: the first number of a name, or a free one."""
    out: dict[int, str] = {}
    known: set[str] = set()
    for names in lists:
        for value, name in sorted(real_names(names).items()):
            if normalised(name) not in known:
                known.add(normalised(name))
                out[value if value not in out else max(out) + 1] = name
    return out


def list_names(names: Names, values: Sequence[int] | None = None, most: int | None = None) -> str:
    """Print names by number, for messages: all, or the first of some values, which need not have a name."""
    values = sorted(names) if values is None else values
    shown = ", ".join(f"{value} {name}" if (name := names.get(value)) else str(value) for value in values[:most])
    return (f"{shown} and {len(values) - most} more" if most is not None and len(values) > most else shown) or "none"


def _contradiction(what: str, ours: Names, theirs: Names, subject: str, owner: str) -> RegweaveError:
    message = f"{subject} and {owner} {what}\n  {subject}: {list_names(ours)}\n  {owner}: {list_names(theirs)}"
    return RegweaveError(
        "E130", message, "give the labels that belong together, or correct their names with --label-names"
    )
