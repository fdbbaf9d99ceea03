"""Patient outline of today: found in the scan where the same method returns the plan's outline, else carried."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave import notices
from regweave.clinic.scans.patient import BODY_HU, tissue_values
from regweave.clinic.scans.prepared import PreparedScans
from regweave.contours import dice_of_areas, overlap_ml, regions_of
from regweave.contours.regions import outlines
from regweave.io.dicom.series import Series
from regweave.spatial.warp import warp_labels
from regweave.types import Contour, Field, Float64Array, Geometry, LabelMap, Structure, Transform

FAR = 1000.0
LEAST_ML = 1e-9
APART_MM, APART_MM2 = 5.0, 10.0
"""A part as large as this so far from the other outline, an ear or a piece of a mask, is no skin of both."""
LEAST_DICE, LEAST_SLICE_DICE = 0.992, 0.985
"""Dice of the plan's outline and the skin found in the plan's CT, whole and on each slice, from which both agree.

Outlines that their program drew at the skin have .996 and .998 on every slice, one that was drawn .7 mm inside .987,
a loose one .952. A CT that is its own plan keeps .99."""


def find_outline(planned: Structure, ready: PreparedScans, *, carry: bool = False) -> tuple[Structure | None, str]:
    """Find the patient's outline in today's CT, if the same method returns the plan's outline in the plan's CT.

    Parameters
    ----------
    planned : Structure
        The plan's outline.
    ready : PreparedScans
    carry : bool
        Find nothing: the outline is to be carried.

    Returns
    -------
    Structure or None
        None where the plan's outline is to be carried.
    str
        What was done, and why.
    """
    today, plan, scans = ready.today, ready.plan, ready.scans
    if carry or (obstacle := _obstacle(ready)):
        return None, "carried, as asked for" if carry else f"carried: {obstacle}"
    assert plan.body is not None
    assert today.body is not None
    again = draw_outline(planned, scans.plan, plan.body, plan.image.geometry)
    if differs := _difference(planned, again, scans.plan):
        return None, f"carried: the plan's outline is not the skin found in the plan's CT ({differs})"
    skin = draw_outline(planned, scans.today, today.body, today.image.geometry)
    if not skin.contours:
        return None, "carried: no skin was found in today's CT"
    same = f"the same method gives the plan's outline at Dice {dice_of_areas(planned, again, scans.plan):.3f}"
    return skin, f"re-contoured automatically in today's CT; {same}"


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


def _obstacle(ready: PreparedScans) -> str:
    """Return why no skin can be found in both scans; empty where it can."""
    today, plan, scans = ready.today, ready.plan, ready.scans
    if scans.today.modality != "CT" or scans.plan.modality != "CT":
        return "the skin is found in CT alone"
    if today.seen is not None or plan.seen is not None:  # its rim is no skin
        return "the field of view of a scan cuts the patient"
    if today.body is None or plan.body is None:
        return f"no patient was found in {'the plan' if plan.body is None else 'today'}'s CT"
    return ""


def draw_outline(structure: Structure, today: Series, body: NDArray[np.bool_], grid: Geometry) -> Structure:
    """Draw the patient's outline where the scan falls below `BODY_HU`, to a fraction of a pixel.

    Parameters
    ----------
    structure : Structure
        Gives number, name, type and colour.
    today : Series
    body : boolean array
        The patient on ``grid``, without the couch and filled.
    """
    with notices.unheard():  # `working_scan` has warned
        image = tissue_values(today.image)
    known = warp_labels(LabelMap(body.astype(np.uint8), grid), Transform(Field.zero(image.geometry))).data != 0
    contours: list[Contour] = []
    step = today.grid.spacing_mm
    u, v = (np.arange(float(n)) * s for n, s in zip(today.grid.size, step, strict=True))
    for k, one in enumerate(today.slices):
        plane = plane_of(image.geometry, one.position_mm)
        if plane is None or not known[..., plane].any():
            continue
        level = _level(image.data[..., plane], known[..., plane])
        for ring in outlines(level.T, u, v):
            points = one.position_mm + np.outer(ring[:, 0], today.grid.row) + np.outer(ring[:, 1], today.grid.column)
            contours.append(Contour(points, image=k))
    return replace(structure, contours=tuple(contours))


def plane_of(grid: Geometry, position_mm: Float64Array) -> int | None:
    """Return the plane of an even grid that is nearest to a slice; None beyond the grid."""
    back = np.linalg.inv(grid.affine)
    k = round(float((back @ [*position_mm, 1.0])[2]))
    return k if 0 <= k < grid.shape[2] else None


def _level(plane: NDArray[np.float32], inside: NDArray[np.bool_]) -> Float64Array:
    """Negative inside the patient; its zero lies where the skin's edge falls below the limit."""
    core = ndimage.binary_erosion(inside, iterations=2, border_value=1)
    near = ndimage.binary_dilation(inside, iterations=2)
    level = BODY_HU - plane.astype(np.float64)
    return np.asarray(np.where(core, -FAR, np.where(near, level, FAR)))
