"""Structures of the plan: chosen, carried to today as tissue, moved rigidly or found in the CT, and measured."""

import difflib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial import cKDTree

from regweave import contours, notices
from regweave.clinic import scans
from regweave.errors import UsageError
from regweave.io.dicom.rtstruct import checked_names
from regweave.io.dicom.series import Series
from regweave.io.geometry import overlap_fraction
from regweave.measures import propagation, scores, verdict
from regweave.run.result import Result
from regweave.spatial.rigid import rigid_fit
from regweave.spatial.warp import determinant, warp_points
from regweave.types import Contour, Field, Float64Array, Geometry, LeftOut, Structure, StructureSet, Transform

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
    "F": ("Jacobian determinant", propagation.DONE_HERE),
    "G": ("other numbers of the deformation: displacement by structure", propagation.DONE_HERE),
    "H": ("consistency: there and back",
          "in part: the inverse of this transform alone; no registration was run the other way (--both-ways)"),
    "I": ("digital phantoms with a known deformation", "not done here: `regweave clinic commission`"),
    "J": ("end to end with a physical phantom", "not done"),
}  # fmt: skip
"""Kinds of test of the UK survey, table 1 (doi 10.1259/bjr.20210001), and what a propagation does of each."""
BOTH_WAYS_DONE = f"{propagation.DONE_HERE}: a second registration was run the other way, and the two were joined"


@dataclass(frozen=True)
class Pair:
    """Both scans, and the transform from today to the plan with its inverse."""

    plan: scans.Scan
    today: scans.Scan
    transform: Transform
    inverse: Transform

    @cached_property
    def jacobian(self) -> NDArray[np.float32]:
        """Determinants of the field, computed once for all structures."""
        return determinant(self.transform.field)


