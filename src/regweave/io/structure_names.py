"""Matching of structures by normalised name, and by number where there are no names.

Numbers of labels mean nothing outside the file that holds them: two contouring systems number the same organs
differently. Where both sides name their structures, names decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from regweave.errors import RegweaveError
from regweave.types import LabelMap

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
"""What planning systems and TG-263 call the same organ, as it stands after joining its words; the side is apart."""
SIDES = ("left", "right")


def normalised(name: str) -> str:
    """Return a name in one spelling, whatever case and separators it uses, its side first.

    Examples
    --------
    >>> normalised("LeftParotid") == normalised("parotid_L") == normalised("PAROTID, left") == normalised("leftparotid")
    True
    >>> normalised("BRSTEM"), normalised("Cord"), normalised("Bone_Mandible")
    ('brainstem', 'spinalcord', 'mandible')
    >>> normalised("BrainStem") == normalised("brainstem"), normalised("Femur_L") == normalised("Femur_R")
    (True, False)
    """
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    words = [WORDS.get(word, word) for word in re.findall(r"[^\W_]+", spaced.casefold())]
    words = [part for word in words for part in re.sub(r"^(left|right)(?=\w{3})", r"\1 ", word).split()]
    sides = sorted(word for word in words if word in SIDES)
    joined = "".join(word for word in words if word not in SIDES)
    return " ".join([*sides, WHOLE.get(joined, joined)])


def real_names(names: Names, values: Iterable[int] | None = None) -> dict[int, str]:
    """Names that say more than the number, of some values or of all; never that of the background."""
    kept = names.keys() if values is None else values
    found = {v: names[v] for v in kept if v != 0 and v in names}
    return {v: name for v, name in found.items() if normalised(name) not in {"", str(v)}}


@dataclass(frozen=True)
class StructureMatch:
    """Which structure of one list is which of another.

    Parameters
    ----------
    by : "name" or "number"
        What decided.
    to : mapping
        Value in the other list for each value that it knows.
    unknown : tuple of ints
        Values that it does not know.
    """

    by: Literal["name", "number"]
    to: Mapping[int, int]
    unknown: tuple[int, ...]

    def apply(self, labels: LabelMap) -> LabelMap:
        """Return the labels in the numbers of the other list; what it does not know becomes background."""
        return labels if not self.unknown and _same(self.to) else _renumbered(labels, self.to)


def match_structures(labels: LabelMap, known: Names, subject: str, owner: str) -> StructureMatch:
    """Match the structures of a label map with those that something else knows.

    Parameters
    ----------
    labels : LabelMap
        Values that occur, and their names.
    known : mapping
        Names by value, the background left out or not; names that are numbers count as none.
    subject, owner : str
        How messages call the two sides.

    Raises
    ------
    RegweaveError
        E130 where both sides have names and none agrees, or two labels bear the name of one structure.
    """
    values = labels.values()
    ours, theirs = real_names(labels.names, values), real_names(known)
    if not ours or not theirs:
        to = {v: v for v in values if v in known and v != 0}
        return StructureMatch("number", to, tuple(v for v in values if v not in to))
    by_name = {normalised(name): value for value, name in theirs.items()}
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
    return labels if _same(to) else _renumbered(labels, to)


def _same(to: Mapping[int, int]) -> bool:
    return all(a == b for a, b in to.items())


def _renumbered(labels: LabelMap, to: Mapping[int, int]) -> LabelMap:
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


def list_names(names: Names) -> str:
    """Print names by number, for messages.

    Examples
    --------
    >>> list_names({2: "liver", 1: "spleen"})
    '1 spleen, 2 liver'
    """
    return ", ".join(f"{value} {name}" for value, name in sorted(names.items())) or "none"


def _contradiction(what: str, ours: Names, theirs: Names, subject: str, owner: str) -> RegweaveError:
    return RegweaveError(
        "E130",
        f"{subject} and {owner} {what}\n  {subject}: {list_names(ours)}\n  {owner}: {list_names(theirs)}",
        "give the labels that belong together, or correct their names with --label-names",
    )
