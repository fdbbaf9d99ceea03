"""Quality assurance of propagated structures: numbers by structure and of the whole, flags, kinds of test."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.clinic.scans import Scan, box_round
from regweave.clinic.start import Start, correlation, missing_ends, thinned
from regweave.contours.carry import carry
from regweave.contours.regions import outlines, overlap_ml, region_of, volume_ml
from regweave.contours.shape import Shape, shape_of
from regweave.io.dicom.series import Series
from regweave.io.geometry import overlap_fraction
from regweave.measures.propagation import DONE_HERE, PropagatedStructure, TestKind, WholePair
from regweave.measures.scores import PairScore
from regweave.measures.verdict import ANOTHER_PATIENT, STRUCTURE_RULES, Rules, judge, structure_number
from regweave.run.result import Result
from regweave.spatial.deformation import determinant
from regweave.spatial.rigid import rigid_fit
from regweave.spatial.warp import warp_points
from regweave.types import Float32Array, Float64Array, Structure, Transform

MOST_POINTS = 4000  # Points of a structure at which the inverse is tested
MOST_BOTH_WAYS = 100_000
KNOT_MM = 4.0  # Step at which a transform is sampled to find what two scans share
ON_SLICE_MM = 0.05
MOST_SAMPLES = 20_000  # Points inside a structure that give the part of it that today's scan shows
AT_END, AT_RIM = "cut by the scan end", "cut by the field of view"
"""States of a structure that today's scan shows in part; they are no alarm."""
LEAST_CUT = 1.0
"""A structure is cut where more than this share of the plan's contour, in percent, lies beyond today's scan."""
LEAST_PLANES = 3  # Volumes of fewer planes are not compared where a structure is cut: half a slice is too much of them
BY_EYE = "the page shows it; a person must look"
TESTS = {
    "A": ("registered images looked at: blend, curtain, checkerboard, difference", BY_EYE),
    "B": ("deformation looked at: grid and Jacobian map", BY_EYE),
    "C": ("contours overlaid on the images", BY_EYE),
    "D": ("overlap and distance of contours against drawn ones",
          "not done: there are no drawn contours on today's scan"),
    "E": ("landmarks: target registration error", "not done: no landmarks were given"),
    "F": ("Jacobian determinant", DONE_HERE),
    "G": ("other numbers of the deformation: displacement by structure", DONE_HERE),
    "H": ("consistency: there and back",
          "in part: the inverse of this transform alone; no registration was run the other way (--both-ways)"),
    "I": ("digital phantoms with a known deformation", "not done here: `regweave clinic commission`"),
    "J": ("end to end with a physical phantom", "not done"),
}  # fmt: skip
"""Kinds of test of the UK survey, table 1 (doi 10.1259/bjr.20210001), and what a propagation does of each."""
BOTH_WAYS_DONE = f"{DONE_HERE}: a second registration was run the other way, and the two were joined"


@dataclass(frozen=True)
class Pair:
    """Both scans, and the transform from today to the plan with its inverse."""

    plan: Scan
    today: Scan
    transform: Transform
    inverse: Transform

    @cached_property
    def jacobian(self) -> Float32Array:
        """Determinants of the field, computed once for all structures."""
        return determinant(self.transform.field)


def structure_row(shape: Shape, carried: Structure, pair: Pair, note: str = "") -> PropagatedStructure:
    """Measure one propagated structure, before it is flagged; ``note`` is a remark for the reader."""
    planned = shape.structure
    plan_ml, today_ml = volume_ml(planned, pair.plan.series), volume_ml(carried, pair.today.series)
    planes, (state, outside, pushed) = len({c.image for c in carried.contours}), _reach(planned, pair)
    share, centre = _shown_part(shape, pair)
    shown_ml = plan_ml * share if state else plan_ml
    compared = shown_ml > 0 and today_ml > 0 and (planes >= LEAST_PLANES or not state)
    return PropagatedStructure(
        number=planned.number, name=planned.name, type=planned.kind, note=note, flag="look", reasons=(),
        volume_plan_ml=plan_ml, volume_today_ml=today_ml,
        volume_change_percent=100 * (today_ml / shown_ml - 1) if compared else None,
        planes=planes, points=len(carried.points), state=state, outside_percent=outside, pushed_percent=pushed,
        **_inside_numbers(shape, carried, pair, centre),
    )  # fmt: skip


