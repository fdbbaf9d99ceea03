"""Contents of the folder of a registration, read for its page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave.errors import RegweaveError
from regweave.io.dicom.rtstruct import read_drawn
from regweave.io.disk.files import is_file
from regweave.io.geometry import check_same_grid
from regweave.io.images import read_labels, read_volumes
from regweave.io.points import MARKUPS_SCHEMA
from regweave.io.transforms.files import read_transform
from regweave.measures.body import body_mask
from regweave.report.signoff import reviewed_hashes
from regweave.report.viewer.contours import Contours, extent, placed
from regweave.report.viewer.maps import GRID_UNIT, confidence_map, grid_field, jacobian_map, member_parts, metric_map
from regweave.report.viewer.volumes import BUDGET, Display, content_box, packed, quantise, structures, windows
from regweave.run.images import VIEW
from regweave.run.result import Result, load
from regweave.types import Field, Float32Array, Geometry, LabelArray, NodeEvidence, Structure, Volume

IMAGES = {"fixed": f"{VIEW}/fixed.nii.gz", "moving": f"{VIEW}/moving.nii.gz", "warped": "warped.nii.gz"}
LABELS = {
    "fixed": f"{VIEW}/fixed_labels.nii.gz",
    "before": f"{VIEW}/moving_labels.nii.gz",
    "after": "warped_labels.nii.gz",
}

STRUCTURE_SET = "structure set"
"""What ``result.json`` calls the file of the contours."""


@dataclass(frozen=True)
class Contents:
    """A registration as its folder tells it; everything lies on the fixed grid.

    Parameters
    ----------
    record : Result
        ``result.json``.
    geometry : Geometry
        The fixed grid.
    images : mapping
        ``fixed``, ``moving`` as it was at the start, ``warped``.
    labels : mapping
        ``fixed``, ``before`` and ``after``, those that exist; none beside a structure set.
    structures : tuple of Structure, optional
        The structure set that propagation wrote, where the folder holds it.
    names : mapping
        Name of each label.
    sources : mapping
        Name of each input that was a file.
    field : Field
        The deformation, without the affine start.
    nodes : NodeEvidence, optional
        Evidence of the last discrete step.
    refined_mm : tuple of three floats
        Size of the voxels on which the deformation was refined.
    reviewed : mapping
        Hashes of what a sign-off of the page is about.
    """

    record: Result
    geometry: Geometry
    images: Mapping[str, Float32Array]
    labels: Mapping[str, LabelArray]
    structures: tuple[Structure, ...] | None
    names: Mapping[int, str]
    sources: Mapping[str, str]
    field: Field
    nodes: NodeEvidence | None
    refined_mm: tuple[float, ...]
    reviewed: Mapping[str, str]


def read_contents(folder: Path) -> Contents:
    """Read the folder that ``regweave register`` wrote.

    Raises
    ------
    RegweaveError
        E101 or E102 where a file is missing or damaged, E164 where the structure set is none, E178 where the record is
        not one that we wrote, E198 where the folder was written without its view.
    """
    record = load(folder)
    saved = record.images
    if not is_file(folder / VIEW / "view.json"):
        message = f"'{folder}' has no folder '{VIEW}': it was written without what the page shows"
        raise RegweaveError("E198", message, "register again without --no-report")
    images = dict(zip(IMAGES, read_volumes([folder / path for path in IMAGES.values()]), strict=True))
    geometry = images["fixed"].geometry
    for name, image in images.items():
        check_same_grid(geometry, image.geometry, folder / IMAGES[name])
    transform = read_transform(folder / "transform.h5", geometry)
    structures = _structure_set(folder, record)
    files = _label_files(folder) if structures is None else {}
    return Contents(
        record=record,
        geometry=geometry,
        images={name: image.data for name, image in images.items()},
        labels={name: _labels(path, geometry) for name, path in files.items()},
        structures=structures,
        names=saved.names,
        sources=record.provenance.sources,
        field=transform.field,
        nodes=saved.nodes,
        refined_mm=tuple(transform.interpolated.geometry.spacing_mm.tolist()),
        reviewed=reviewed_hashes(folder),
    )


def _structure_set(folder: Path, record: Result) -> tuple[Structure, ...] | None:
    """Read the structure set of a propagation; a saved result, or that of an old version, has none with its slices."""
    clinic = record.clinic
    if clinic is None or not clinic.slices_mm or not is_file(folder / clinic.files.get(STRUCTURE_SET, "")):
        return None
    return read_drawn(folder / clinic.files[STRUCTURE_SET])


def _label_files(folder: Path) -> dict[str, Path]:
    """Label maps on the fixed grid that are there; one among the data of the page stands for a file on another grid."""
    found = {name: folder / path for name, path in LABELS.items()}
    if (folder / VIEW / LABELS["after"]).is_file():
        found["after"] = folder / VIEW / LABELS["after"]
    return {name: path for name, path in found.items() if path.is_file()}


def _labels(path: Path, geometry: Geometry) -> LabelArray:
    labels = read_labels(path)
    check_same_grid(geometry, labels.geometry, path)
    return labels.data


TILES = 8
"""Tiles of the checkerboard along the longest side."""
FIXED_AND_MOVING = {"fixed": "fixed", "moving": "moving", "warped": "warped"}
TODAY_AND_PLAN = {"fixed": "today", "moving": "plan", "warped": "warped"}


@dataclass(frozen=True)
class Shown:
    """Volumes on the grid of the page.

    Parameters
    ----------
    display : Display
        How they came there.
    codes : mapping
        uint8 codes of ``fixed``, ``moving``, ``warped``.
    tables : mapping
        Value of each code: ``fixed``, and ``moving`` for the other two.
    windows : list
        Name and range for both tables; the first is shown at the start.
    labels : mapping
        Number of the structure at each voxel, 0 for none, for each label map.
    contours : Contours, optional
        Polygons of the structure set, in place of label maps.
    structures : list
        Code, label, name, colour, and centre in voxels of the page where there is one.
    start : list of three numbers
        Where the cross-hair is at first.
    view : list of two points
        Corners of what fills the planes at first: the fixed body with its structures.
    unit : str
        Unit of the windows, where numbers have one.
    """

    display: Display
    codes: Mapping[str, NDArray[np.uint8]]
    tables: Mapping[str, Float32Array]
    windows: list[dict[str, Any]]
    labels: Mapping[str, NDArray[Any]]
    contours: Contours | None
    structures: list[dict[str, Any]]
    start: list[float]
    view: list[list[float]]
    unit: str


def prepare(contents: Contents, budget: int = BUDGET) -> Shown:
    """Bring the volumes of a result to the page: cropped to the bodies in them, the rest reduced to a budget."""
    drawn = None if contents.structures is None else extent(contents.structures, contents.geometry)
    box = content_box(contents.geometry, contents.images.values(), contents.labels.values())
    if drawn is not None:
        x, y, z = ((min(a, c), max(b, d)) for (a, b), (c, d) in zip(box, drawn, strict=True))
        box = x, y, z
    display = Display.of(contents.geometry, budget, box)
    images = {name: display.image(data) for name, data in contents.images.items()}
    (fixed,), fixed_table = quantise([images["fixed"]])
    (moving, warped), moving_table = quantise([images["moving"], images["warped"]])
    modality = contents.record.provenance.modality
    labels, rows = structures(contents.labels, contents.names, display)
    contours = None
    if contents.structures is not None and contents.record.clinic is not None:
        clinic = contents.record.clinic
        numbers = {row.number: row.number if row.label is None else row.label for row in clinic.structures}
        contours, rows = placed(contents.structures, numbers, np.array(clinic.slices_mm), contents.geometry, display)
    masks = [data != 0 for data in labels.values() if data.any()]
    content = masks[0] if masks else body_mask(Volume(images["fixed"], display.geometry))
    near = [contents.labels[name] for name in ("fixed", "before") if name in contents.labels][:1]
    view = display.inner(content_box(contents.geometry, [contents.images["fixed"]], near))
    if contours is not None and contours.rings:
        low, high = contours.corners(contours.rings)
        view = [np.minimum(view[0], low).round(4).tolist(), np.maximum(view[1], high).round(4).tolist()]
    return Shown(
        display=display,
        codes={"fixed": fixed, "moving": moving, "warped": warped},
        tables={"fixed": fixed_table, "moving": moving_table},
        windows=windows(
            images["fixed"], images["moving"], {"fixed": modality.fixed, "moving": modality.moving}, content
        ),
        labels=labels,
        contours=contours,
        structures=rows,
        start=_start(labels, rows, contours, display),
        view=view,
        unit="HU" if modality.fixed == "ct" else "",
    )


def image_words(contents: Contents) -> dict[str, str]:
    """Return what the page calls the images: as the reader of a propagation knows them, else as everywhere."""
    return dict(FIXED_AND_MOVING if contents.record.clinic is None else TODAY_AND_PLAN)


def viewer_data(contents: Contents, shown: Shown, jacobian_values: Float32Array) -> dict[str, Any]:
    """Put together what the script of the viewer reads."""
    geometry = shown.display.geometry
    moved, step = grid_field(contents.field, shown.display)
    jacobian = jacobian_map(jacobian_values, shown.display)
    data: dict[str, Any] = {
        "shape": list(geometry.shape),
        "affine": geometry.affine.tolist(),
        "spacing": geometry.spacing_mm.tolist(),
        "view": shown.view,
        "unit": shown.unit,
        "words": image_words(contents),
        "tile": float(max(np.array(geometry.shape) * geometry.spacing_mm)) / TILES,
        "images": {name: _smooth_item(codes) for name, codes in shown.codes.items()},
        "tables": {name: [float(f"{v:.6g}") for v in table] for name, table in shown.tables.items()},
        "windows": shown.windows,
        "labels": {name: _item(codes) for name, codes in shown.labels.items()},
        "structures": shown.structures,
        "landmarks": _landmarks(contents, geometry),
        "start": shown.start,
        "initial": _initial(contents),
        "markups": MARKUPS_SCHEMA,
        "jacobian": {**_smooth_item(jacobian.codes), "first": jacobian.first, "step": jacobian.step},
        "grid": {**_item(_component_last(moved)), "shape": list(moved.shape[1:]), "step": step, "unit": GRID_UNIT},
    }
    if shown.contours is not None:
        data["contours"] = shown.contours.record(geometry.spacing_mm)
    if contents.nodes is not None:
        who, share = metric_map(contents.nodes, shown.display)
        members = contents.nodes.members
        data["metric"] = {
            **_item(who),
            "share": _smooth_item(share),
            "members": list(members),
            "parts": member_parts(who, len(members)),
        }
        confidence = confidence_map(contents.nodes, shown.display)
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


def _landmarks(contents: Contents, geometry: Geometry) -> list[dict[str, Any]]:
    """Return the landmarks in voxels of the page: the fixed one, and its partner before and after."""
    found = contents.record.landmarks
    to_voxels = np.linalg.inv(geometry.affine)
    places = {"fixed": "fixed_mm", "before": "start_mm", "after": "warped_mm"}
    return [
        {
            "name": point.name,
            **{key: (to_voxels @ [*getattr(point, name), 1.0])[:3].tolist() for key, name in places.items()},
        }
        for point in ([] if found is None else found.points)
    ]


def _initial(contents: Contents) -> list[list[float]] | None:
    """Return the matrix of the start, from fixed to moving points; None where the record has none."""
    start = contents.record.provenance.start
    return None if start.field else [list(row) for row in start.matrix]


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
