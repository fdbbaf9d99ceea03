"""What the label maps of a training list show, and which structures can be learned from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from regweave.errors import RegweaveError
from regweave.io.manifest import PairFiles
from regweave.types import Geometry, LabelMap
from regweave.workflows.inputs import Reading

SHOWN = 5
"""Pairs that a message names before it counts the rest."""


@dataclass(frozen=True)
class Seen:
    """Grids of the images of one pair, and the structures of its two label maps."""

    fixed: Geometry
    moving: Geometry
    shown: tuple[frozenset[int], frozenset[int]]

    @property
    def in_both(self) -> frozenset[int]:
        """Structures that a deformation can bring together."""
        return self.shown[0] & self.shown[1]


@dataclass(frozen=True)
class Survey:
    """What was found by pair id, why other pairs cannot be read, and the names of the structures."""

    seen: Mapping[str, Seen]
    failed: Mapping[str, RegweaveError]
    names: Mapping[int, str]

    def structures(self) -> list[int]:
        """Labels of all maps, ascending."""
        return sorted({c for s in self.seen.values() for shown in s.shown for c in shown})

    def lacking(self, classes: Sequence[int]) -> dict[str, list[int]]:
        """Structures that one of the maps of a pair does not show, by id of the pairs that lack any."""
        found = {name: [c for c in classes if c not in s.in_both] for name, s in self.seen.items()}
        return {name: missing for name, missing in found.items() if missing}


def survey(pairs: Sequence[PairFiles], reading: Reading) -> Survey:
    """Read every file of a list once; pairs with a file that cannot be used are named, not fatal."""
    seen, failed = {}, {}
    names: dict[int, str] = {}

    @cache
    def look(image: Path, labels: Path) -> tuple[Geometry, frozenset[int]]:
        geometry = reading.image(image).geometry
        found = reading.labels(labels, geometry)
        assert isinstance(found, LabelMap)
        values = frozenset(found.values())
        for value in sorted(values & found.names.keys()):
            names.setdefault(value, found.names[value])
        return geometry, values

    for pair in pairs:
        try:
            (fixed, a), (moving, b) = look(pair.fixed, pair.fixed_labels), look(pair.moving, pair.moving_labels)
            seen[pair.id] = Seen(fixed, moving, (a, b))
        except RegweaveError as error:
            failed[pair.id] = error
    return Survey(seen, failed, names)


def choose_structures(found: Survey, wanted: Sequence[int] | None) -> tuple[int, ...]:
    """Return the structures to learn; all label maps must show the same ones, or the user must choose.

    Raises
    ------
    RegweaveError
        E136 where label maps differ and nothing is chosen, E131 where no pair shows a structure in both maps.
    """
    union = found.structures()
    chosen = tuple(union) if wanted is None else tuple(sorted(set(wanted)))
    lacking = found.lacking(chosen)
    if wanted is None and lacking:
        common = [c for c in union if not any(c in missing for missing in lacking.values())]
        odd = ", ".join([*lacking][:SHOWN]) + (f" and {len(lacking) - SHOWN} more" if len(lacking) > SHOWN else "")
        raise RegweaveError(
            "E136",
            f"label maps differ: structures {union} in all, but not in both maps of {odd}",
            f"choose with --classes, for example {','.join(map(str, common)) or 'those that matter'}",
        )
    empty = [c for c in chosen if all(c not in s.in_both for s in found.seen.values())]
    if empty or not chosen:
        what = f"structures {empty} are" if chosen else "all structures are"
        raise RegweaveError("E131", f"{what} empty in every pair", f"choose among {union}")
    return chosen