def structure_row(
    shape: contours.Shape, carried: Structure, pair: Pair, note: str = ""
) -> propagation.PropagatedStructure:
    """Measure one propagated structure, before it is flagged; ``note`` is a remark for the reader."""
    planned = shape.structure
    plan_ml, today_ml = contours.volume_ml(planned, pair.plan.series), contours.volume_ml(carried, pair.today.series)
    planes, (state, outside, pushed) = len({c.image for c in carried.contours}), _reach(planned, pair)
    share, centre = _shown_part(shape, pair)
    shown_ml = plan_ml * share if state else plan_ml
    compared = shown_ml > 0 and today_ml > 0 and (planes >= LEAST_PLANES or not state)
    return propagation.PropagatedStructure(
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


def _beyond(places_mm: Float64Array, today: scans.Scan) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
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


def _shown_part(shape: contours.Shape, pair: Pair) -> tuple[float, Float64Array]:
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


def _inside_numbers(shape: contours.Shape, carried: Structure, pair: Pair, centre: Float64Array) -> dict[str, Any]:
    """Measure the deformation at the voxels inside a structure, or at its points; empty where there are none."""
    if not carried.contours or not len(shape.along_mm):
        points = carried.points
        if not len(points):
            return {}
        there = warp_points(points, pair.transform)
        length = np.linalg.norm(warp_points(points, Transform(pair.transform.field)) - points, axis=1)
        back = np.linalg.norm(warp_points(there, pair.inverse) - points, axis=1)
        return {
            "displacement_mean_mm": float(length.mean()), "displacement_max_mm": float(length.max()),
            "inverse_p95_mm": float(np.percentile(back, 95)),
        }  # fmt: skip
    grid = pair.transform.field.geometry
    if (box := scans.box_round(np.concatenate([c.points_mm for c in carried.contours]), grid)) is None:
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


def outline_row(planned: Structure, drawn: Structure, pair: Pair, note: str) -> propagation.PropagatedStructure:
    """Measure an outline found in today's scan, against the plan's outline carried there.

    Both count only where the two scans overlap: ``outline_dice`` is their Dice there, and ``volume_change_percent`` the
    difference of their volumes.
    """
    plan, today = pair.plan.series, pair.today.series
    shape = contours.shape_of(planned, plan)
    carried = contours.carry(shape, pair.transform, today)
    along = np.array([plan.slices[c.image].along_mm for c in planned.contours if c.image is not None])
    shown = _between_slices(carried, drawn, pair, (float(along.min()), float(along.max())))
    one, other, both = contours.overlap_ml(carried, drawn, today, shown).sum(axis=0).tolist()
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
        shown[k] = contours.region_of(contours.outlines(outside.reshape(len(v), len(u)), u, v))
    return shown


def flagged(
    row: propagation.PropagatedStructure, rules: verdict.Rules, whole: propagation.WholePair | None = None
) -> propagation.PropagatedStructure:
    """Return a row with its flag, pass, cut, look or fail, and the reasons.

    No structure passes where the numbers of the ``whole`` pair are those of two patients.
    """
    broken: list[tuple[str, str]] = [
        (one.level, "another patient? (see the verdict)")
        for one in verdict.judge(scores.PairScore(), rules, whole=whole).reasons
        if one.rule == verdict.ANOTHER_PATIENT
    ]
    needed = {"deformation": row.jacobian_least, "volume change": row.volume_change_percent}
    if row.state:  # too little may remain for a volume
        outline = {"overlap with the plan's outline": row.outline_dice} if row.found_today else {}
        needed = {"deformation": row.jacobian_least, **outline}
    if row.planes == 0:  # a structure of points alone has no volume
        needed = {"deformation": row.inverse_p95_mm}
    if lacking := [words for words, value in needed.items() if value is None]:
        broken.append(("look", f"not measured: {', '.join(lacking)}"))
    for rule in verdict.STRUCTURE_RULES:
        value = verdict.structure_number(row, rule)
        if rule in rules.limits and not np.isnan(value) and (level := rules.broken(rule, value)):
            broken.append((level, rules.brief(rule, getattr(row, verdict.STRUCTURE_RULES[rule]), level)))
    flag = (
        "fail" if any(level == "fail" for level, _ in broken) else "look" if broken else "cut" if row.state else "pass"
    )
    cut = [f"{row.state}: {row.outside_percent:.0f} % of the plan's contour lies beyond it"] if row.state else []
    return row.model_copy(update={"flag": flag, "reasons": tuple([text for _, text in broken] + cut)})


def whole_pair(
    pair: Pair, start: scans.Start, result: Result, both_ways: Mapping[str, float | None] | None = None
) -> propagation.WholePair:
    """Measure both scans and the whole transform; ``both_ways`` has the numbers of `both_ways_numbers`."""
    plan, today, there = pair.plan, pair.today, result.inverse_consistency_mm
    two_ct = today.series.modality == plan.series.modality == "CT"
    same = plan.series.frame_uid == today.series.frame_uid
    overlap = overlap_fraction(today.image.geometry, plan.image.geometry, start.transform.affine)
    from_file = "HU taken from the file" if today.series.modality == "CT" else "taken from the file"
    return propagation.WholePair(
        plan=_series_words(plan.series), today=_series_words(today.series), overlap_percent=100 * overlap,
        frames="the same frame of reference" if same else "different frames of reference",
        today_values=f"HU by {today.mapped}" if today.mapped else from_file,
        field_of_view="part of the patient" if today.seen is not None else "whole patient",
        missing_ends=scans.missing_ends(today, plan, start.transform), start=start.method,
        similarity_headers=_known(start.headers), similarity_before=_known(start.chosen),
        similarity_after=_known(scans.correlation(today, plan, result.transform)),
        bones_bent_mm=_known(bones_bent(today, result.transform)) if two_ct else None,
        displacement_p95_mm=_known(moved_inside(today, result.transform)) if two_ct else None,
        folding_percent=100 * result.regularity["folding_fraction"],
        **{f"inverse_{key}_mm": _known(there[key]) for key in ("mean", "p95", "max")}, **(both_ways or {}),
    )  # fmt: skip


def _series_words(series: Series) -> str:
    return f"{series.modality}, {series.image.geometry.summary}, {len(series.slices)} slices"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def moved_inside(today: scans.Scan, transform: Transform) -> float:
    """Return the 95th percentile of the displacement after the start over today's patient, in mm."""
    index = scans.thinned(today.inside)
    if not len(index):
        return float("nan")
    return float(np.percentile(np.linalg.norm(transform.field.data[(slice(None), *index.T)], axis=0), 95))


BONE_HU = 250.0
BLOCK_MM = 40.0  # Edge of the blocks in which bone is taken as rigid; joints between blocks may bend
LEAST_IN_BLOCK = 30  # Bone voxels that a block has at least


def bones_bent(today: scans.Scan, transform: Transform) -> float:
    """Return the distance of a transform from rigid in the bones of a CT, root mean square in mm; NaN without bones.

    A rigid map is fitted to the bone voxels of each block of `BLOCK_MM` (Arun et al. 1987); the residual is bending.
    Bones of one patient keep their shape, bones of two people differ.
    """
    index = scans.thinned(today.inside)
    if today.image.modality == "ct":
        index = index[today.image.data[tuple(index.T)] > BONE_HU]
    if today.image.modality != "ct" or not len(index):
        return float("nan")
    points = today.image.geometry.points(index.astype(np.float64))
    moved = points + transform.field.data[(slice(None), *index.T)].T
    _, block = np.unique(np.floor((points - points.min(axis=0)) / BLOCK_MM), axis=0, return_inverse=True)
    order = np.argsort(block.ravel(), kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(block.ravel()))[:-1])
    left = []  # distances that the best rigid map of each block leaves
    for one in parts:
        if len(one) >= LEAST_IN_BLOCK:
            motion = rigid_fit(points[one], moved[one])
            there = points[one] @ motion[:3, :3].T + motion[:3, 3]
            left.append(np.linalg.norm(there - moved[one], axis=1))
    return float(np.sqrt((np.concatenate(left) ** 2).mean())) if left else float("nan")


