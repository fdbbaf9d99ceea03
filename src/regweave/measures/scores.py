"""Measures of one registration: overlap, distances of surfaces, regularity, and the error of the inverse.

A structure counts where the fixed *and* the moving labels show it, the same set before and after registration. One that
warping loses counts 0: a mean that left it out would reward its loss. One that only one of the two label maps shows
has nothing to be compared with; it is named, but neither scored nor held against the registration.

The surface of a mask is its surface net (Gibson 1998). Each cell of eight neighbouring voxel centres that the border
crosses has one vertex, at the mean of the points where the cell's edges cross the border, halfway between voxels. The
four vertices around a crossed edge span two triangles. Distances are measured from the centre of a triangle of one
surface to the nearest point of the other, weighted by the area of the triangle: anisotropic voxels get no more weight
along their fine axis. Where a mask is cut by the end of the image, the cut is part of its surface.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import AfterValidator, ConfigDict, RootModel
from scipy import ndimage

from regweave import _core
from regweave._core import distance_to_surface, surface_net
from regweave.io.disk.records import Count, Measured, Number, Text, Whole, plain
from regweave.spatial.warp import defined
from regweave.types import Float32Array, Float64Array, LabelArray, LabelMap


def dice(a: LabelMap | LabelArray, b: LabelMap | LabelArray, labels: Sequence[int] | None = None) -> dict[int, float]:
    """Compute the Dice coefficient of each label, ``2 |A ∩ B| / (|A| + |B|)``, of two segmentations on one grid.

    By default all labels of either but 0 are compared. NaN where both lack the label, 0 where one does.
    """
    first, second = (of.data if isinstance(of, LabelMap) else np.asarray(of) for of in (a, b))
    if first.shape != second.shape:
        raise ValueError(f"segmentations have shapes {first.shape} and {second.shape}; resample one onto the other")
    if labels is None:
        labels = sorted({int(v) for v in (*np.unique(first), *np.unique(second)) if v != 0})
    scores = {}
    for label in map(int, labels):
        one, other = first == label, second == label
        total = int(one.sum()) + int(other.sum())
        scores[label] = 2.0 * int((one & other).sum()) / total if total else float("nan")
    return scores


MOST_POINTS = 10_000  # Triangles of a surface that are measured; of a larger one every n-th
ROUNDING_MM = 1e-9


@dataclass(frozen=True)
class SurfaceDistances:
    """Distances (N,) from one surface to another with the area of each, and the same (M,) back."""

    there: tuple[Float64Array, Float64Array]
    back: tuple[Float64Array, Float64Array]

    @property
    def hd95_mm(self) -> float:
        """The larger of the two directed 95th percentiles; NaN where a mask is empty."""
        if self.there[0].size == 0:
            return float("nan")
        percentiles = []
        for distances, areas in (self.there, self.back):  # the least value that 95 % of the area do not exceed
            order = np.argsort(distances, kind="stable")
            reached = np.cumsum(areas[order])
            percentiles.append(float(distances[order][np.searchsorted(reached, 0.95 * reached[-1])]))
        return max(percentiles)

    @property
    def mean_mm(self) -> float:
        """Mean distance to agreement: the mean of the two directed means; NaN where a mask is empty."""
        if self.there[0].size == 0:
            return float("nan")
        there, back = (np.average(d, weights=w) for d, w in (self.there, self.back))
        return float(there + back) / 2.0

    def dice(self, tolerance_mm: float) -> float:
        """Surface Dice: the share of both surfaces within a tolerance of the other (Nikolov 2021)."""
        if self.there[0].size == 0:
            return float("nan")
        near = sum(float(area[d <= tolerance_mm + ROUNDING_MM].sum()) for d, area in (self.there, self.back))
        return near / float(self.there[1].sum() + self.back[1].sum())


def surface_distances(a: ArrayLike, b: ArrayLike, spacing_mm: ArrayLike) -> SurfaceDistances:
    """Measure how far the surfaces of two masks (X, Y, Z) on one grid are apart; empty where a mask is empty."""
    first, second = np.asarray(a, dtype=bool), np.asarray(b, dtype=bool)
    if first.shape != second.shape:
        raise ValueError(f"masks have shapes {first.shape} and {second.shape}; resample one onto the other")
    if not (first.any() and second.any()):
        return SurfaceDistances(*((np.empty(0),) * 2,) * 2)
    box = ndimage.find_objects((first | second).astype(np.uint8))[0]
    spacing = np.asarray(spacing_mm, dtype=np.float64)
    nets = [surface_net(np.ascontiguousarray(m[box]).view(np.uint8), tuple(spacing)) for m in (first, second)]
    both = []
    for source, target in (nets, nets[::-1]):  # from the middle of each triangle (T, 3, 3), with its area
        chosen = source[:: -(-len(source) // MOST_POINTS)]
        area = np.linalg.norm(np.cross(chosen[:, 1] - chosen[:, 0], chosen[:, 2] - chosen[:, 0]), axis=1) / 2.0
        distance = distance_to_surface(chosen.mean(axis=1), target)
        both.append((np.where(distance < ROUNDING_MM, 0.0, distance), area))
    return SurfaceDistances(*both)


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


SMALLEST, LARGEST = 1e-9, 1e9
EXTREME = 5.0  # Tissue that grows or shrinks by more than this factor is called extreme
REGULARITY = (
    "folding_fraction", "extreme_fraction", "low_fraction", "high_fraction", "sdlogj", "sdlogj_l2r", "min_jacobian",
    "max_jacobian", "jacobian_p1", "jacobian_p99",
)  # fmt: skip
Regularity = Annotated[
    dict[str, Measured], AfterValidator(lambda given: {name: given.get(name, math.nan) for name in REGULARITY})
]
"""The numbers of `regularity`, each of them: NaN for what a record lacks."""
RoundTrip = Annotated[
    dict[str, Measured], AfterValidator(lambda given: {n: given.get(n, math.nan) for n in ("mean", "p95", "max")})
]
"""Summary of distances in millimetres."""


def regularity(jacobian: Float32Array, mask: ArrayLike | None = None) -> dict[str, float]:
    """Summarise Jacobian determinants (X, Y, Z), inside a mask where one is given; NaN without a voxel.

    ``folding_fraction`` is the share of determinants of zero or less. ``extreme_fraction`` is that below 1/5 or above
    5, the sum of ``low_fraction`` and ``high_fraction``. ``sdlogj`` is the standard deviation of ``log J``, where
    determinants below 1e-9, folds included, count as 1e-9. ``sdlogj_l2r`` is that of the Learn2Reg challenge,
    ``std(log(clip(J + 3, 1e-9, 1e9)))`` without a rim of two voxels; the two are not comparable. ``min_jacobian``,
    ``max_jacobian``, ``jacobian_p1`` and ``jacobian_p99`` are the ends and percentiles.
    """
    core, chosen = (slice(2, -2),) * 3, None if mask is None else np.asarray(mask, dtype=bool)
    inside = jacobian.ravel() if chosen is None else jacobian[chosen]
    inner = jacobian[core].ravel() if chosen is None else jacobian[core][chosen[core]]
    there = inside if inside.size else np.full(1, np.nan, dtype=np.float32)
    low, high = (float(np.mean(far)) if inside.size else np.nan for far in (there < 1 / EXTREME, there > EXTREME))
    numbers = {
        "folding_fraction": float(np.mean(inside <= 0)) if inside.size else math.nan, "extreme_fraction": low + high,
        "low_fraction": low, "high_fraction": high,
        "sdlogj": _core.log_spread(inside, 0.0, SMALLEST, LARGEST)[1] if inside.size else math.nan,
        "sdlogj_l2r": _core.log_spread(inner, 3.0, SMALLEST, LARGEST)[1] if inner.size else math.nan,
        "min_jacobian": float(there.min()), "max_jacobian": float(there.max()),
    }  # fmt: skip
    first, last = (float(p) for p in np.percentile(there, (1, 99)))
    return {**numbers, "jacobian_p1": first, "jacobian_p99": last}


ACCEPTABLE_MM = 0.1  # A voxel of the inverse with a larger residual is inexact
SHARE = 1e-3
VOXELS = 1.0
"""Above this share of inexact body voxels, or this 99th percentile in voxels, the inverse deserves a warning."""


@dataclass(frozen=True)
class InverseError:
    """Residual of a numerical inverse over the moving body, and error there and back over the fixed one."""

    inexact_voxels: Count  # Body voxels whose residual exceeds 0.1 mm
    body_voxels: Count
    largest_mm: Number
    voxel: tuple[Count, Count, Count]  # Voxel of the largest residual
    p99_mm: Measured = math.nan
    """99th percentile of the error there and back; NaN where no body voxel stays inside the moving image."""
    p99_voxels: Measured = math.nan  # The same, relative to the largest spacing

    @classmethod
    def of_residual(cls, residual_mm: Float32Array, body: NDArray[np.bool_]) -> InverseError:
        """Summarise the residual of each voxel of the moving grid inside the body."""
        inexact, largest, at = 0, 0.0, (0, 0, 0)
        for i, (inside, residual) in enumerate(zip(body, residual_mm, strict=True)):  # a copy may not fit
            plane = np.where(inside, residual, np.float32(0.0))
            inexact += int((plane > ACCEPTABLE_MM).sum())
            if plane.max() > largest:
                j, k = divmod(int(plane.argmax()), plane.shape[1])
                largest, at = float(plane.max()), (i, j, k)
        return cls(inexact, int(body.sum()), largest, at)

    def with_round_trip(
        self, errors_mm: Float32Array, fixed_body: NDArray[np.bool_], spacing_mm: float
    ) -> InverseError:
        """Add the error there and back on the fixed grid, over its body; ``spacing_mm`` is its largest spacing."""
        errors = defined(errors_mm[fixed_body])
        p99_mm = float(np.percentile(errors, 99, overwrite_input=True)) if errors.size else math.nan
        return replace(self, p99_mm=p99_mm, p99_voxels=p99_mm / spacing_mm)

    @property
    def share(self) -> float:
        """Inexact voxels as a share of the body."""
        return self.inexact_voxels / self.body_voxels if self.body_voxels else 0.0

    @property
    def notable(self) -> bool:
        """True if the inverse deserves a warning; an error that could not be measured does."""
        return self.share > SHARE or not self.p99_voxels <= VOXELS

    def words(self) -> str:
        """Describe how inexact the inverse is, and where."""
        place = f"voxel {self.voxel} of the moving image"
        if self.inexact_voxels:
            text = (
                f"the inverse transform is inexact at {self.inexact_voxels} voxels of the body ({self.share:.2%}), "
                f"at most {self.largest_mm:.2g} mm, near {place}"
            )
        else:
            text = "the inverse transform is exact at every voxel of the body"
        if np.isnan(self.p99_mm):
            return f"{text}; no voxel of the fixed body stays inside the moving image"
        return f"{text}; there and back the error is {self.p99_mm:.2g} mm at the 99th percentile"
