"""Slices of one registration to look at, and the error of a known deformation."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.datasets.simulate import between
from regweave.io import read_image, read_transform
from regweave.types import Field, Geometry, LabelMap, Volume

PLANES = {"axial": 2, "coronal": 1}
"""Views by the patient axis (LPS) that they are perpendicular to."""


def true_errors_mm(found: Field, truths: Sequence[str | None], masks: LabelMap) -> dict[str, dict[str, float]]:
    """Mean distance to the true deformation by label, before and after registration.

    Parameters
    ----------
    found : Field
        Displacement from the fixed to the moving scan.
    truths : (path or None, path or None)
        Files of the fixed and the moving scan with the deformation from the original; None for the original itself.
    masks : LabelMap
        Fixed organs.
    """
    truth = _truth(truths, masks.geometry)
    after = np.linalg.norm(found.data - truth.data, axis=0)
    before = np.linalg.norm(truth.data, axis=0)
    inside = {str(c): masks.data == c for c in masks.values()}
    return {c: {"before": float(before[m].mean()), "after": float(after[m].mean())} for c, m in inside.items()}


def _truth(paths: Sequence[str | None], geometry: Geometry) -> Field:
    """Return the true deformation from the fixed to the moving scan; a scan without a file is the original."""
    fixed, moving = (Field.zero(geometry) if p is None else read_transform(p, geometry).field for p in paths)
    return between(fixed, moving)


def slices(pictures: Mapping[str, tuple[Volume, LabelMap]], masks: LabelMap) -> dict[str, Any]:
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
