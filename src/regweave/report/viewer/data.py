"""Data of the page's viewer: volumes as codes, windows, structures, maps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave.io.dicom.rtstruct import read_drawn
from regweave.io.disk.files import is_file
from regweave.io.geometry import check_same_grid
from regweave.io.points import MARKUPS_SCHEMA
from regweave.measures.body import body_mask
from regweave.report.viewer.contours import Contours, extent, placed
from regweave.report.viewer.maps import GRID_UNIT, confidence_map, grid_field, jacobian_map, member_parts, metric_map
from regweave.report.viewer.volumes import BUDGET, Display, content_box, packed, quantise, structures, windows
from regweave.run.result import Result
from regweave.types import Float32Array, Geometry, LabelArray, Structure, Volume

STRUCTURE_SET = "structure set"
"""Key of the file of the contours in ``result.json``."""
TILES = 8
"""Tiles of the checkerboard along the longest side."""
FIXED_AND_MOVING = {"fixed": "fixed", "moving": "moving", "warped": "warped"}
TODAY_AND_PLAN = {"fixed": "today", "moving": "plan", "warped": "warped"}


@dataclass(frozen=True)
class Shown:
    """Volumes on the grid of the page."""

    geometry: Geometry  # of the fixed image
    display: Display
    codes: Mapping[str, NDArray[np.uint8]]  # of "fixed", "moving", "warped"
    tables: Mapping[str, Float32Array]  # value of each code: "fixed", and "moving" for the other two
    rounding: float  # mean error of the table of the fixed image
    windows: list[dict[str, Any]]  # name and range for both tables; the first is shown at the start
    labels: Mapping[str, NDArray[Any]]  # number of the structure at each voxel, 0 for none, for each label map
    reference: LabelArray | None  # labels on the fixed grid in which Jacobians are measured
    contours: Contours | None  # polygons of the structure set, in place of label maps
    structures: list[dict[str, Any]]  # code, label, name, colour, and centre in voxels of the page, None for none
    start: list[float]  # position of the cross-hair at first
    view: list[list[float]]  # corners of the box that fills the planes at first: the fixed body with its structures
    unit: str  # of the windows; empty without one


def prepare(result: Result, folder: Path, budget: int = BUDGET) -> Shown:
    """Convert the images of a result to the page: cropped to the bodies in them, the rest reduced to a budget.

    Images in memory are taken from there; a saved result reads them here. The folder is read for a structure set alone.
    """
    images, clinic = _on_one_grid(result), result.clinic
    geometry = images["fixed"].geometry
    set_of_structures = _structure_set(folder, result)
    maps = _labels(result, geometry) if set_of_structures is None else {}
    box = content_box(geometry, [image.data for image in images.values()], maps.values())
    drawn = None if set_of_structures is None else extent(set_of_structures, geometry)
    if drawn is not None:
        x, y, z = ((min(a, c), max(b, d)) for (a, b), (c, d) in zip(box, drawn, strict=True))
        box = x, y, z
    display = Display.of(geometry, budget, box)
    small = {name: display.image(image.data) for name, image in images.items()}
    (fixed,), fixed_table = quantise([small["fixed"]])
    (moving, warped), moving_table = quantise([small["moving"], small["warped"]])
    labels, rows = structures(maps, result.images.names, display)
    contours = None
    if set_of_structures is not None and clinic is not None:
        numbers = {row.number: row.number if row.label is None else row.label for row in clinic.structures}
        contours, rows = placed(set_of_structures, numbers, np.array(clinic.slices_mm), geometry, display)
    masks = [data != 0 for data in labels.values() if data.any()]
    content = masks[0] if masks else body_mask(Volume(small["fixed"], display.geometry))
    near = [maps[name] for name in ("fixed", "before") if name in maps][:1]
    view = display.inner(content_box(geometry, [images["fixed"].data], near))
    if contours is not None and contours.rings:
        low, high = contours.corners(contours.rings)
        view = [np.minimum(view[0], low).round(4).tolist(), np.maximum(view[1], high).round(4).tolist()]
    modality = result.provenance.modality
    sides = {"fixed": modality.fixed, "moving": modality.moving}
    return Shown(
        geometry=geometry,
        display=display,
        codes={"fixed": fixed, "moving": moving, "warped": warped},
        tables={"fixed": fixed_table, "moving": moving_table},
        rounding=float(np.abs(fixed_table[fixed] - small["fixed"]).mean()),
        windows=windows(small["fixed"], small["moving"], sides, content),
        labels=labels,
        reference=maps.get("fixed", maps.get("after")),
        contours=contours,
        structures=rows,
        start=_start(labels, rows, contours, display),
        view=view,
        unit="HU" if modality.fixed == "ct" else "",
    )


def _on_one_grid(result: Result) -> dict[str, Volume]:
    """Return the fixed image, the moving one as initially aligned, and the warped one."""
    images = {"fixed": result.fixed, "moving": result.images.before, "warped": result.warped}
    for name, image in images.items():
        check_same_grid(images["fixed"].geometry, image.geometry, f"the {name} image")
    check_same_grid(images["fixed"].geometry, result.transform.field.geometry, "the transform")
    return images


def _labels(result: Result, geometry: Geometry) -> dict[str, LabelArray]:
    """Return the label maps ``fixed``, ``before`` and ``after``, those that exist."""
    saved = result.images
    maps = {"fixed": saved.fixed_labels, "before": saved.labels_before, "after": saved.warped_labels}
    found = {name: labels for name, labels in maps.items() if labels is not None}
    for name, labels in found.items():
        check_same_grid(geometry, labels.geometry, f"the label map '{name}'")
    return {name: labels.data for name, labels in found.items()}


def _structure_set(folder: Path, result: Result) -> tuple[Structure, ...] | None:
    """Read the structure set that a propagation wrote; None for a copy of the result without it."""
    clinic = result.clinic
    if clinic is None or not clinic.slices_mm or not is_file(folder / clinic.files.get(STRUCTURE_SET, "")):
        return None
    return read_drawn(folder / clinic.files[STRUCTURE_SET])


def viewer_data(result: Result, shown: Shown, jacobian_values: Float32Array) -> dict[str, Any]:
    """Return the JSON values that the script of the viewer reads."""
    geometry, nodes, start = shown.display.geometry, result.images.nodes, result.provenance.start
    moved, step = grid_field(result.transform.field, shown.display)
    jacobian = jacobian_map(jacobian_values, shown.display)
    data: dict[str, Any] = {
        "shape": list(geometry.shape),
        "affine": geometry.affine.tolist(),
        "spacing": geometry.spacing_mm.tolist(),
        "view": shown.view,
        "unit": shown.unit,
        "words": FIXED_AND_MOVING if result.clinic is None else TODAY_AND_PLAN,
        "tile": float(max(np.array(geometry.shape) * geometry.spacing_mm)) / TILES,
        "images": {name: _smooth_item(codes) for name, codes in shown.codes.items()},
        "tables": {name: [float(f"{v:.6g}") for v in table] for name, table in shown.tables.items()},
        "windows": shown.windows,
        "labels": {name: _item(codes) for name, codes in shown.labels.items()},
        "structures": shown.structures,
        "landmarks": _landmarks(result, geometry),
        "start": shown.start,
        "initial": None if start.field else [list(row) for row in start.matrix],
        "markups": MARKUPS_SCHEMA,
        "jacobian": {**_smooth_item(jacobian.codes), "first": jacobian.first, "step": jacobian.step},
        "grid": {**_item(_component_last(moved)), "shape": list(moved.shape[1:]), "step": step, "unit": GRID_UNIT},
    }
    if shown.contours is not None:
        data["contours"] = shown.contours.record(geometry.spacing_mm)
    if nodes is not None:
        who, share = metric_map(nodes, shown.display)
        data["metric"] = {
            **_item(who),
            "share": _smooth_item(share),
            "members": list(nodes.members),
            "parts": member_parts(who, len(nodes.members)),
        }
        confidence = confidence_map(nodes, shown.display)
        data["confidence"] = {**_smooth_item(confidence.codes), "first": confidence.first, "step": confidence.step}
    return data


def _item(codes: NDArray[Any]) -> dict[str, Any]:
    return {"type": codes.dtype.str[1:], "data": packed(codes)}


def _smooth_item(codes: NDArray[np.uint8]) -> dict[str, Any]:
    """Pack the differences of neighbours, modulo 256: where values change slowly they take half the room."""
    flat = codes.ravel(order="F")
    return {**_item(np.diff(flat, prepend=flat.dtype.type(0))), "differences": True}


def _component_last(moved: NDArray[np.int16]) -> NDArray[np.int16]:
    """Packed arrays run along their first axis fastest; the component comes last, so each is one block."""
    return np.moveaxis(moved, 0, -1)


def _landmarks(result: Result, geometry: Geometry) -> list[dict[str, Any]]:
    """Return the landmarks in voxels of the page: the fixed one, and its partner before and after."""
    to_voxels = np.linalg.inv(geometry.affine)
    places = {"fixed": "fixed_mm", "before": "start_mm", "after": "warped_mm"}
    return [
        {
            "name": point.name,
            **{key: (to_voxels @ [*getattr(point, name), 1.0])[:3].tolist() for key, name in places.items()},
        }
        for point in (() if result.landmarks is None else result.landmarks.points)
    ]


def _start(
    labels: Mapping[str, NDArray[Any]], rows: list[dict[str, Any]], contours: Contours | None, display: Display
) -> list[float]:
    """Middle of the structures, on one of today's slices where there are contours, or of the volume."""
    centres = [row["centre"] for row in rows if row["centre"]]
    if contours is not None and centres:
        place = [float(p) for p in np.rint(np.mean(centres, axis=0))]
        place[contours.axis] = round(float(contours.slices[np.abs(contours.slices - place[contours.axis]).argmin()]), 6)
        return place
    for data in labels.values():
        if data.any():
            return [int(v) for v in np.rint(ndimage.center_of_mass(data > 0))]
    return [n // 2 for n in display.geometry.shape]
