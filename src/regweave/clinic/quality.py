"""Quality assurance of propagated structures: numbers by structure, flags, and the kinds of test that were done."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.clinic.scans import PreparedScans, box_round
from regweave.clinic.start import BothWays, Start, bones_bent, correlation, missing_ends, moved_inside
from regweave.contours import Shape, carry, overlap_ml, shape_of, volume_ml
from regweave.contours.regions import outlines, region_of
from regweave.io.dicom.series import Series
from regweave.io.geometry import overlap_fraction
from regweave.measures.scores import PairScore
from regweave.measures.verdict import ANOTHER_PATIENT, STRUCTURE_RULES, Rules, judge, structure_number
from regweave.run.result import Result
from regweave.spatial.jacobian import determinant
from regweave.spatial.warp import warp_points
from regweave.types import Float32Array, Float64Array, Geometry, Structure, Transform

MOST_POINTS = 4000
"""Points of a structure at which the inverse is tried."""
KNOT_MM = 4.0
"""Step at which a transform is sampled to find what two scans share."""
ON_SLICE_MM = 0.05
MOST_SAMPLES = 20_000
"""Points inside a structure that give the part of it that today's scan shows."""
AT_END, AT_RIM = "cut by the scan end", "cut by the field of view"
"""States of a structure that today's scan shows in part; they are no alarm."""
LEAST_CUT = 1.0
"""A structure is cut where more than this share of the plan's contour, in percent, lies beyond today's scan."""
LEAST_PLANES = 3
"""Volumes of fewer planes are not compared where a structure is cut: half a slice is too much of them."""
TESTS = {
    "A": "registered images looked at: blend, curtain, checkerboard, difference",
    "B": "deformation looked at: grid and Jacobian map",
    "C": "contours overlaid on the images",
    "D": "overlap and distance of contours against drawn ones",
    "E": "landmarks: target registration error",
    "F": "Jacobian determinant",
    "G": "other numbers of the deformation: displacement by structure",
    "H": "consistency: there and back",
    "I": "digital phantoms with a known deformation",
    "J": "end to end with a physical phantom",
}
"""Kinds of test of the UK survey of deformable registration, table 1 (doi 10.1259/bjr.20210001)."""
TESTS_SOURCE = "kinds of test: UK survey, table 1, doi 10.1259/bjr.20210001"
BY_EYE, COMPUTED, NOT_DONE = "the page shows it; a person must look", "computed here", "not done"


@dataclass(frozen=True)
class RegisteredPair:
    """A registration as the quality assurance sees it, with the determinants of its field."""

    transform: Transform
    inverse: Transform
    jacobian: Float32Array
    plan: Series
    today: Series
    seen: NDArray[np.bool_] | None = None

    @classmethod
    def of(
        cls,
        transform: Transform,
        inverse: Transform,
        plan: Series,
        today: Series,
        seen: NDArray[np.bool_] | None = None,
    ) -> RegisteredPair:
        """Compute the Jacobian once for all structures; ``seen`` are the measured pixels (X, Y) of today's slices."""
        return cls(transform, inverse, determinant(transform.field), plan, today, seen)


def structure_row(shape: Shape, carried: Structure, found: RegisteredPair, note: str = "") -> dict[str, Any]:
    """Measure one propagated structure.

    Parameters
    ----------
    shape : Shape
        The structure of the plan.
    carried : Structure
        Its outlines today.
    found : RegisteredPair
    note : str
        What a reader must know of it.

    Returns
    -------
    dict
        JSON values; None where there is nothing to measure.
    """
    planned = shape.structure
    plan_ml, today_ml = volume_ml(planned, found.plan), volume_ml(carried, found.today)
    planes, reach = len({c.image for c in carried.contours}), _reach(planned, found)
    share, centre = _shown_part(shape, found)
    shown_ml = plan_ml * share if reach["state"] else plan_ml
    compared = shown_ml > 0 and today_ml > 0 and (planes >= LEAST_PLANES or not reach["state"])
    row: dict[str, Any] = {
        "number": planned.number,
        "name": planned.name,
        "type": planned.kind,
        "note": note,
        "volume_plan_ml": plan_ml,
        "volume_today_ml": today_ml,
        "volume_change_percent": 100 * (today_ml / shown_ml - 1) if compared else None,
        "planes": planes,
        "points": len(carried.points),
        **reach,
    }
    return {**row, **_inside_numbers(shape, carried, found, centre)}


