"""Close-ups of structures: tiles of both images in three planes through the centre, with the outline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave.report.viewer.data import Shown
from regweave.report.viewer.pictures import PLANES, Picture, grey, square_rows
from regweave.report.viewer.png import data_address, encode_png

MARGIN_MM = 15.0
TILES = 4
"""Tiles across a close-up."""
PIXELS = 200
"""Width of a picture."""


def closeups(shown: Shown, which: str = "after") -> dict[int, list[Picture]]:
    """Return three pictures of each structure that a label map shows, by its label.

    Parameters
    ----------
    shown : Shown
    which : str
        The label map whose outlines are drawn.
    """
    if which not in shown.labels:
        return {}
    window = shown.windows[0]
    fixed = grey(shown.tables["fixed"][shown.codes["fixed"]], window["fixed"])
    warped = grey(shown.tables["moving"][shown.codes["warped"]], window["moving"])
    labels = shown.labels[which]
    boxes = ndimage.find_objects(labels)
    found: dict[int, list[Picture]] = {}
    for row in shown.structures:
        box = boxes[row["code"] - 1] if row["code"] <= len(boxes) else None
        if box is not None:
            found[row["label"]] = [
                _plane(plane, row, box, (fixed, warped, labels), shown.display.geometry.spacing_mm) for plane in PLANES
            ]
    return found


def _plane(
    plane: str,
    row: Mapping[str, Any],
    box: tuple[slice, ...],
    volumes: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
    spacing_mm: NDArray[np.float64],
) -> Picture:
    across, down, through, up = PLANES[plane]
    part = [slice(None)] * 3
    for axis in (across, down):
        more = int(np.ceil(MARGIN_MM / spacing_mm[axis]))
        part[axis] = slice(max(0, box[axis].start - more), box[axis].stop + more)
    where = int(row["centre"][through]) if row["centre"] else (box[through].start + box[through].stop) // 2
    fixed, warped, labels = (np.take(v, where, axis=through) for v in volumes)
    cut = tuple(part[axis] for axis in sorted((across, down)))
    a, b, drawn = (np.asarray(v[cut]).T for v in (fixed, warped, labels))  # rows run down: across comes first
    mixed = np.where(_tiles((a.shape[0], a.shape[1]), spacing_mm[[across, down]]), a, b)
    pixels, mask = (_enlarged(v, spacing_mm[down] / spacing_mm[across]) for v in (mixed, drawn == row["code"]))
    colour = [int(row["colour"][k : k + 2], 16) for k in (1, 3, 5)]
    picture = np.repeat(pixels[..., None], 3, axis=2)
    picture[mask & ~ndimage.binary_erosion(mask, border_value=1)] = colour
    shown = picture[::-1] if up else picture
    text = f"{row['name']}, {plane.lower()}"
    height = round(PIXELS * shown.shape[0] / shown.shape[1])
    return Picture(data_address(encode_png(np.ascontiguousarray(shown))), text, PIXELS, height)


def _tiles(size: tuple[int, int], step_mm: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mark the tiles of a checkerboard (rows, columns), square in millimetres."""
    tile = max(size[1] * step_mm[0], size[0] * step_mm[1]) / TILES
    v, u = (np.floor(np.arange(n) * s / tile) for n, s in zip(size, step_mm[::-1], strict=True))
    return np.asarray((v[:, None] + u[None]) % 2 == 0)


def _enlarged(plane: NDArray[Any], aspect: float) -> NDArray[Any]:
    """Give a plane square pixels, twice as many where it is small, so that an outline is thinner than a voxel."""
    times = 2 if plane.shape[1] < PIXELS // 2 else 1
    return np.repeat(square_rows(plane, aspect * times), times, axis=1)
