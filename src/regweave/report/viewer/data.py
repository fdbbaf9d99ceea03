"""Data of the page's viewer: volumes as codes, windows, structures, maps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.io.modality import recorded_modality
from regweave.report.viewer.contents import Contents
from regweave.report.viewer.maps import GRID_UNIT, confidence_map, grid_field, jacobian_map, member_parts, metric_map
from regweave.report.viewer.volumes import BUDGET, Display, packed, quantise
from regweave.types import Float32Array

Window = dict[str, tuple[float, float]]
CT_WINDOWS = {"soft tissue": (-160.0, 240.0), "bone": (-450.0, 1150.0), "lung": (-1350.0, 150.0)}
AUTO_PERCENTILES = (1.0, 99.5)
TILES = 8
"""Tiles of the checkerboard along the longest side."""


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
    structures : list
        Code, label, name, and centre in voxels of the page where there is one.
    start : tuple of three ints
        Where the cross-hair is at first.
    """

    display: Display
    codes: Mapping[str, NDArray[np.uint8]]
    tables: Mapping[str, Float32Array]
    windows: list[dict[str, Any]]
    labels: Mapping[str, NDArray[Any]]
    structures: list[dict[str, Any]]
    start: tuple[int, int, int]


def prepare(contents: Contents, budget: int = BUDGET) -> Shown:
    """Bring the volumes of a result to the page."""
    display = Display.of(contents.geometry, budget)
    images = {name: display.image(data) for name, data in contents.images.items()}
    (fixed,), fixed_table = quantise([images["fixed"]])
    (moving, warped), moving_table = quantise([images["moving"], images["warped"]])
    modality = recorded_modality(contents.record.provenance.modality)
    labels, structures = _structures(contents, display)
    return Shown(
        display=display,
        codes={"fixed": fixed, "moving": moving, "warped": warped},
        tables={"fixed": fixed_table, "moving": moving_table},
        windows=_windows(images["fixed"], images["moving"], modality),
        labels=labels,
        structures=structures,
        start=_start(labels, display),
    )


def viewer_data(contents: Contents, shown: Shown) -> dict[str, Any]:
    """Put together what the script of the viewer reads."""
    geometry = shown.display.geometry
    moved, step = grid_field(contents.field, shown.display)
    jacobian = jacobian_map(contents.field, shown.display)
    data: dict[str, Any] = {
        "shape": list(geometry.shape),
        "affine": geometry.affine.tolist(),
        "spacing": geometry.spacing_mm.tolist(),
        "start": list(shown.start),
        "tile": float(max(np.array(geometry.shape) * geometry.spacing_mm)) / TILES,
        "images": {name: _item(codes) for name, codes in shown.codes.items()},
        "tables": {name: [float(f"{v:.6g}") for v in table] for name, table in shown.tables.items()},
        "windows": shown.windows,
        "labels": {name: _item(codes) for name, codes in shown.labels.items()},
        "structures": shown.structures,
        "jacobian": {**_item(jacobian.codes), "first": jacobian.first, "step": jacobian.step},
        "grid": {**_item(_component_last(moved)), "shape": list(moved.shape[1:]), "step": step, "unit": GRID_UNIT},
    }
    if contents.nodes is not None:
        who, share = metric_map(contents.nodes, shown.display)
        members = contents.nodes.members
        data["metric"] = {
            **_item(who),
            "share": _item(share),
            "members": list(members),
            "parts": member_parts(who, len(members)),
        }
        confidence = confidence_map(contents.nodes, shown.display)
        data["confidence"] = {**_item(confidence.codes), "first": confidence.first, "step": confidence.step}
    return data


def _item(codes: NDArray[Any]) -> dict[str, str]:
    return {"type": codes.dtype.str[1:], "data": packed(codes)}


def _component_last(moved: NDArray[np.int16]) -> NDArray[np.int16]:
    """Packed arrays run along their first axis fastest; the component comes last, so each is one block."""
    return np.moveaxis(moved, 0, -1)


def _structures(contents: Contents, display: Display) -> tuple[dict[str, NDArray[Any]], list[dict[str, Any]]]:
    maps = {name: display.labels(data) for name, data in contents.labels.items()}
    values = sorted({int(v) for data in contents.labels.values() for v in np.unique(data)} - {0})
    known = np.array([0, *values])
    kind = np.uint8 if len(values) <= 255 else np.uint16
    codes = {name: np.searchsorted(known, data).astype(kind) for name, data in maps.items()}
    rows = [
        {"code": n, "label": v, "name": contents.names.get(v, str(v)), "centre": _centre(codes, n)}
        for n, v in enumerate(values, start=1)
    ]
    return codes, rows


def _centre(codes: Mapping[str, NDArray[Any]], code: int) -> list[int] | None:
    """Voxel of the structure that is nearest to its mean, in the first label map that shows it."""
    for data in codes.values():
        where = np.argwhere(data == code)
        if where.size:
            distance = ((where - where.mean(axis=0)) ** 2).sum(axis=1)
            return [int(i) for i in where[int(distance.argmin())]]
    return None


def _windows(fixed: Float32Array, moving: Float32Array, modality: Mapping[str, str]) -> list[dict[str, Any]]:
    """Windows to choose from: those of CT for an image that is one, beside the range of one that is not."""
    auto = {"fixed": _auto(fixed), "moving": _auto(moving)}
    whole = {name: (float(data.min()), float(data.max())) for name, data in (("fixed", fixed), ("moving", moving))}
    ct = [name for name in auto if modality[name] == "ct"]
    named = {name: {**auto, **dict.fromkeys(ct, w)} for name, w in CT_WINDOWS.items()} if ct else {"auto": auto}
    return [{"name": name, **window} for name, window in {**named, "whole range": whole}.items()]


def _auto(data: Float32Array) -> tuple[float, float]:
    """Range of the voxels above the background, which is taken to be the smallest value."""
    inside = data[data > data.min()]
    if inside.size == 0:
        return float(data.min()), float(data.min()) + 1.0
    low, high = (float(v) for v in np.percentile(inside, AUTO_PERCENTILES))
    return low, max(high, low + 1e-6)


def _start(labels: Mapping[str, NDArray[Any]], display: Display) -> tuple[int, int, int]:
    """Middle of the labelled voxels, or of the volume."""
    for data in labels.values():
        where = np.argwhere(data > 0)
        if where.size:
            x, y, z = (int(v) for v in np.rint(where.mean(axis=0)))
            return x, y, z
    x, y, z = (n // 2 for n in display.geometry.shape)
    return x, y, z