def _reach(planned: Structure, found: RegisteredPair) -> dict[str, Any]:
    """Return the state of a structure at the limits of today's scan, and shares of its contour in percent.

    ``outside_percent`` lies beyond today's scan; ``pushed_percent`` would lie inside it by the start alone, so that the
    deformation has moved it out.
    """
    if not planned.contours and not len(planned.points):
        return {"state": "", "outside_percent": None, "pushed_percent": None}
    points = np.concatenate([*(c.points_mm for c in planned.contours), planned.points])
    points = points[:: max(1, len(points) // MOST_POINTS)]
    ends, aside = _beyond(warp_points(points, found.inverse), found)
    start = np.linalg.inv(found.transform.affine)
    outside, before = ends | aside, np.logical_or(*_beyond(points @ start[:3, :3].T + start[:3, 3], found))
    share = 100 * float(outside.mean())
    state = "" if share <= LEAST_CUT else AT_END if ends.sum() >= (aside & ~ends).sum() else AT_RIM
    return {"state": state, "outside_percent": share, "pushed_percent": 100 * float((outside & ~before).mean())}


def _beyond(places_mm: Float64Array, found: RegisteredPair) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Tell which places lie beyond the first or last slice of today, and which beside the measured pixels.

    Half a voxel counts in. What lies outside a field of view that cuts the patient was not measured either.
    """
    index, shape = _index(places_mm, found.today.image.geometry), np.array(found.today.image.geometry.shape)
    outside = (index < -0.5) | (index > shape - 0.5)
    aside = outside[:, :2].any(axis=1)
    if found.seen is not None:
        x, y = np.clip(np.rint(index[:, :2]).astype(int), 0, shape[:2] - 1).T
        aside |= ~found.seen[x, y]
    return np.asarray(outside[:, 2]), np.asarray(aside)


def _index(points_mm: Float64Array, grid: Geometry) -> Float64Array:
    back = np.linalg.inv(grid.affine)
    return np.asarray(points_mm @ back[:3, :3].T + back[:3, 3])


def outside_share(planned: Structure, found: RegisteredPair) -> float:
    """Share of the plan's outline points that come to lie outside today's scan."""
    return float(_reach(planned, found)["outside_percent"]) / 100


def _shown_part(shape: Shape, found: RegisteredPair) -> tuple[float, Float64Array]:
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
    there = warp_points(points, found.inverse)
    scan, working = found.today.image.geometry, found.transform.field.geometry
    covered, registered = (
        ((index >= -0.5) & (index <= np.array(one.shape) - 0.5)).all(axis=1)
        for one, index in ((scan, _index(there, scan)), (working, _index(there, working)))
    )
    weight = gaps[k]
    share = float(weight[covered].sum() / weight.sum())
    return share, np.average(points[registered], axis=0, weights=weight[registered]) if registered.any() else drawn


def _inside_numbers(shape: Shape, carried: Structure, found: RegisteredPair, centre: Float64Array) -> dict[str, Any]:
    names = ("centroid_shift_mm", "displacement_mean_mm", "displacement_max_mm", "jacobian_least", "jacobian_largest",
             "inverse_p95_mm")  # fmt: skip
    nothing = dict.fromkeys(names)
    if not carried.contours or not len(shape.along_mm):
        return nothing | _numbers_of_points(carried.points, found)
    grid = found.transform.field.geometry
    box = box_round(np.concatenate([c.points_mm for c in carried.contours]), grid)
    if box is None:
        return nothing
    there = warp_points(box.points_mm, found.transform)
    distance = shape.at(there)
    inside = distance < 0
    if not inside.any():  # smaller than a voxel: the nearest one speaks for it
        inside = np.arange(len(distance)) == int(distance.argmin())
    field = found.transform.field.data[(slice(None), *box.slices)].reshape(3, -1)[:, inside]
    length = np.sqrt((field.astype(np.float64) ** 2).sum(axis=0))
    jacobian = found.jacobian[box.slices].ravel()[inside]
    some = np.flatnonzero(inside)[:: max(1, int(inside.sum()) // MOST_POINTS)]
    back = np.linalg.norm(warp_points(there[some], found.inverse) - box.points_mm[some], axis=1)
    values = (
        float(np.linalg.norm(_moved_by(found.transform, box.points_mm[inside].mean(axis=0)) - centre)),
        float(length.mean()), float(length.max()), float(jacobian.min()), float(jacobian.max()),
        float(np.percentile(back, 95)),
    )  # fmt: skip
    return dict(zip(names, values, strict=True))


def _numbers_of_points(points: Float64Array, found: RegisteredPair) -> dict[str, float]:
    """Measure a structure that has points alone, where they lie today."""
    if not len(points):
        return {}
    there = warp_points(points, found.transform)
    length = np.linalg.norm(warp_points(points, Transform(found.transform.field)) - points, axis=1)
    back = np.linalg.norm(warp_points(there, found.inverse) - points, axis=1)
    return {
        "displacement_mean_mm": float(length.mean()), "displacement_max_mm": float(length.max()),
        "inverse_p95_mm": float(np.percentile(back, 95)),
    }  # fmt: skip


def outline_row(planned: Structure, drawn: Structure, found: RegisteredPair, note: str) -> dict[str, Any]:
    """Measure an outline that was found in today's scan, against the plan's outline carried there.

    Both count where today's scan shows what the plan's slices show: ``outline_dice`` is their Dice there, and
    ``volume_change_percent`` the difference of their volumes.
    """
    shape = shape_of(planned, found.plan)
    carried = carry(shape, found.transform, found.today)
    along = np.array([found.plan.slices[c.image].along_mm for c in planned.contours if c.image is not None])
    shown = _between_slices(carried, drawn, found, (float(along.min()), float(along.max())))
    one, other, both = overlap_ml(carried, drawn, found.today, shown).sum(axis=0).tolist()
    row = structure_row(shape, drawn, found, note) | {
        "pushed_percent": None, "volume_change_percent": None, "outline_dice": None
    }  # fmt: skip
    if one <= 0 or other <= 0:
        return row | {"note": f"{note}; not compared with the plan's outline: the scans share no slice of it"}
    dice = 2 * both / (one + other)
    return row | {
        "volume_change_percent": 100 * (other / one - 1), "outline_dice": dice,
        "note": f"{note}; Dice {dice:.3f} with the plan's outline carried here, to which the volume change refers",
    }  # fmt: skip


def _between_slices(
    carried: Structure, drawn: Structure, found: RegisteredPair, limits: tuple[float, float]
) -> dict[int, Any]:
    """Return the regions of today's slices that lie between two positions along the plan's slices."""
    grid, shown = found.today.grid, {}
    points = np.concatenate([c.points_mm for one in (carried, drawn) for c in one.contours])
    u, v = (_knots(points @ axis) for axis in (grid.row, grid.column))
    flat = u[None, :, None] * grid.row + v[:, None, None] * grid.column
    for k in {c.image for one in (carried, drawn) for c in one.contours if c.image is not None}:
        places = flat + found.today.slices[k].along_mm * grid.normal
        along = warp_points(places.reshape(-1, 3), found.transform) @ found.plan.grid.normal
        outside = np.maximum(limits[0] - along, along - limits[1]) - ON_SLICE_MM
        shown[k] = region_of(outlines(outside.reshape(len(v), len(u)), u, v))
    return shown


def _knots(at: Float64Array) -> Float64Array:
    low, high = float(at.min()) - KNOT_MM, float(at.max()) + KNOT_MM
    return np.linspace(low, high, int((high - low) / KNOT_MM) + 2)


def _moved_by(transform: Transform, point: Float64Array) -> Float64Array:
    """Take a point by the affine start alone."""
    return np.asarray(transform.affine[:3, :3] @ point + transform.affine[:3, 3])


def flagged(row: Mapping[str, Any], rules: Rules, whole: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a row with its flag, pass, cut, look or fail, and the reasons.

    No structure passes where the numbers of the ``whole`` pair are those of two patients.
    """
    reasons = judge({"clinic": {"whole": whole or {}}}, PairScore(), rules).reasons
    broken: list[tuple[str, str]] = [
        (one.level, "another patient? (see the verdict)") for one in reasons if one.rule == ANOTHER_PATIENT
    ]
    broken += [("look", f"not measured: {', '.join(lacking)}")] if (lacking := _unmeasured(row)) else []
    for rule, key in STRUCTURE_RULES.items():
        value = structure_number(row, rule)
        if rule in rules.limits and not np.isnan(value) and (level := rules.broken(rule, value)):
            broken.append((level, rules.brief(rule, row[key], level)))
    state = row.get("state", "")
    flag = "fail" if any(level == "fail" for level, _ in broken) else "look" if broken else "cut" if state else "pass"
    cut = [f"{state}: {row['outside_percent']:.0f} % of the plan's contour lies beyond it"] if state else []
    return {**row, "flag": flag, "reasons": [text for _, text in broken] + cut}


def _unmeasured(row: Mapping[str, Any]) -> list[str]:
    """Name the numbers without which a structure cannot pass; one of points alone has no volume."""
    needed = {"jacobian_least": "deformation", "volume_change_percent": "volume change"}
    if row.get("state"):  # too little may remain for a volume
        needed = {"jacobian_least": "deformation", "outline_dice": "overlap with the plan's outline"}
    if row.get("planes") == 0:
        needed = {"inverse_p95_mm": "deformation"}
    return [words for key, words in needed.items() if row.get(key, 0.0) is None]


def kinds_done(*, both_ways: bool = False) -> list[dict[str, str]]:
    """Return each kind of test with whether it was done; `Result.with_landmarks` does that of landmarks."""
    done = dict.fromkeys("ABC", BY_EYE) | dict.fromkeys("FGH", COMPUTED) | dict.fromkeys("DEIJ", NOT_DONE)
    done["H"] = (
        "computed here: a second registration was run the other way, and the two were joined"
        if both_ways
        else "in part: the inverse of this transform alone; no registration was run the other way (--both-ways)"
    )
    done["E"] = "not done: no landmarks were given"
    done["D"] = "not done: there are no drawn contours on today's scan"
    done["I"] = "not done here: `regweave commission`"
    return [{"kind": kind, "what": what, "state": done[kind]} for kind, what in TESTS.items()]


def whole_numbers(plan: Series, today: Series) -> dict[str, Any]:
    """Return what the series alone tell of the pair."""
    same = plan.frame_uid == today.frame_uid
    return {
        "frames": "the same frame of reference" if same else "different frames of reference",
        "plan": f"{plan.modality}, {plan.image.geometry.summary}, {len(plan.slices)} slices",
        "today": f"{today.modality}, {today.image.geometry.summary}, {len(today.slices)} slices",
    }


REVIEW = "UNAPPROVED – needs review by a qualified person"


def section_of(ready: PreparedScans, start: Start, result: Result, back: BothWays | None) -> dict[str, Any]:
    """Return what is told of a propagation apart from its structures, as JSON values."""
    scans, today, plan = ready.scans, ready.today, ready.plan
    numbers = whole_numbers(scans.plan, scans.today)
    settings = json.dumps(result.settings.model_dump(mode="json"), sort_keys=True)
    there = result.inverse_consistency_mm
    two_ct = scans.today.modality == scans.plan.modality == "CT"
    signs = {
        "bones_bent_mm": _known(bones_bent(today, result.transform)),
        "displacement_p95_mm": _known(moved_inside(today, result.transform)),
    }
    overlap = overlap_fraction(today.image.geometry, plan.image.geometry, start.transform.affine)
    return {
        "status": REVIEW,
        "patient_sha": scans.today.identity.patient_hash,
        "plan_sha": scans.plan.identity.series_hash,
        "today_sha": scans.today.identity.series_hash,
        "settings_sha": hashlib.sha256(settings.encode()).hexdigest()[:16],
        "whole": {
            **numbers,
            "overlap_percent": 100 * overlap,
            "today_values": _values(ready),
            "field_of_view": "part of the patient" if today.seen is not None else "whole patient",
            "missing_ends": missing_ends(today, plan, start.transform),
            "start": start.method,
            "similarity_headers": _known(start.headers),
            "similarity_before": _known(start.chosen),
            "similarity_after": _known(correlation(today, plan, result.transform)),
            **(signs if two_ct else {}),
            "folding_percent": 100 * result.regularity["folding_fraction"],
            "inverse_mean_mm": _known(there["mean"]), "inverse_p95_mm": _known(there["p95"]),
            "inverse_max_mm": _known(there["max"]),
            **({} if back is None else back.numbers(today)),
        },
        "tests": kinds_done(both_ways=back is not None),
        "tests_source": TESTS_SOURCE,
    }  # fmt: skip


def _values(ready: PreparedScans) -> str:
    if ready.mapped is not None:
        return f"HU by {ready.mapped.words}"
    return "HU taken from the file" if ready.scans.today.modality == "CT" else "taken from the file"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
