"""Scan of a training list: the structures in its label maps, and which of them can be learned."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from regweave.config.settings import BANKS
from regweave.errors import RegweaveError
from regweave.io.modality import BankName, Stated, bank_of
from regweave.jobs.table import PairFiles
from regweave.model.domain import Domain, ImageFacts
from regweave.run.read import Reading
from regweave.types import Geometry, LabelMap, Modality

SHOWN = 5  # pairs that a message names before it counts the rest


@dataclass(frozen=True)
class PairContents:
    """Grids, structures and bank of one pair."""

    fixed: Geometry
    moving: Geometry
    shown: tuple[frozenset[int], frozenset[int]]
    bank: BankName
    facts: tuple[ImageFacts, ImageFacts]  # what a model records of both images

    @property
    def in_both(self) -> frozenset[int]:
        """Structures that a deformation can bring together."""
        return self.shown[0] & self.shown[1]


@dataclass(frozen=True)
class DatasetScan:
    """Structures found by pair id, why other pairs cannot be read, and the names of the structures."""

    contents: Mapping[str, PairContents]
    failed: Mapping[str, RegweaveError]
    names: Mapping[int, str]

    def structures(self) -> list[int]:
        """Labels of all maps, ascending."""
        return sorted({c for s in self.contents.values() for shown in s.shown for c in shown})

    def lacking(self, classes: Sequence[int]) -> dict[str, list[int]]:
        """Structures that one of the maps of a pair does not show, by id of the pairs that lack any."""
        found = {name: [c for c in classes if c not in s.in_both] for name, s in self.contents.items()}
        return {name: missing for name, missing in found.items() if missing}


def scan(pairs: Sequence[PairFiles], reading: Reading) -> DatasetScan:
    """Read every file of a list once; pairs with a file that cannot be used are named, not fatal."""
    seen, failed = {}, {}
    names: dict[int, str] = {}

    @cache
    def look(image: Path, labels: Path, stated: Stated) -> tuple[Geometry, frozenset[int], Modality, ImageFacts]:
        volume = reading.image(image, stated)
        found = reading.labels(labels, volume.geometry)
        assert volume.modality is not None
        assert isinstance(found, LabelMap)
        values = frozenset(found.values())
        for value in sorted(values & found.names.keys()):
            names.setdefault(value, found.names[value])
        return volume.geometry, values, volume.modality, ImageFacts.of(volume, found)

    for pair in pairs:
        try:
            fixed, a, of_fixed, one = look(pair.fixed, pair.fixed_labels, reading.fixed_modality)
            moving, b, of_moving, other = look(pair.moving, pair.moving_labels, reading.moving_modality)
            for mask, grid in ((pair.fixed_mask, fixed), (pair.moving_mask, moving)):
                reading.mask(mask, grid)
            seen[pair.id] = PairContents(fixed, moving, (a, b), bank_of(of_fixed, of_moving), (one, other))
        except RegweaveError as error:
            failed[pair.id] = error
    return DatasetScan(seen, failed, names)


def domain_of(found: DatasetScan, ids: Sequence[str], classes: Sequence[int], modality: BankName) -> Domain | None:
    """Return the domain of the images of some pairs; None for two modalities, which one domain does not describe."""
    if modality == "multi":
        return None
    facts = {id(one): one for name in ids for one in found.contents[name].facts}.values()
    kept = [replace(f, volumes_ml={c: v for c, v in f.volumes_ml.items() if c in classes}) for f in facts]
    return Domain.over(kept, modality)


def choose_bank(found: DatasetScan) -> BankName:
    """Return the bank that compares the images of every pair, or refuse a list of several kinds (E172)."""
    kinds: dict[BankName, list[str]] = {}
    for name, seen in found.contents.items():
        kinds.setdefault(seen.bank, []).append(name)
    if len(kinds) > 1:
        listed = "; ".join(f"{BANKS[kind]}: {', '.join(ids[:SHOWN])}" for kind, ids in sorted(kinds.items()))
        raise RegweaveError(
            "E172",
            f"the pairs of the list are not of one kind ({listed})",
            "train a model for each kind, or state what the images are with fixed_modality and moving_modality",
        )
    return next(iter(kinds))


def choose_structures(
    found: DatasetScan, wanted: Sequence[int] | None, withheld: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return the structures to learn; all label maps must show the same ones, or the user must choose.

    Raises E136 where label maps differ and nothing is chosen, E131 where no pair shows a structure in both maps, or no
    label map one that is to be withheld.
    """
    strange = sorted(set(withheld) - set(found.structures()))
    if strange:
        message = f"structures {strange} are to be withheld and stand in no label map"
        raise RegweaveError("E131", message, f"choose among {found.structures()}")
    union = [c for c in found.structures() if c not in withheld]
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
    empty = [c for c in chosen if all(c not in s.in_both for s in found.contents.values())]
    if empty or not chosen:
        what = f"structures {empty} are" if chosen else "all structures are"
        raise RegweaveError("E131", f"{what} empty in every pair", f"choose among {union}")
    return chosen
