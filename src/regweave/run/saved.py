"""Saved registrations: a folder on disk opened again as a `Result`."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from regweave.config import presets as registration_settings
from regweave.errors import RegweaveError
from regweave.io import read_image, read_labels, read_transform
from regweave.io.disk.files import is_file
from regweave.io.disk.records import checked
from regweave.io.disk.text import parse_json, read_text
from regweave.io.modality import recorded_modality
from regweave.measures.deformation import InverseError
from regweave.measures.landmarks import LandmarkScore
from regweave.measures.propagation import ClinicSection
from regweave.measures.scores import PairScore
from regweave.registration.align import StepRecord
from regweave.registration.refine import RefineStep
from regweave.run import images as view
from regweave.run.images import FILES
from regweave.run.record import RunRecord
from regweave.run.rerun import recorded_rules
from regweave.run.result import RECORD, Result
from regweave.spatial.invert import invert
from regweave.types import Field, LabelMap, Transform, Volume, WeightTable

REGULARITY = (
    "folding_fraction", "extreme_fraction", "low_fraction", "high_fraction", "sdlogj", "sdlogj_l2r", "min_jacobian",
    "max_jacobian", "jacobian_p1", "jacobian_p99",
)  # fmt: skip
PROGRAM = ("regweave", "python", "dependencies", "platform")


@dataclass(frozen=True)
class SavedImages:
    """Images and transforms of a registration in its folder, each read when it is first asked for.

    Parameters
    ----------
    folder : Path
        Folder that ``regweave register`` or `Result.save` wrote.
    inputs : collection of str
        Inputs of the registration; labels that are not among them have no file.
    record : mapping, optional
        What ``result.json`` says of the run.
    """

    folder: Path
    inputs: Collection[str]
    record: Mapping[str, Any] | None = None

    @property
    def start(self) -> Transform:
        """The transform of the start, which the record holds where it is a matrix.

        Raises
        ------
        RegweaveError
            E198, where the start was a field.
        """
        start = (self.record or {}).get("start") or {}
        if start.get("matrix") is None or start.get("field"):
            message = f"'{self.folder}' does not hold its start: the record has no matrix of it"
            raise RegweaveError("E198", message, "register again, with the landmarks")
        return Transform(Field.zero(self.transform.field.geometry), np.array(start["matrix"], dtype=np.float64))

    @cached_property
    def transform(self) -> Transform:
        """The transform from fixed to moving points."""
        return self._transform("transform")

    @cached_property
    def inverse(self) -> Transform:
        """Its inverse, computed where no file holds it and the transform names the grid it leads to."""
        if not is_file(self.folder / FILES["inverse"]) and self.transform.ends is not None:
            return invert(self.transform).transform
        return self._transform("inverse")

    @cached_property
    def warped(self) -> Volume:
        """The moving image on the fixed grid."""
        return read_image(self._file(FILES["warped"]))

    @cached_property
    def warped_labels(self) -> LabelMap | None:
        """The moving labels on the fixed grid."""
        shown = f"{view.FOLDER}/{FILES['labels']}"
        return self._labels("moving_labels", shown if is_file(self.folder / shown) else FILES["labels"])

    @cached_property
    def fixed(self) -> Volume:
        """The fixed image; a CT has whole Hounsfield units here."""
        return read_image(self._file(f"{view.FOLDER}/fixed.nii.gz"))

    @cached_property
    def fixed_labels(self) -> LabelMap | None:
        """Labels of the fixed image."""
        return self._labels("fixed_labels", f"{view.FOLDER}/fixed_labels.nii.gz")

    @property
    def before(self) -> Volume:
        """The moving image on the fixed grid, as initially aligned."""
        return read_image(self._file(f"{view.FOLDER}/moving.nii.gz"))

    @property
    def labels_before(self) -> LabelMap | None:
        """The moving labels on the fixed grid, as initially aligned."""
        return self._labels("moving_labels", f"{view.FOLDER}/moving_labels.nii.gz")

    def usual_outputs(self) -> tuple[str, ...]:
        """Names of the files that are there."""
        there = [name for name in FILES if is_file(self.folder / FILES[name])]
        if "moving_labels" not in self.inputs and "report" in there:
            there.append("labels")  # none to show is no hindrance to a page
        return tuple(name for name in FILES if name in there)

    def write(self, folder: Path, chosen: Collection[str], _sources: Mapping[str, str]) -> None:
        """Copy the chosen files, and what the page is made from; the page itself is made again."""
        for name in chosen:
            if name == "report":
                shutil.copytree(self._file(f"{view.FOLDER}/view.json").parent, folder / view.FOLDER)
            elif name != "labels" or "moving_labels" in self.inputs:
                shutil.copyfile(self._file(FILES[name]), folder / FILES[name])

    def _transform(self, name: str) -> Transform:
        path = self._file(FILES[name])
        found = read_transform(path)
        return found if found.ends is None else read_transform(path, found.ends.start)

    def _labels(self, source: str, name: str) -> LabelMap | None:
        return read_labels(self._file(name)) if source in self.inputs else None

    def _file(self, name: str) -> Path:
        path = self.folder / name
        if is_file(path):
            return path
        message = f"'{self.folder}' has no {name}: the result was written without it"
        raise RegweaveError("E198", message, "register again with all outputs; see --write, or save(write=…)")


def load(folder: str | Path) -> Result:
    """Open the folder of a registration.

    Parameters
    ----------
    folder : path
        What ``regweave register -o`` or `Result.save` wrote.

    Returns
    -------
    Result
        With the same numbers; images and transforms are read when they are asked for.

    Raises
    ------
    RegweaveError
        E101 where there is no such result, E178 where ``result.json`` is not what the program writes; E198 and E102,
        when it is asked for, where an image was not written or is damaged.
    """
    where = Path(folder)
    path = where / RECORD
    text = read_text(path)
    try:
        return _result(where, parse_json(text))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"'{path}' is not a record that regweave wrote ({type(error).__name__}: {error})"
        raise RegweaveError("E178", message, "open the folder as it was written, or register again") from error


def put_away(result: Result, folder: Path) -> Result:
    """Return a result whose files are written without its images: they are read from the folder when asked for."""
    return replace(result, images=SavedImages(folder, frozenset(result.hashes)))


def _result(folder: Path, content: Mapping[str, Any]) -> Result:
    run, table, there = content["provenance"], content["weights"], content["inverse_consistency_mm"]
    inexact = content.get("inverse_error")
    record = RunRecord.read(run)
    found, section = content.get("landmarks"), content.get("clinic")
    inputs = {} if record is None else record.inputs
    return Result(
        images=SavedImages(folder, frozenset(run["inputs_sha256"]), run),
        score=PairScore.read((int(row["label"]), row) for row in content["structures"]),
        steps=tuple(_row(StepRecord, row) for row in content["steps"]),
        refinement=tuple(_row(RefineStep, row) for row in content["refinement"]),
        regularity={name: _number(content[name]) for name in REGULARITY if name in content},
        inverse_consistency_mm={name: _number(value) for name, value in there.items()},
        inverse_error=None if inexact is None else InverseError.read(inexact),
        seconds={name: float(value) for name, value in content["seconds"].items() if name != "total"},
        peak_memory_mb=float(content["peak_memory_mb"]),
        warnings=tuple(map(str, content["warnings"])),
        weights=WeightTable.from_json(table),
        settings=registration_settings.validate(run["settings"], f"'{folder / RECORD}'"),
        modality=recorded_modality(run.get("modality"))["bank"],
        hashes=dict(run["inputs_sha256"]),
        threads=int(run["threads"]),
        classes_from=run["classes_from"],
        sources={name: str(one["path"]) for name, one in inputs.items() if one["path"] is not None},
        record=record,
        rules=recorded_rules(folder / RECORD),
        program={name: run[name] for name in PROGRAM},
        landmarks=None if found is None else LandmarkScore.read(found),
        clinic=None if section is None else checked(ClinicSection, section, folder / RECORD),
    )


def _row(kind: Any, row: Mapping[str, Any]) -> Any:
    """Return a step with NaN for the numbers that JSON has no word for."""
    return kind(**{f.name: _number(row[f.name]) if row[f.name] is None else row[f.name] for f in fields(kind)})


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
