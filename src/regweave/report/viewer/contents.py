"""Contents of the folder of a registration, read for its page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from regweave.errors import RegweaveError
from regweave.io.dicom.rtstruct import read_drawn
from regweave.io.disk.files import damaged, is_file
from regweave.io.disk.texts import read_json
from regweave.io.grids import check_same_grid
from regweave.io.images import read_labels, read_volumes
from regweave.io.records.folders import RESULT
from regweave.io.records.schema import read_record
from regweave.io.records.view import FOLDER, read_nodes
from regweave.io.transforms.files import read_transform
from regweave.report.records import ResultRecord
from regweave.report.signoff import reviewed_hashes
from regweave.types import Field, Float32Array, Geometry, LabelArray, NodeEvidence, Structure

IMAGES = {"fixed": f"{FOLDER}/fixed.nii.gz", "moving": f"{FOLDER}/moving.nii.gz", "warped": "warped.nii.gz"}
LABELS = {
    "fixed": f"{FOLDER}/fixed_labels.nii.gz",
    "before": f"{FOLDER}/moving_labels.nii.gz",
    "after": "warped_labels.nii.gz",
}

STRUCTURE_SET = "structure set"
"""What ``result.json`` calls the file of the contours."""


@dataclass(frozen=True)
class Contents:
    """A registration as its folder tells it; everything lies on the fixed grid.

    Parameters
    ----------
    record : ResultRecord
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

    record: ResultRecord
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
    record = read_record(ResultRecord, folder / RESULT)
    if not (folder / FOLDER / "view.json").is_file():
        message = f"'{folder}' has no folder '{FOLDER}': it was written without what the page shows"
        raise RegweaveError("E198", message, "register again without --no-report")
    view = read_json(folder / FOLDER / "view.json")
    try:
        members = tuple(str(m) for m in view["members"])
        names = {int(value): str(name) for value, name in view["names"].items()}
        sources = {str(key): str(name) for key, name in view["sources"].items()}
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise damaged(f"'{folder / FOLDER / 'view.json'}'", f"it does not describe a view ({error})") from error
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
        names=names,
        sources=sources,
        field=transform.field,
        nodes=read_nodes(folder, members),
        refined_mm=tuple(transform.interpolated.geometry.spacing_mm.tolist()),
        reviewed=reviewed_hashes(folder),
    )


def _structure_set(folder: Path, record: ResultRecord) -> tuple[Structure, ...] | None:
    """Read the structure set of a propagation; a saved result, or that of an old version, has none with its slices."""
    clinic = record.clinic
    if clinic is None or not clinic.slices_mm or not is_file(folder / clinic.files.get(STRUCTURE_SET, "")):
        return None
    return read_drawn(folder / clinic.files[STRUCTURE_SET])


def _label_files(folder: Path) -> dict[str, Path]:
    """Label maps on the fixed grid that are there; one among the data of the page stands for a file on another grid."""
    found = {name: folder / path for name, path in LABELS.items()}
    if (folder / FOLDER / LABELS["after"]).is_file():
        found["after"] = folder / FOLDER / LABELS["after"]
    return {name: path for name, path in found.items() if path.is_file()}


def _labels(path: Path, geometry: Geometry) -> LabelArray:
    labels = read_labels(path)
    check_same_grid(geometry, labels.geometry, path)
    return labels.data