def both_ways_numbers(there: Transform, back: Transform, today: scans.Scan) -> dict[str, float | None]:
    """Return mean, 95th percentile and largest error of two registrations over the patient, and the mean in voxels.

    ``there`` is today to plan, ``back`` the registration that was run the other way.
    """
    index = scans.thinned(today.inside, MOST_BOTH_WAYS)
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


def kinds_done(*, both_ways: bool = False) -> tuple[propagation.TestKind, ...]:
    """Return each kind of test with its state; `ClinicSection.with_landmarks` changes that of landmarks."""
    return tuple(
        propagation.TestKind(kind=kind, what=what, state=BOTH_WAYS_DONE if kind == "H" and both_ways else state)
        for kind, (what, state) in TESTS.items()
    )


OUTLINE = re.compile(r"^(body|external|skin|patient|outer ?contour|ext(ernal)?[ _-]?contour)$", re.IGNORECASE)
DOSE = re.compile(r"^(dose\b.*|.*\b\d+([.,]\d+)? ?\[?(c?gy)\]?|.*\b\d+ ?% ?(isodose)?|iso ?dose.*)$", re.IGNORECASE)
MARGIN_NOTE = "re-derive from CTV"  # A planning target is a clinical target with a margin: propagated it is neither


def is_outline(structure: Structure) -> bool:
    """Whether a structure is the patient's outline, by its type or else its name."""
    return structure.kind == "EXTERNAL" or (not structure.kind and bool(OUTLINE.match(structure.name.strip())))


def is_of_dose(structure: Structure) -> bool:
    """Whether a structure was made from a dose, and so belongs to the plan rather than to the patient."""
    return structure.kind in {"DOSE_REGION", "TREATED_VOLUME", "IRRAD_VOLUME"} or bool(
        DOSE.match(structure.name.strip())
    )


