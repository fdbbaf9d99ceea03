"""Structures of the plan, chosen and brought to today: carried as tissue, moved rigidly, or found in today's CT."""

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial import cKDTree

from regweave import notices
from regweave.clinic.patient import BODY_HU, tissue_values
from regweave.clinic.quality import Pair, outside_share, structure_row
from regweave.clinic.scans import Scan, box_round, regridded
from regweave.clinic.start import thinned
from regweave.contours.carry import carry
from regweave.contours.regions import dice_of_areas, outlines, overlap_ml, regions_of
from regweave.contours.shape import Shape
from regweave.errors import UsageError
from regweave.io.dicom.rtstruct import checked_names
from regweave.io.dicom.series import Series
from regweave.measures.propagation import PropagatedStructure
from regweave.spatial.rigid import rigid_fit
from regweave.spatial.warp import inverse_of, warp_points
from regweave.types import Contour, Field, Float64Array, Geometry, LeftOut, Structure, StructureSet, Transform

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
    planned: StructureSet, names: Collection[str] | None
) -> tuple[list[Structure], list[Structure], list[LeftOut]]:
    """Return the structures of a plan that are carried, the outlines of the patient, and what is left out.

    With ``names`` all others are left out. Raises E165 for a name that the plan does not have.
    """
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


def carried(shape: Shape, pair: Pair, note: str) -> tuple[Structure, PropagatedStructure]:
    """Carry a structure as tissue, or move it rigidly, and measure it; it is empty if today's scan shows none of it."""
    one, start, today = shape.structure, pair.transform.affine, pair.today
    notes = [note]
    reason = "" if is_outline(one) else rigid_reason(shape, pair.plan)
    if reason:
        pair = rigid_pair(shape, pair)
        notes.append(reason)
    moved = carry(shape, pair.transform, today.series)
    if today.seen is not None and moved.contours and outside_share(one, pair) > MOST_OUTSIDE:
        moved = replace(moved, contours=())
    if not reason and (empty := _empty_slices(today) & {c.image for c in moved.contours}):
        moved = replace(moved, contours=tuple(c for c in moved.contours if c.image not in empty))
        notes.append(f"not drawn on {len(empty)} slices that show no patient")
    note = "; ".join(filter(None, notes))
    return moved, rigid_row(shape, moved, pair, start, note) if reason else structure_row(shape, moved, pair, note)


def _empty_slices(today: Scan) -> set[int | None]:
    """Return the slices of today's CT without patient: a resampled scan may end with some."""
    if today.body is None:
        return set()
    planes = [plane_of(today.image.geometry, one.position_mm) for one in today.series.slices]
    return {k for k, plane in enumerate(planes) if plane is not None and not today.body[..., plane].any()}


DEVICES = {"FIXATION", "SUPPORT"}
BENT = {"EXTERNAL", "BOLUS"}  # Types that may be outside the skin and still follow it
NEAR_MM = 50.0  # Tissue whose motion a device follows is at most this much farther away than the nearest
MOST_POINTS = 50_000
LEAST_INSIDE = 0.5  # Share of a structure inside the body from which it is tissue


def rigid_reason(shape: Shape, plan: Scan) -> str:
    """Return why a structure is moved rigidly; empty where it is carried as tissue.

    Of its points those between the first and last slice of the plan count: beyond them the body is not known.
    """
    one, grid = shape.structure, plan.image.geometry
    if one.kind in DEVICES:
        return f"moved rigidly: a {one.kind.lower()} device is not bent"
    if plan.body is None or one.kind in BENT:
        return ""
    box = box_round(np.concatenate([c.points_mm for c in one.contours]), grid) if one.contours else None
    within = np.zeros((0, 3)) if box is None else box[1][shape.at(box[1]) < 0]
    # Its own points count where it is smaller than a voxel or has no contours.
    index = np.rint(grid.index(within if len(within) else one.drawn_mm)).astype(int)
    index = index[(index[:, 2] >= 0) & (index[:, 2] < grid.shape[2])]
    if not len(index):
        return ""
    shown = index[((index >= 0) & (index < grid.shape)).all(axis=1)]
    inside = plan.body[tuple(shown.T)].sum() / len(index)
    return "moved rigidly: it lies outside the body" if inside < LEAST_INSIDE else ""