def _reach(planned: Structure, pair: Pair) -> tuple[str, float | None, float | None]:
    """Return how the limits of today's scan cut a structure, and the shares outside and pushed out in percent."""
    points = planned.drawn_mm
    if not len(points):
        return "", None, None
    points = points[:: max(1, len(points) // MOST_POINTS)]
    ends, aside = _beyond(warp_points(points, pair.inverse), pair.today)
    start = np.linalg.inv(pair.transform.affine)
    outside = ends | aside
    before = np.logical_or(*_beyond(points @ start[:3, :3].T + start[:3, 3], pair.today))
    share = 100 * float(outside.mean())
    state = "" if share <= LEAST_CUT else AT_END if ends.sum() >= (aside & ~ends).sum() else AT_RIM
    return state, share, 100 * float((outside & ~before).mean())


def _beyond(places_mm: Float64Array, today: Scan) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Mark the places beyond the first or last slice of today, and those beside the measured pixels.

    The outer half of a voxel counts as inside. A field of view that cuts the patient limits the measured pixels.
    """
    grid = today.series.image.geometry
    index = grid.index(places_mm)
    outside = (index < -0.5) | (index > np.array(grid.shape) - 0.5)
    aside = outside[:, :2].any(axis=1)
    if today.seen is not None:
        x, y = np.clip(np.rint(index[:, :2]).astype(int), 0, np.array(grid.shape[:2]) - 1).T
        aside |= ~today.seen[x, y]
    return np.asarray(outside[:, 2]), np.asarray(aside)


def outside_share(planned: Structure, pair: Pair) -> float:
    """Share of the plan's outline points outside today's scan."""
    return (_reach(planned, pair)[1] or 0.0) / 100


def _shown_part(shape: Shape, pair: Pair) -> tuple[float, Float64Array]:
    """Return the share of a structure's volume that today's slices cover, and the centre of what is registered, LPS."""
    drawn = np.concatenate([c.points_mm for c in shape.structure.contours] or [np.zeros((1, 3))]).mean(axis=0)
    inside = np.flatnonzero(shape.distance < 0)
    if not len(inside):
        return 1.0, drawn
    inside = inside[:: max(1, len(inside) // MOST_SAMPLES)]
    k, v, u = np.unravel_index(inside, shape.distance.shape)
    gaps = np.gradient(shape.along_mm) if len(shape.along_mm) > 1 else np.ones(1)
    depth = shape.along_mm[k] + gaps[k] * ((np.arange(len(k)) % 8) - 3.5) / 8  # places spread through each slice
    grid = shape.grid
    points = (
        np.outer(shape.origin_mm[0] + u * shape.step_mm[0], grid.row)
        + np.outer(shape.origin_mm[1] + v * shape.step_mm[1], grid.column)
        + np.outer(depth, grid.normal)
    )
    there = warp_points(points, pair.inverse)
    covered, registered = (
        ((index >= -0.5) & (index <= np.array(one.shape) - 0.5)).all(axis=1)
        for one in (pair.today.series.image.geometry, pair.transform.field.geometry)
        for index in (one.index(there),)
    )
    weight = gaps[k]
    share = float(weight[covered].sum() / weight.sum())
    return share, np.average(points[registered], axis=0, weights=weight[registered]) if registered.any() else drawn


def _inside_numbers(shape: Shape, carried: Structure, pair: Pair, centre: Float64Array) -> dict[str, Any]:
    """Measure the deformation at the voxels inside a structure; empty where there are none."""
    if not carried.contours or not len(shape.along_mm):
        return _numbers_of_points(carried.points, pair)
    grid = pair.transform.field.geometry
    if (box := box_round(np.concatenate([c.points_mm for c in carried.contours]), grid)) is None:
        return {}
    voxels, points = box
    there = warp_points(points, pair.transform)
    distance = shape.at(there)
    inside = distance < 0
    if not inside.any():  # smaller than a voxel: the nearest one is measured
        inside = np.arange(len(distance)) == int(distance.argmin())
    field = pair.transform.field.data[(slice(None), *voxels)].reshape(3, -1)[:, inside]
    length = np.sqrt((field.astype(np.float64) ** 2).sum(axis=0))
    jacobian = pair.jacobian[voxels].ravel()[inside]
    some = np.flatnonzero(inside)[:: max(1, int(inside.sum()) // MOST_POINTS)]
    back = np.linalg.norm(warp_points(there[some], pair.inverse) - points[some], axis=1)
    centroid = points[inside].mean(axis=0)
    start = pair.transform.affine  # the centroid moves by the start alone: its shift is that of the structure
    return {
        "centroid_shift_mm": float(np.linalg.norm(start[:3, :3] @ centroid + start[:3, 3] - centre)),
        "displacement_mean_mm": float(length.mean()), "displacement_max_mm": float(length.max()),
        "jacobian_least": float(jacobian.min()), "jacobian_largest": float(jacobian.max()),
        "inverse_p95_mm": float(np.percentile(back, 95)),
    }  # fmt: skip


def _numbers_of_points(points: Float64Array, pair: Pair) -> dict[str, Any]:
    """Measure a structure of points alone, at their places of today."""
    if not len(points):
        return {}
    there = warp_points(points, pair.transform)
    length = np.linalg.norm(warp_points(points, Transform(pair.transform.field)) - points, axis=1)
    back = np.linalg.norm(warp_points(there, pair.inverse) - points, axis=1)
    return {
        "displacement_mean_mm": float(length.mean()), "displacement_max_mm": float(length.max()),
        "inverse_p95_mm": float(np.percentile(back, 95)),
    }  # fmt: skip


def outline_row(planned: Structure, drawn: Structure, pair: Pair, note: str) -> PropagatedStructure:
    """Measure an outline found in today's scan, against the plan's outline carried there.

    Both count only where the two scans overlap: ``outline_dice`` is their Dice there, and ``volume_change_percent`` the
    difference of their volumes.
    """
    plan, today = pair.plan.series, pair.today.series
    shape = shape_of(planned, plan)
    carried = carry(shape, pair.transform, today)
    along = np.array([plan.slices[c.image].along_mm for c in planned.contours if c.image is not None])
    shown = _between_slices(carried, drawn, pair, (float(along.min()), float(along.max())))
    one, other, both = overlap_ml(carried, drawn, today, shown).sum(axis=0).tolist()
    row = structure_row(shape, drawn, pair, note).model_copy(
        update={"found_today": True, "pushed_percent": None, "volume_change_percent": None}
    )
    if one <= 0 or other <= 0:
        why = "not compared with the plan's outline: the scans share no slice of it"
        return row.model_copy(update={"note": f"{note}; {why}"})
    dice = 2 * both / (one + other)
    compared = f"Dice {dice:.3f} with the plan's outline carried here, to which the volume change refers"
    return row.model_copy(
        update={
            "volume_change_percent": 100 * (other / one - 1), "outline_dice": dice, "note": f"{note}; {compared}"
        }
    )  # fmt: skip


def _between_slices(carried: Structure, drawn: Structure, pair: Pair, limits: tuple[float, float]) -> dict[int, Any]:
    """Return the regions of today's slices between two positions along the plan's slices."""
    grid, slices, shown = pair.today.series.grid, pair.today.series.slices, {}
    points = np.concatenate([c.points_mm for one in (carried, drawn) for c in one.contours])
    ends = [(at.min() - KNOT_MM, at.max() + KNOT_MM) for at in (points @ grid.row, points @ grid.column)]
    u, v = (np.linspace(low, high, int((high - low) / KNOT_MM) + 2) for low, high in ends)
    flat = u[None, :, None] * grid.row + v[:, None, None] * grid.column
    for k in {c.image for one in (carried, drawn) for c in one.contours if c.image is not None}:
        places = flat + slices[k].along_mm * grid.normal
        along = warp_points(places.reshape(-1, 3), pair.transform) @ pair.plan.series.grid.normal
        outside = np.maximum(limits[0] - along, along - limits[1]) - ON_SLICE_MM
        shown[k] = region_of(outlines(outside.reshape(len(v), len(u)), u, v))
    return shown


def flagged(row: PropagatedStructure, rules: Rules, whole: WholePair | None = None) -> PropagatedStructure:
    """Return a row with its flag, pass, cut, look or fail, and the reasons.

    No structure passes where the numbers of the ``whole`` pair are those of two patients.
    """
    broken: list[tuple[str, str]] = [
        (one.level, "another patient? (see the verdict)")
        for one in judge(PairScore(), rules, whole=whole).reasons
        if one.rule == ANOTHER_PATIENT
    ]
    broken += [("look", f"not measured: {', '.join(lacking)}")] if (lacking := _unmeasured(row)) else []
    for rule in STRUCTURE_RULES:
        value = structure_number(row, rule)
        if rule in rules.limits and not np.isnan(value) and (level := rules.broken(rule, value)):
            broken.append((level, rules.brief(rule, getattr(row, STRUCTURE_RULES[rule]), level)))
    flag = (
        "fail" if any(level == "fail" for level, _ in broken) else "look" if broken else "cut" if row.state else "pass"
    )
    cut = [f"{row.state}: {row.outside_percent:.0f} % of the plan's contour lies beyond it"] if row.state else []
    return row.model_copy(update={"flag": flag, "reasons": tuple([text for _, text in broken] + cut)})


def _unmeasured(row: PropagatedStructure) -> list[str]:
    """Name the numbers without which a structure cannot pass; one of points alone has no volume."""
    needed = {"deformation": row.jacobian_least, "volume change": row.volume_change_percent}
    if row.state:  # too little may remain for a volume
        needed = {"deformation": row.jacobian_least}
        if row.found_today:
            needed["overlap with the plan's outline"] = row.outline_dice
    if row.planes == 0:
        needed = {"deformation": row.inverse_p95_mm}
    return [words for words, value in needed.items() if value is None]


def whole_pair(
    pair: Pair, start: Start, result: Result, both_ways: Mapping[str, float | None] | None = None
) -> WholePair:
    """Measure both scans and the whole transform; ``both_ways`` has the numbers of `both_ways_numbers`."""
    plan, today, there = pair.plan, pair.today, result.inverse_consistency_mm
    two_ct = today.series.modality == plan.series.modality == "CT"
    same = plan.series.frame_uid == today.series.frame_uid
    overlap = overlap_fraction(today.image.geometry, plan.image.geometry, start.transform.affine)
    from_file = "HU taken from the file" if today.series.modality == "CT" else "taken from the file"
    return WholePair(
        plan=_series_words(plan.series), today=_series_words(today.series), overlap_percent=100 * overlap,
        frames="the same frame of reference" if same else "different frames of reference",
        today_values=from_file if today.mapped is None else f"HU by {today.mapped.words}",
        field_of_view="part of the patient" if today.seen is not None else "whole patient",
        missing_ends=missing_ends(today, plan, start.transform), start=start.method,
        similarity_headers=_known(start.headers), similarity_before=_known(start.chosen),
        similarity_after=_known(correlation(today, plan, result.transform)),
        bones_bent_mm=_known(bones_bent(today, result.transform)) if two_ct else None,
        displacement_p95_mm=_known(moved_inside(today, result.transform)) if two_ct else None,
        folding_percent=100 * result.regularity["folding_fraction"],
        **{f"inverse_{key}_mm": _known(there[key]) for key in ("mean", "p95", "max")}, **(both_ways or {}),
    )  # fmt: skip


def _series_words(series: Series) -> str:
    return f"{series.modality}, {series.image.geometry.summary}, {len(series.slices)} slices"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def moved_inside(today: Scan, transform: Transform) -> float:
    """Return the 95th percentile of the displacement after the start over today's patient, in mm."""
    index = thinned(today.inside)
    if not len(index):
        return float("nan")
    return float(np.percentile(np.linalg.norm(transform.field.data[(slice(None), *index.T)], axis=0), 95))


BONE_HU = 250.0
BLOCK_MM = 40.0  # Edge of the blocks in which bone is taken as rigid; joints between blocks may bend
LEAST_IN_BLOCK = 30  # Bone voxels that a block has at least


def bones_bent(today: Scan, transform: Transform) -> float:
    """Return the distance of a transform from rigid in the bones of a CT, root mean square in mm; NaN without bones.

    A rigid map is fitted to the bone voxels of each block of `BLOCK_MM` (Arun et al. 1987); the residual is bending.
    Bones of one patient keep their shape, bones of two people differ.
    """
    index = thinned(today.inside)
    if today.image.modality == "ct":
        index = index[today.image.data[tuple(index.T)] > BONE_HU]
    if today.image.modality != "ct" or not len(index):
        return float("nan")
    points = today.image.geometry.points(index.astype(np.float64))
    moved = points + transform.field.data[(slice(None), *index.T)].T
    _, block = np.unique(np.floor((points - points.min(axis=0)) / BLOCK_MM), axis=0, return_inverse=True)
    order = np.argsort(block.ravel(), kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(block.ravel()))[:-1])
    left = [_not_rigid(points[one], moved[one]) for one in parts if len(one) >= LEAST_IN_BLOCK]
    return float(np.sqrt((np.concatenate(left) ** 2).mean())) if left else float("nan")


def _not_rigid(points: Float64Array, moved: Float64Array) -> Float64Array:
    """Return the distances that the best rigid map leaves between two sets of points."""
    motion = rigid_fit(points, moved)
    return np.asarray(np.linalg.norm(points @ motion[:3, :3].T + motion[:3, 3] - moved, axis=1))


def both_ways_numbers(there: Transform, back: Transform, today: Scan) -> dict[str, float | None]:
    """Return mean, 95th percentile and largest error of two registrations over the patient, and the mean in voxels.

    ``there`` is today to plan, ``back`` the registration that was run the other way.
    """
    index = thinned(today.inside, MOST_BOTH_WAYS)
    errors = both_ways_mm(there, back, today.image.geometry.points(index.astype(np.float64)))
    names = ("both_ways_mean_mm", "both_ways_p95_mm", "both_ways_max_mm", "both_ways_voxels")
    if not len(errors):
        return dict.fromkeys(names)
    mean, largest = float(errors.mean()), float(today.image.geometry.spacing_mm.max())
    return dict(zip(names, (mean, float(np.percentile(errors, 95)), float(errors.max()), mean / largest), strict=True))


def both_ways_mm(there: Transform, back: Transform, points_mm: Float64Array) -> Float64Array:
    """Return the distance of points from their places after both transforms; none for points beyond the plan's scan."""
    plan, grid = warp_points(points_mm, there), back.field.geometry
    index = grid.index(plan)
    seen = ((index >= 0) & (index <= np.array(grid.shape) - 1)).all(axis=1)
    return np.asarray(np.linalg.norm(warp_points(plan[seen], back) - points_mm[seen], axis=1))


def kinds_done(*, both_ways: bool = False) -> tuple[TestKind, ...]:
    """Return each kind of test with its state; `ClinicSection.with_landmarks` changes that of landmarks."""
    return tuple(
        TestKind(kind=kind, what=what, state=BOTH_WAYS_DONE if kind == "H" and both_ways else state)
        for kind, (what, state) in TESTS.items()
    )