def note_of(structure: Structure) -> str:
    """Return the remark that a structure has from the start."""
    is_target = structure.kind == "PTV" or (not structure.kind and structure.name.upper().startswith("PTV"))
    return MARGIN_NOTE if is_target else ""


def choose(
    planned: StructureSet, names: str | Collection[str] | None
) -> tuple[list[Structure], list[Structure], list[LeftOut]]:
    """Return the structures of a plan that are carried, the outlines of the patient, and what is left out.

    With ``names``, a text with commas or several texts, all others are left out. Raises E165 for a name that the plan
    does not have.
    """
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",") if name.strip()]
    unknown = sorted(set(names or ()) - {one.name for one in planned.structures})
    if names is not None and (unknown or not names):
        has = ", ".join(one.name for one in planned.structures)
        lower = {one.name.casefold(): one.name for one in planned.structures}
        near = [lower[m] for name in unknown for m in difflib.get_close_matches(name.casefold(), lower, 1)]
        meant = f"did you mean {', '.join(map(repr, near))}? " if near else ""
        what = ", ".join(map(repr, unknown)) or "(none named)"
        raise UsageError("E165", f"the plan has no structure {what}", f"{meant}it has {has}")
    carried, outlines_, left = [], [], list(planned.left_out)
    for one in planned.structures:
        asked = names is not None and one.name in names
        if names is not None and not asked:
            left.append(LeftOut(one.name, "not asked for"))
        elif is_of_dose(one) and not asked:
            left.append(LeftOut(one.name, "made from a dose: it belongs to the plan; ask for it by name"))
        elif is_outline(one) and one.contours:
            outlines_.append(one)
        else:
            carried.append(one)
    return carried, outlines_, left


def require_names(structures: Sequence[Structure], names: Mapping[str, str]) -> None:
    """Raise E166 for new names that cannot be written, before anything is computed; W234 if none is known."""
    with notices.muted():
        checked_names(structures, names)
    if names and not {one.name for one in structures} & set(names):
        notices.warn(f"W234: none of the {len(names)} names of the name map is that of a structure; all keep their own")


MOST_OUTSIDE = 0.99  # A structure of which today's field of view shows less than the rest is not drawn


def carried(shape: contours.Shape, pair: Pair, note: str) -> tuple[Structure, propagation.PropagatedStructure]:
    """Carry a structure as tissue, or move it rigidly, and measure it; it is empty if today's scan shows none of it."""
    one, start, today = shape.structure, pair.transform.affine, pair.today
    notes = [note]
    reason = "" if is_outline(one) else rigid_reason(shape, pair.plan)
    if reason:
        pair = rigid_pair(shape, pair)
        notes.append(reason)
    moved = contours.carry(shape, pair.transform, today.series)
    if today.seen is not None and moved.contours and (_reach(one, pair)[1] or 0.0) / 100 > MOST_OUTSIDE:
        moved = replace(moved, contours=())
    if not reason and (empty := _empty_slices(today) & {c.image for c in moved.contours}):
        moved = replace(moved, contours=tuple(c for c in moved.contours if c.image not in empty))
        notes.append(f"not drawn on {len(empty)} slices that show no patient")
    note = "; ".join(filter(None, notes))
    return moved, rigid_row(shape, moved, pair, start, note) if reason else structure_row(shape, moved, pair, note)


def _empty_slices(today: scans.Scan) -> set[int | None]:
    """Return the slices of today's CT without patient: a resampled scan may end with some."""
    if today.body is None:
        return set()
    planes = [plane_of(today.image.geometry, one.position_mm) for one in today.series.slices]
    return {k for k, plane in enumerate(planes) if plane is not None and not today.body[..., plane].any()}


DEVICES = {"FIXATION", "SUPPORT"}
BENT = {"EXTERNAL", "BOLUS"}  # Types that may be outside the skin and still follow it
NEAR_MM = 50.0  # Tissue whose motion a device follows is at most this much farther away than the nearest
MOST_NEAR = 50_000
LEAST_INSIDE = 0.5  # Share of a structure inside the body from which it is tissue


