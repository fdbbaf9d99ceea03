"""Close-ups of structures: tiles of both images in three planes through the centre, with the outline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave.report.viewer.contours import draw_line
from regweave.report.viewer.data import Shown
from regweave.report.viewer.pictures import PLANES, Picture, grey, square_rows
from regweave.report.viewer.png import data_address, encode_png

MARGIN_MM = 15.0
TILES = 4
"""Tiles across a close-up."""
PIXELS = 200
"""Width of a picture."""


def closeups(shown: Shown, which: str = "after") -> dict[int, list[Picture]]:
    """Return three pictures of each structure that the contours of a set or a label map show, by its label.

    Parameters
    ----------
    shown : Shown
    which : str
        The label map whose outlines are drawn where there is no structure set.
    """
    if shown.contours is None and which not in shown.labels:
        return {}
    window = shown.windows[0]
    fixed = grey(shown.tables["fixed"][shown.codes["fixed"]], window["fixed"])
    warped = grey(shown.tables["moving"][shown.codes["warped"]], window["moving"])
    found: dict[int, list[Picture]] = {}
    for row in shown.structures:
        box = _box(shown, which, row["code"])
        if box is not None:
            found[row["label"]] = [_plane(plane, row, box, (fixed, warped), shown, which) for plane in PLANES]
    return found


def _box(shown: Shown, which: str, code: int) -> list[tuple[int, int]] | None:
    """Return the voxels of the page between which a structure lies, None where it is not drawn."""
    if shown.contours is None:
        found = ndimage.find_objects((shown.labels[which] == code).astype(np.uint8))
        return [(part.start, part.stop) for part in found[0]] if found else None
    shape = np.array(shown.display.geometry.shape)
    own = [ring for found in shown.contours.by_slice.get(code, {}).values() for ring in found]
    if not own:
        return None
    low, high = shown.contours.corners(own)
    first = np.clip(np.floor(low + 0.5), 0, shape - 1).astype(int).tolist()
    last = np.clip(np.ceil(high + 0.5), np.add(first, 1), shape).astype(int).tolist()
    return list(zip(first, last, strict=True))


def _plane(
    plane: str,
    row: Mapping[str, Any],
    box: Sequence[tuple[int, int]],
    volumes: tuple[NDArray[Any], NDArray[Any]],
    shown: Shown,
    which: str,
) -> Picture:
    across, down, through, up = PLANES[plane]
    spacing_mm, shape = shown.display.geometry.spacing_mm, shown.display.geometry.shape
    part = {}
    for axis in (across, down):
        more = int(np.ceil(MARGIN_MM / spacing_mm[axis]))
        part[axis] = slice(max(0, box[axis][0] - more), min(box[axis][1] + more, shape[axis]))
    place = row["centre"][through] if row["centre"] else sum(box[through]) // 2
    where = int(np.clip(np.rint(place), 0, shape[through] - 1))
    a, b = (np.take(v, where, axis=through)[part[across], part[down]].T for v in volumes)  # rows run down
    mixed = np.where(_tiles((a.shape[0], a.shape[1]), spacing_mm[[across, down]]), a, b)
    pixels = _enlarged(mixed, spacing_mm[down] / spacing_mm[across])
    if shown.contours is None:
        drawn = np.take(shown.labels[which], where, axis=through)[part[across], part[down]].T
        mask = _enlarged(drawn == row["code"], spacing_mm[down] / spacing_mm[across])
    else:
        v, u = (
            part[axis].start - 0.5 + (np.arange(n) + 0.5) * (part[axis].stop - part[axis].start) / n
            for axis, n in zip((down, across), pixels.shape, strict=True)
        )
        mask = shown.contours.mask(row["code"], through, place, u, v)
    picture = np.repeat(pixels[..., None], 3, axis=2)
    draw_line(picture, mask, row["colour"])
    seen = picture[::-1] if up else picture
    text = f"{row['name']}, {plane.lower()}"
    height = round(PIXELS * seen.shape[0] / seen.shape[1])
    return Picture(data_address(encode_png(np.ascontiguousarray(seen))), text, PIXELS, height)


def _tiles(size: tuple[int, int], step_mm: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mark the tiles of a checkerboard (rows, columns), square in millimetres."""
    tile = max(size[1] * step_mm[0], size[0] * step_mm[1]) / TILES
    v, u = (np.floor(np.arange(n) * s / tile) for n, s in zip(size, step_mm[::-1], strict=True))
    return np.asarray((v[:, None] + u[None]) % 2 == 0)


def _enlarged(plane: NDArray[Any], aspect: float) -> NDArray[Any]:
    """Give a plane square pixels, several a voxel where it is small, so that an outline is thinner than a voxel."""
    times = 1 + PIXELS // plane.shape[1]
    return np.repeat(square_rows(plane, aspect * times), times, axis=1)