def rigid_pair(shape: Shape, pair: Pair) -> Pair:
    """Return a registration by the rigid motion that fits the transform best in the tissue near a structure."""
    there = warp_points(shape.structure.drawn_mm, pair.inverse)
    grid, body = pair.today.image.geometry, pair.today.body
    index = thinned(np.ones(grid.shape, dtype=bool) if body is None else body, MOST_POINTS)
    points = grid.points(index.astype(np.float64))
    away, _ = cKDTree(there).query(points)
    points = points[away <= away.min() + NEAR_MM]
    affine = rigid_fit(points, warp_points(points, pair.transform))
    still = Field.zero(grid)
    return replace(pair, transform=Transform(still, affine), inverse=Transform(still, inverse_of(affine)))


def rigid_row(shape: Shape, carried: Structure, rigid: Pair, start: Float64Array, note: str) -> PropagatedStructure:
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
    planned: Structure, today: Scan, plan: Scan, *, only_carry: bool = False
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
    same = f"the same method gives the plan's outline at Dice {dice_of_areas(planned, again, plan.series):.3f}"
    return skin, f"re-contoured automatically in today's CT; {same}"


def _obstacle(today: Scan, plan: Scan) -> str:
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
    volumes, (one, other) = overlap_ml(planned, again, plan), (regions_of(s, plan) for s in (planned, again))
    by_slice = 2 * volumes[:, 2] / np.maximum(volumes[:, :2].sum(axis=1), LEAST_ML)
    dice, least = dice_of_areas(planned, again, plan), float(by_slice[volumes[:, 0] > 0].min(initial=1.0))
    if not dice >= LEAST_DICE or least < LEAST_SLICE_DICE:
        return f"Dice {dice:.3f}, lowest slice {least:.3f}"
    apart = [
        k for k in one.keys() & other.keys()
        if max(a.difference(b.buffer(APART_MM)).area for a, b in ((one[k], other[k]), (other[k], one[k]))) > APART_MM2
    ]  # fmt: skip
    return f"Dice {dice:.3f}, but more than {APART_MM:g} mm apart on {len(apart)} slices" if apart else ""


def draw_outline(structure: Structure, scan: Scan) -> Structure:
    """Draw the patient's outline where a CT falls below `BODY_HU`, to a fraction of a pixel.

    ``structure`` gives number, name, type and colour; the body of the scan has no couch and is filled.
    """
    assert scan.body is not None
    with notices.unheard():  # `working_scan` has warned
        image = tissue_values(scan.series.image)
    known = regridded(scan.body, scan.image.geometry, image.geometry)
    contours: list[Contour] = []
    grid = scan.series.grid
    u, v = (np.arange(float(n)) * s for n, s in zip(grid.size, grid.spacing_mm, strict=True))
    for k, one in enumerate(scan.series.slices):
        plane = plane_of(image.geometry, one.position_mm)
        if plane is None or not known[..., plane].any():
            continue
        level = _level(image.data[..., plane], known[..., plane])
        for ring in outlines(level.T, u, v):
            points = one.position_mm + np.outer(ring[:, 0], grid.row) + np.outer(ring[:, 1], grid.column)
            contours.append(Contour(points, image=k))
    return replace(structure, contours=tuple(contours))


def plane_of(grid: Geometry, position_mm: Float64Array) -> int | None:
    """Return the plane of an even grid that is nearest to a slice; None beyond the grid."""
    k = round(float((np.linalg.inv(grid.affine) @ [*position_mm, 1.0])[2]))
    return k if 0 <= k < grid.shape[2] else None


def _level(plane: NDArray[np.float32], inside: NDArray[np.bool_]) -> Float64Array:
    """Negative inside the patient; its zero is the skin's edge at `BODY_HU`."""
    core = ndimage.binary_erosion(inside, iterations=2, border_value=1)
    near = ndimage.binary_dilation(inside, iterations=2)
    level = BODY_HU - plane.astype(np.float64)
    return np.asarray(np.where(core, -FAR, np.where(near, level, FAR)))