def rigid_reason(shape: contours.Shape, plan: scans.Scan) -> str:
    """Return why a structure is moved rigidly; empty where it is carried as tissue.

    Of its points those between the first and last slice of the plan count: beyond them the body is not known.
    """
    one, grid = shape.structure, plan.image.geometry
    if one.kind in DEVICES:
        return f"moved rigidly: a {one.kind.lower()} device is not bent"
    if plan.body is None or one.kind in BENT:
        return ""
    box = scans.box_round(np.concatenate([c.points_mm for c in one.contours]), grid) if one.contours else None
    within = np.zeros((0, 3)) if box is None else box[1][shape.at(box[1]) < 0]
    # Its own points count where it is smaller than a voxel or has no contours.
    index = np.rint(grid.index(within if len(within) else one.drawn_mm)).astype(int)
    index = index[(index[:, 2] >= 0) & (index[:, 2] < grid.shape[2])]
    if not len(index):
        return ""
    shown = index[((index >= 0) & (index < grid.shape)).all(axis=1)]
    inside = plan.body[tuple(shown.T)].sum() / len(index)
    return "moved rigidly: it lies outside the body" if inside < LEAST_INSIDE else ""


def rigid_pair(shape: contours.Shape, pair: Pair) -> Pair:
    """Return a registration by the rigid motion that fits the transform best in the tissue near a structure."""
    there = warp_points(shape.structure.drawn_mm, pair.inverse)
    grid, body = pair.today.image.geometry, pair.today.body
    index = scans.thinned(np.ones(grid.shape, dtype=bool) if body is None else body, MOST_NEAR)
    points = grid.points(index.astype(np.float64))
    away, _ = cKDTree(there).query(points)
    points = points[away <= away.min() + NEAR_MM]
    affine = rigid_fit(points, warp_points(points, pair.transform))
    still = Field.zero(grid)
    return replace(
        pair,
        transform=Transform(still, affine),
        inverse=Transform(still, np.asarray(np.linalg.inv(affine), dtype=np.float64)),
    )


def rigid_row(
    shape: contours.Shape, carried: Structure, rigid: Pair, start: Float64Array, note: str
) -> propagation.PropagatedStructure:
    """Measure a structure that was moved rigidly; its displacement is counted from the start (4, 4), as all are."""
    row, places = structure_row(shape, carried, rigid, note), carried.drawn_mm
    if not len(places):
        return row
    there, back = warp_points(places, rigid.transform), np.linalg.inv(start)
    moved = there @ back[:3, :3].T + back[:3, 3] - places
    length = np.linalg.norm(moved, axis=1)
    return row.model_copy(update={
        "centroid_shift_mm": float(np.linalg.norm(moved.mean(axis=0))),
        "displacement_mean_mm": float(length.mean()), "displacement_max_mm": float(length.max()),
    })  # fmt: skip


FAR = 1000.0
LEAST_ML = 1e-9
APART_MM, APART_MM2 = 5.0, 10.0
"""A part as large as this so far from the other outline, an ear or a piece of a mask, is no skin of both."""
LEAST_DICE, LEAST_SLICE_DICE = 0.992, 0.985
"""Dice of the plan's outline and the skin found in the plan's CT, whole and on each slice, from which both agree.

Outlines that their program drew at the skin have .996 and .998 on every slice, one that was drawn .7 mm inside .987,
a loose one .952. A CT that is its own plan keeps .99."""


def find_outline(
    planned: Structure, today: scans.Scan, plan: scans.Scan, *, only_carry: bool = False
) -> tuple[Structure | None, str]:
    """Find the patient's outline in today's CT, if the same method returns the plan's outline in the plan's CT.

    Returns the outline, None if the plan's is to be carried (always with ``only_carry``), and the reason.
    """
    if only_carry or (obstacle := _obstacle(today, plan)):
        return None, "carried, as asked for" if only_carry else f"carried: {obstacle}"
    again = draw_outline(planned, plan)
    if differs := _difference(planned, again, plan.series):
        return None, f"carried: the plan's outline is not the skin found in the plan's CT ({differs})"
    skin = draw_outline(planned, today)
    if not skin.contours:
        return None, "carried: no skin was found in today's CT"
    same = f"the same method gives the plan's outline at Dice {contours.dice_of_areas(planned, again, plan.series):.3f}"
    return skin, f"re-contoured automatically in today's CT; {same}"


