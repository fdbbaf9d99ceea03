"""Scores of one registration: which structures count, and their mean.

A structure counts where the fixed *and* the moving labels show it, the same set before and after registration. One that
warping loses counts 0: a mean that left it out would reward its loss. One that only one of the two label maps shows
has nothing to be compared with; it is named, but neither scored nor held against the registration.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict, RootModel
from scipy import ndimage

from regweave.io.disk.records import Measured, Text, Whole, plain
from regweave.measures.overlap import dice, surface_distances
from regweave.types import LabelMap

State = Literal["scored", "vanished", "no reference", "not in moving"]
STATES: Mapping[str, str] = {
    "scored": "in both label maps and in the warped labels",
    "vanished": "in both label maps, but lost by warping; its Dice is 0",
    "no reference": "in the moving labels alone: nothing to compare it with, not scored",
    "not in moving": "in the fixed labels alone: nothing to warp, not scored",
}
"""What became of a structure; the first two count."""
COUNTED = ("scored", "vanished")
When = Literal["dice_before", "dice_start", "dice_after"]
NAN = float("nan")
FEW = 65_535  # Labels up to this are looked up directly; larger ones are numbered first


@dataclass(frozen=True)
class StructureScore:
    """Dice coefficient, surface distances and volumes of one structure; NaN where there is nothing to measure."""

    label: Whole
    name: Text  # Its name, or the number where it has none
    state: State
    dice_before: Measured = NAN
    """Overlap with the fixed structure as loaded; `dice_start` after the start, `dice_after` after the deformation."""
    dice_after: Measured = NAN
    volume_fixed_ml: Measured = NAN
    volume_before_ml: Measured = NAN
    volume_after_ml: Measured = NAN
    hd95_mm: Measured = NAN
    """95 % Hausdorff distance after the deformation, where it was asked for; `assd_mm` is the mean distance."""
    assd_mm: Measured = NAN
    surface_dice_2mm: Measured = NAN
    """Share of both surfaces within 2 mm, or within the largest side of a voxel, of the other."""
    surface_dice_voxel: Measured = NAN
    hd95_start_mm: Measured = NAN
    assd_start_mm: Measured = NAN
    surface_dice_2mm_start: Measured = NAN
    surface_dice_voxel_start: Measured = NAN
    dice_start: Measured = NAN

    @property
    def counted(self) -> bool:
        """True if the structure is part of the mean."""
        return self.state in COUNTED

    def __post_init__(self) -> None:
        """Refuse a Dice of a structure that one of the label maps lacks."""
        if not self.counted and not all(map(math.isnan, (self.dice_before, self.dice_start, self.dice_after))):
            raise ValueError(f"a structure with the state '{self.state}' has no Dice")


TOLERANCE_MM = 2.0  # Tolerance of the surface Dice; about the spacing of slices


class PairScore(RootModel[tuple[StructureScore, ...]]):
    """Scores of all structures that either label map shows, in the order of their labels."""

    model_config = ConfigDict(frozen=True)
    root: tuple[StructureScore, ...] = ()

    @property
    def structures(self) -> tuple[StructureScore, ...]:
        """The scores."""
        return self.root

    def rows(self) -> list[dict[str, Any]]:
        """Return the scores as JSON values."""
        return [plain(row) for row in self.model_dump(mode="json")]

    @property
    def counted(self) -> tuple[StructureScore, ...]:
        """Structures of the mean."""
        return tuple(s for s in self.structures if s.counted)

    def among(self, labels: Collection[int], *, inside: bool) -> PairScore:
        """Return the scores of the structures that are among some labels, or of all others."""
        return PairScore(tuple(s for s in self.structures if (s.label in labels) == inside))

    def of(self, *states: str) -> tuple[StructureScore, ...]:
        """Return the structures in one of some states."""
        return tuple(s for s in self.structures if s.state in states)

    def mean(self, when: When = "dice_after") -> float:
        """Return the mean Dice coefficient over the structures that count; NaN where none does."""
        values = [getattr(s, when) for s in self.counted]
        return sum(values) / len(values) if values else NAN

    def means(self) -> dict[str, float]:
        """Return the means ``before`` (as loaded), after the ``start`` and ``after``; empty where none counts."""
        if not self.counted:
            return {}
        return {"before": self.mean("dice_before"), "start": self.mean("dice_start"), "after": self.mean("dice_after")}

    def with_surfaces(self, fixed: LabelMap, warped: LabelMap, start: LabelMap | None = None) -> PairScore:
        """Return the score with the distances of surfaces, for structures that both label maps show.

        ``start`` are the labels after the start: with them the distances after the start are measured too.
        """
        maps = {name: of for name, of in (("", warped), ("start", start)) if of is not None}
        boxes: dict[str, dict[int, tuple[slice, ...]]] = {}
        for name, of in {"fixed": fixed, **maps}.items():
            values = of.values()
            codes = of.data if max(values, default=0) <= FEW else np.searchsorted([0, *values], of.data)
            found = ndimage.find_objects(codes)
            numbers = values if codes is of.data else range(1, len(values) + 1)
            boxes[name] = {value: found[n - 1] for value, n in zip(values, numbers, strict=True)}
        spacing_mm, rows = fixed.geometry.spacing_mm, []
        for s in self.structures:
            measured: dict[str, float] = {}
            for name, labels in maps.items():
                if s.state == "scored" and s.label in boxes[name]:
                    pairs = zip(boxes["fixed"][s.label], boxes[name][s.label], strict=True)
                    box = tuple(slice(min(a.start, b.start), max(a.stop, b.stop)) for a, b in pairs)
                    one, two = (of.data[box] == s.label for of in (labels, fixed))
                    apart, when = surface_distances(one, two, spacing_mm), f"_{name}" if name else ""
                    measured |= {
                        f"hd95{when}_mm": apart.hd95_mm,
                        f"assd{when}_mm": apart.mean_mm,
                        f"surface_dice_2mm{when}": apart.dice(TOLERANCE_MM),
                        f"surface_dice_voxel{when}": apart.dice(float(spacing_mm.max())),
                    }
            rows.append(replace(s, **measured))  # type: ignore[arg-type]
        return PairScore(tuple(rows))


def score_labels(
    fixed: LabelMap, moving: LabelMap, start: LabelMap, warped: LabelMap, loaded: LabelMap | None = None
) -> PairScore:
    """Score the overlap of warped with fixed labels, structure by structure.

    ``fixed`` and ``moving`` are on their own grids; names of the fixed one win. The others are the moving labels on the
    fixed grid: after the ``start``, ``warped`` by the deformation, and as ``loaded``, by default the same as the start.
    """
    volumes: list[dict[int, float]] = []
    for labels in (fixed, moving, warped):
        voxel_mm3 = abs(float(np.linalg.det(labels.geometry.affine[:3, :3])))
        counted = zip(*np.unique(labels.data, return_counts=True), strict=True)
        volumes.append({int(v): int(n) * voxel_mm3 / 1000.0 for v, n in counted if v != 0})
    names = {**moving.names, **fixed.names}
    both = sorted(volumes[0].keys() & volumes[1].keys())
    begun, after = dice(start.data, fixed.data, both), dice(warped.data, fixed.data, both)
    before = begun if loaded is None else dice(loaded.data, fixed.data, both)
    rows = []
    for label in sorted(volumes[0].keys() | volumes[1].keys()):
        in_fixed, in_moving, in_warped = (label in of for of in volumes)
        if in_fixed and in_moving:
            state: State = "scored" if in_warped else "vanished"
        else:
            state = "no reference" if in_moving else "not in moving"
        sizes = [of.get(label, 0.0) for of in volumes]
        dices = {"dice_before": before, "dice_start": begun, "dice_after": after}
        overlaps = {name: of.get(label, NAN) for name, of in dices.items()}
        volumes_ml = dict(zip(("volume_fixed_ml", "volume_before_ml", "volume_after_ml"), sizes, strict=True))
        rows.append(StructureScore(label, names.get(label, str(label)), state, **overlaps, **volumes_ml))
    return PairScore(tuple(rows))
