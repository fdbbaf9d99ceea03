"""Scores of one registration: which structures count, and their mean.

A structure counts where the fixed *and* the moving labels show it, the same set before and after registration. One that
warping loses counts 0: a mean that left it out would reward its loss. One that only one of the two label maps shows
has nothing to be compared with; it is named, but neither scored nor held against the registration.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy import ndimage

from regweave.measures.overlap import SurfaceDistances, dice, surface_distances
from regweave.types import Float64Array, LabelMap

State = Literal["scored", "vanished", "no reference", "not in moving", "unknown"]
STATES: Mapping[str, str] = {
    "scored": "in both label maps and in the warped labels",
    "vanished": "in both label maps, but lost by warping; its Dice is 0",
    "no reference": "in the moving labels alone: nothing to compare it with, not scored",
    "not in moving": "in the fixed labels alone: nothing to warp, not scored",
    "unknown": "an old record that does not say which label map lacks it, not scored",
}
"""What became of a structure; the first two count."""
COUNTED = ("scored", "vanished")
When = Literal["dice_before", "dice_start", "dice_after"]
NAN = float("nan")
FEW = 65_535
"""Labels up to this are looked up as they are; larger ones are numbered first."""


@dataclass(frozen=True)
class StructureScore:
    """Dice coefficient, surface distances and volumes of one structure; NaN where there is nothing to measure.

    Parameters
    ----------
    label : int
        Value in the label maps.
    name : str
        Its name, or the number where it has none.
    state : str
        One of `STATES`.
    dice_before, dice_start, dice_after : float
        Overlap with the fixed structure: as loaded, after the start, and after the deformation; NaN where it does not
        count.
    volume_fixed_ml, volume_before_ml, volume_after_ml : float
        Volume in the fixed, the moving and the warped labels.
    hd95_mm, assd_mm : float
        95 % Hausdorff distance and mean distance to agreement of the surfaces after the deformation, where they were
        asked for.
    surface_dice_2mm, surface_dice_voxel : float
        Share of both surfaces that lies within 2 mm, and within the largest side of a voxel, of the other.
    hd95_start_mm, assd_start_mm, surface_dice_2mm_start, surface_dice_voxel_start : float
        The same after the start.
    """

    label: int
    name: str
    state: State
    dice_before: float = NAN
    dice_after: float = NAN
    volume_fixed_ml: float = NAN
    volume_before_ml: float = NAN
    volume_after_ml: float = NAN
    hd95_mm: float = NAN
    assd_mm: float = NAN
    surface_dice_2mm: float = NAN
    surface_dice_voxel: float = NAN
    hd95_start_mm: float = NAN
    assd_start_mm: float = NAN
    surface_dice_2mm_start: float = NAN
    surface_dice_voxel_start: float = NAN
    dice_start: float = NAN

    @property
    def counted(self) -> bool:
        """True if the structure is part of the mean."""
        return self.state in COUNTED

    def record(self) -> dict[str, Any]:
        """Return the score as JSON values: what was not measured is None."""
        numbers = {key: _plain(getattr(self, key)) for key in NUMBERS}
        return {"label": self.label, "name": self.name, "state": self.state, **numbers}

    @classmethod
    def read(cls, label: int, row: Mapping[str, Any]) -> StructureScore:
        """Return the score that `record` wrote; the state of an older record is told from its numbers."""
        numbers = {key: _number(row.get(key)) for key in NUMBERS}
        found = row.get("state")
        state: Any = found if found in STATES else _old_state(row, numbers)
        score = cls(label, str(row.get("name", label)), state, **numbers)
        return score if score.counted else replace(score, dice_before=NAN, dice_start=NAN, dice_after=NAN)


NUMBERS = (
    "dice_before", "dice_start", "dice_after", "hd95_mm", "assd_mm", "surface_dice_2mm", "surface_dice_voxel",
    "hd95_start_mm", "assd_start_mm", "surface_dice_2mm_start", "surface_dice_voxel_start", "volume_fixed_ml",
    "volume_before_ml", "volume_after_ml",
)  # fmt: skip
TOLERANCE_MM = 2.0
"""Tolerance of the surface Dice; about the spacing of slices."""


@dataclass(frozen=True)
class PairScore:
    """Scores of all structures that either label map shows, in the order of their labels."""

    structures: tuple[StructureScore, ...] = ()

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
        """Return the mean Dice coefficient over the structures that count; NaN where none does.

        Examples
        --------
        >>> scored = StructureScore(1, "cord", "scored", 0.5, 0.8)
        >>> PairScore((scored, StructureScore(2, "lens", "vanished", 0.2, 0.0))).mean()
        0.4
        >>> PairScore((scored, StructureScore(3, "node", "no reference"))).mean("dice_before")
        0.5
        """
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
        boxes = {name: _boxes(of) for name, of in {"fixed": fixed, **maps}.items()}

        def measured(s: StructureScore) -> StructureScore:
            if s.state != "scored":
                return s
            for name, labels in maps.items():
                if s.label in boxes[name]:
                    box = _around(boxes["fixed"][s.label], boxes[name][s.label])
                    one, two = (of.data[box] == s.label for of in (labels, fixed))
                    s = replace(s, **_surface_numbers(surface_distances(one, two, spacing_mm), name, spacing_mm))
            return s

        spacing_mm = fixed.geometry.spacing_mm
        return PairScore(tuple(map(measured, self.structures)))

    @classmethod
    def read(cls, rows: Iterable[tuple[int, Mapping[str, Any]]]) -> PairScore:
        """Return the score of rows by label, as `StructureScore.record` writes them."""
        return cls(tuple(StructureScore.read(label, row) for label, row in rows))


def score_labels(
    fixed: LabelMap, moving: LabelMap, start: LabelMap, warped: LabelMap, loaded: LabelMap | None = None
) -> PairScore:
    """Score the overlap of warped with fixed labels, structure by structure.

    Parameters
    ----------
    fixed, moving : LabelMap
        The two segmentations, each on its own grid; names of the fixed one win.
    start, warped : LabelMap
        Moving labels on the fixed grid, after the start and after the deformation.
    loaded : LabelMap, optional
        The same as loaded, by the headers alone; by default the start.

    Returns
    -------
    PairScore
    """
    volumes = [_volumes_ml(labels) for labels in (fixed, moving, warped)]
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
        found = {name: of.get(label, NAN) for name, of in dices.items()}
        volumes_ml = dict(zip(("volume_fixed_ml", "volume_before_ml", "volume_after_ml"), sizes, strict=True))
        rows.append(StructureScore(label, names.get(label, str(label)), state, **found, **volumes_ml))
    return PairScore(tuple(rows))


def _surface_numbers(found: SurfaceDistances, when: str, spacing_mm: Float64Array) -> dict[str, Any]:
    numbers = {"hd95_mm": found.hd95_mm, "assd_mm": found.mean_mm}
    if when:
        numbers = {key.replace("_mm", f"_{when}_mm"): value for key, value in numbers.items()}
    suffix = f"_{when}" if when else ""
    dices = {"2mm": found.dice(TOLERANCE_MM), "voxel": found.dice(float(spacing_mm.max()))}
    return numbers | {f"surface_dice_{name}{suffix}": value for name, value in dices.items()}


def _boxes(labels: LabelMap) -> dict[int, tuple[slice, ...]]:
    """Return the box of each structure of a label map."""
    values = labels.values()
    codes = labels.data if max(values, default=0) <= FEW else np.searchsorted([0, *values], labels.data)
    found = ndimage.find_objects(codes)
    numbers = values if codes is labels.data else range(1, len(values) + 1)
    return {value: found[n - 1] for value, n in zip(values, numbers, strict=True)}


def _around(one: tuple[slice, ...], other: tuple[slice, ...]) -> tuple[slice, ...]:
    """Return the box around two boxes."""
    ends = zip(one, other, strict=True)
    return tuple(slice(min(a.start, b.start), max(a.stop, b.stop)) for a, b in ends)


def _volumes_ml(labels: LabelMap) -> dict[int, float]:
    voxel_mm3 = abs(float(np.linalg.det(labels.geometry.affine[:3, :3])))
    values, counts = np.unique(labels.data, return_counts=True)
    return {int(v): int(n) * voxel_mm3 / 1000.0 for v, n in zip(values, counts, strict=True) if v != 0}


def _old_state(row: Mapping[str, Any], numbers: Mapping[str, float]) -> State:
    """Tell the state from volumes, where a record of before version 2 has them, or from what was called missing."""
    fixed, moving, warped = (numbers[f"volume_{of}_ml"] for of in ("fixed", "before", "after"))
    if not any(map(math.isnan, (fixed, moving, warped))):
        if fixed == 0 or moving == 0:
            return "no reference" if fixed == 0 else "not in moving"
        return "vanished" if warped == 0 else "scored"
    if row.get("missing") or math.isnan(numbers["dice_after"]):
        # An overlap at the start shows that both label maps have it.
        return "vanished" if numbers["dice_before"] > 0 and numbers["dice_after"] == 0 else "unknown"
    return "scored"


def _number(value: object) -> float:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known else NAN  # type: ignore[arg-type]


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