def _obstacle(today: scans.Scan, plan: scans.Scan) -> str:
    """Return the reason why the skin cannot be found in both scans; empty if it can."""
    if today.series.modality != "CT" or plan.series.modality != "CT":
        return "the skin is found in CT alone"
    if today.seen is not None or plan.seen is not None:  # its rim is no skin
        return "the field of view of a scan cuts the patient"
    if today.body is None or plan.body is None:
        return f"no patient was found in {'the plan' if plan.body is None else 'today'}'s CT"
    return ""


def _difference(planned: Structure, again: Structure, plan: Series) -> str:
    """Return how two outlines differ in words; empty where both are one object."""
    volumes = contours.overlap_ml(planned, again, plan)
    one, other = (contours.regions_of(s, plan) for s in (planned, again))
    by_slice = 2 * volumes[:, 2] / np.maximum(volumes[:, :2].sum(axis=1), LEAST_ML)
    dice, least = contours.dice_of_areas(planned, again, plan), float(by_slice[volumes[:, 0] > 0].min(initial=1.0))
    if not dice >= LEAST_DICE or least < LEAST_SLICE_DICE:
        return f"Dice {dice:.3f}, lowest slice {least:.3f}"
    apart = [
        k for k in one.keys() & other.keys()
        if max(a.difference(b.buffer(APART_MM)).area for a, b in ((one[k], other[k]), (other[k], one[k]))) > APART_MM2
    ]  # fmt: skip
    return f"Dice {dice:.3f}, but more than {APART_MM:g} mm apart on {len(apart)} slices" if apart else ""


def draw_outline(structure: Structure, scan: scans.Scan) -> Structure:
    """Draw the patient's outline where a CT falls below `BODY_HU`, to a fraction of a pixel.

    ``structure`` gives number, name, type and colour; the body of the scan has no couch and is filled.
    """
    assert scan.body is not None
    with notices.unheard():  # `working_scan` has warned
        image = scans.tissue_values(scan.series.image)
    known = scans.regridded(scan.body, scan.image.geometry, image.geometry)
    drawn: list[Contour] = []
    grid = scan.series.grid
    u, v = (np.arange(float(n)) * s for n, s in zip(grid.size, grid.spacing_mm, strict=True))
    for k, one in enumerate(scan.series.slices):
        plane = plane_of(image.geometry, one.position_mm)
        if plane is None or not known[..., plane].any():
            continue
        level = _level(image.data[..., plane], known[..., plane])
        for ring in contours.outlines(level.T, u, v):
            points = one.position_mm + np.outer(ring[:, 0], grid.row) + np.outer(ring[:, 1], grid.column)
            drawn.append(Contour(points, image=k))
    return replace(structure, contours=tuple(drawn))


def plane_of(grid: Geometry, position_mm: Float64Array) -> int | None:
    """Return the plane of an even grid that is nearest to a slice; None beyond the grid."""
    k = round(float((np.linalg.inv(grid.affine) @ [*position_mm, 1.0])[2]))
    return k if 0 <= k < grid.shape[2] else None


def _level(plane: NDArray[np.float32], inside: NDArray[np.bool_]) -> Float64Array:
    """Negative inside the patient; its zero is the skin's edge at `BODY_HU`."""
    core = ndimage.binary_erosion(inside, iterations=2, border_value=1)
    near = ndimage.binary_dilation(inside, iterations=2)
    level = scans.BODY_HU - plane.astype(np.float64)
    return np.asarray(np.where(core, -FAR, np.where(near, level, FAR)))
