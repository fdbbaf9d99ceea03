"""PNG pictures of 8-bit pixels: the few chunks a picture needs."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave.report.viewer.contours import draw_line
from regweave.report.viewer.data import Shown
from regweave.types import Float32Array

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GREY, RGB = 0, 2


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    r"""Encode grey (rows, columns) or RGB (rows, columns, 3) pixels.

    Examples
    --------
    >>> encode_png(np.zeros((2, 3), dtype=np.uint8))[:4]
    b'\x89PNG'
    """
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (3,)):
        raise ValueError(f"pixels are {pixels.dtype} of shape {pixels.shape}; needed are uint8, (H, W) or (H, W, 3)")
    height, width = pixels.shape[:2]
    colour = GREY if pixels.ndim == 2 else RGB
    rows = np.ascontiguousarray(pixels).reshape(height, -1)
    filtered = np.hstack([np.zeros((height, 1), dtype=np.uint8), rows])  # filter 0: rows are not transformed
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(filtered.tobytes(), 9)) + _chunk(b"IEND")


def data_address(png: bytes) -> str:
    """Return a picture as an address that holds the picture itself."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _chunk(kind: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


PLANES = {"Axial": (0, 1, 2, False), "Coronal": (0, 2, 1, True), "Sagittal": (1, 2, 0, True)}
"""Display axis across, down and through, and whether the one down runs upwards."""
WIDTH = 320


@dataclass(frozen=True)
class Picture:
    """A picture as an address that holds it, with its words and its size in pixels of the page."""

    address: str
    text: str
    width: int
    height: int


def pictures(shown: Shown) -> list[Picture]:
    """Return fixed, warped and difference in the three planes through the start of the viewer, with the contours."""
    window = shown.windows[0]
    fixed = grey(shown.tables["fixed"][shown.codes["fixed"]], window["fixed"])
    warped = grey(shown.tables["moving"][shown.codes["warped"]], window["moving"])
    half = (fixed.astype(np.int16) - warped.astype(np.int16)) // 2
    volumes = {"fixed": fixed, "warped": warped, "difference": (128 + half).clip(0, 255).astype(np.uint8)}
    spacing = shown.display.geometry.spacing_mm
    out = []
    for plane, (across, down, through, up) in PLANES.items():
        at = shown.start[through]
        where = int(np.clip(np.rint(at), 0, fixed.shape[through] - 1))
        masks: list[NDArray[np.bool_]] = []
        for name, volume in volumes.items():
            cut = np.take(volume, where, axis=through).T  # rows run down
            rows = square_rows(cut, spacing[down] / spacing[across])
            if shown.contours is not None:
                rows = np.repeat(np.repeat(rows, times := 1 + WIDTH // rows.shape[1], axis=0), times, axis=1)
                v, u = ((np.arange(n) + 0.5) * m / n - 0.5 for n, m in zip(rows.shape, cut.shape, strict=True))
                rows = np.repeat(rows[..., None], 3, axis=2)
                masks = masks or [shown.contours.mask(one["code"], through, at, u, v) for one in shown.structures]
                for one, mask in zip(shown.structures, masks, strict=True):
                    draw_line(rows, mask, one["colour"])
            rows = rows[::-1] if up else rows
            height = max(1, round(WIDTH * rows.shape[0] / rows.shape[1]))
            address = data_address(encode_png(np.ascontiguousarray(rows)))
            out.append(Picture(address, f"{plane}, {name}", WIDTH, height))
    return out


def square_rows(plane: NDArray[Any], aspect: float) -> NDArray[Any]:
    """Repeat or leave out rows so that pixels become square; ``aspect`` is their height by their width.

    Examples
    --------
    >>> square_rows(np.array([[1, 2], [3, 4]]), 2.0)[:, 0].tolist()
    [1, 1, 3, 3]
    """
    count = max(1, round(len(plane) * aspect))
    return np.asarray(plane[np.minimum(((np.arange(count) + 0.5) / count * len(plane)).astype(int), len(plane) - 1)])


def grey(values: Float32Array, window: tuple[float, float]) -> NDArray[np.uint8]:
    """Return values of a window as 256 levels."""
    low, high = window
    return np.asarray(np.rint(255 * np.clip((values - low) / max(high - low, 1e-9), 0, 1)), dtype=np.uint8)


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
    """Return the bounding box of a structure in voxels of the page; None if it is not drawn."""
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
