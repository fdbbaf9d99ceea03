"""Slices of one registration to look at, and the error of a known deformation."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave import notices
from regweave.config.settings import Settings
from regweave.datasets.manifest import FILES, PairFiles
from regweave.datasets.simulate import between
from regweave.io import fill_value, read_image, read_transform, total_displacement
from regweave.jobs.methods import Method
from regweave.pipeline.reading import Reading
from regweave.pipeline.register import register
from regweave.spatial import warp_image, warp_labels
from regweave.study.reproduce.data import TRUTH
from regweave.types import Field, Geometry, LabelMap, Transform, Volume

PLANES = {"axial": 2, "coronal": 1}
"""Views by the patient axis (LPS) that they are perpendicular to."""


def look_task(pair: PairFiles, hashes: Mapping[str, str], method: Method, reading: Reading, *, picture: bool) -> Any:
    """Put the arguments of `look` together as JSON values."""
    truths = [str(path) if (path := getattr(pair, part).parent / TRUTH).is_file() else None for part in FILES[:2]]
    return {
        "files": {name: str(getattr(pair, name)) for name in FILES},
        "sha256": dict(hashes),
        "settings": None if method.model is not None else method.settings.model_dump(mode="json"),
        "model": None if method.model is None else [str(method.model[0]), method.model[1]],
        "reading": reading.to_json(),
        "truths": truths,
        "picture": picture,
    }


def look(task: Mapping[str, Any]) -> dict[str, Any]:
    """Register one pair; return the error by label where the truth is known, and slices where asked for.

    Parameters
    ----------
    task : mapping
        Made by `look_task`.

    Returns
    -------
    dict
        ``error_mm``: by label, mean distance to the true deformation in the fixed organ, before and after; empty
        without a truth. ``views``: by view the slices, see `_slices`; empty unless asked for.
    """
    files, reading = task["files"], Reading.from_json(task["reading"])
    with notices.muted():  # the scored run of this pair has kept them
        result = register(
            **files,
            config=None if task["settings"] is None else Settings.model_validate(task["settings"]),
            model=None if task["model"] is None else task["model"][0],
            threads=1,
            reading=reading,
        )
    fixed = reading.image(files["fixed"])
    masks = reading.labels(files["fixed_labels"], fixed.geometry)
    assert isinstance(masks, LabelMap)
    found = total_displacement(result.transform)
    error = {} if not any(task["truths"]) else _errors(found, _truth(task["truths"], fixed.geometry), masks)
    views = {}
    if task["picture"]:
        moving = reading.image(files["moving"])
        labels = reading.labels(files["moving_labels"], moving.geometry)
        assert isinstance(labels, LabelMap)
        still = Transform(Field.zero(fixed.geometry))
        before = warp_image(moving, still, fill=fill_value(moving)), warp_labels(labels, still)
        assert result.warped_labels is not None
        pictures = {"fixed": (fixed, masks), "before": before, "after": (result.warped, result.warped_labels)}
        views = _slices(pictures, masks)
    return {"error_mm": error, "views": views}


def _truth(paths: Sequence[str | None], geometry: Geometry) -> Field:
    """Return the true deformation from the fixed to the moving scan; a scan without a file is the original."""
    fixed, moving = (Field.zero(geometry) if p is None else read_transform(p, geometry).field for p in paths)
    return between(fixed, moving)


def _errors(found: Field, truth: Field, masks: LabelMap) -> dict[str, dict[str, float]]:
    after = np.linalg.norm(found.data - truth.data, axis=0)
    before = np.linalg.norm(truth.data, axis=0)
    inside = {str(c): masks.data == c for c in masks.values()}
    return {c: {"before": float(before[m].mean()), "after": float(after[m].mean())} for c, m in inside.items()}


def _slices(pictures: Mapping[str, tuple[Volume, LabelMap]], masks: LabelMap) -> dict[str, Any]:
    """Cut all pictures through the middle of the fixed organs, rows from top to bottom as a radiologist looks."""
    out = {}
    for view, patient_axis in PLANES.items():
        axis = int(np.abs(masks.geometry.direction[patient_axis]).argmax())
        count = (masks.data != 0).sum(axis=tuple(i for i in range(3) if i != axis))
        place = int(count.argmax())
        cut: dict[str, Any] = {"pixel_mm": _pixel_mm(masks.geometry, axis, patient_axis)}
        for name, (image, labels) in pictures.items():
            cut[name] = {
                "image": packed(_turned(image.data, image.geometry, axis, place).astype(np.float32)),
                "labels": packed(_turned(labels.data, image.geometry, axis, place).astype(np.uint8)),
            }
        out[view] = cut
    return out


def _axes(geometry: Geometry, axis: int, patient_axis: int) -> tuple[int, int]:
    """Image axes that run down and to the right of a view."""
    down = 1 if patient_axis == 2 else 2
    rows = int(np.abs(geometry.direction[down]).argmax())
    return rows, next(i for i in range(3) if i not in (axis, rows))


def _pixel_mm(geometry: Geometry, axis: int, patient_axis: int) -> list[float]:
    rows, columns = _axes(geometry, axis, patient_axis)
    return [float(geometry.spacing_mm[rows]), float(geometry.spacing_mm[columns])]


def _turned(data: NDArray[Any], geometry: Geometry, axis: int, place: int) -> NDArray[Any]:
    """One slice with the patient's front (or head) up and left side to the right."""
    patient_axis = int(np.abs(geometry.direction[:, axis]).argmax())
    rows, columns = _axes(geometry, axis, patient_axis)
    plane = np.take(data, place, axis=axis)
    plane = plane if rows < columns else plane.T
    down = 1 if patient_axis == 2 else 2
    # LPS: y grows to the back, which is down; z grows to the head, which is up; x grows to the left, shown right.
    up = (geometry.direction[down, rows] < 0) == (down == 1)
    plane = plane[::-1] if up else plane
    return np.asarray(plane[:, ::-1] if geometry.direction[0, columns] < 0 else plane)


def packed(values: NDArray[Any]) -> dict[str, Any]:
    """Return a small array as JSON values."""
    data = base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
    return {"shape": list(values.shape), "dtype": values.dtype.str, "data": data}


def sample_slice(path: Path) -> dict[str, Any]:
    """Return the middle axial slice of an image."""
    image = read_image(path)
    axis = int(np.abs(image.geometry.direction[2]).argmax())
    place = image.geometry.shape[axis] // 2
    plane = _turned(image.data, image.geometry, axis, place).astype(np.float32)
    return {"image": packed(plane), "pixel_mm": _pixel_mm(image.geometry, axis, 2)}
