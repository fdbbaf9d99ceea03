"""Still pictures of a page: planes as PNG, and close-ups of structures in a checkerboard of both images."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave.report.viewer import Viewer
from regweave.types import Float64Array

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GREY, RGB = 0, 2
PLANES = {"Axial": (0, 1, 2, False), "Coronal": (0, 2, 1, True), "Sagittal": (1, 2, 0, True)}
"""Display axis across, down and through, and whether the one down runs upwards."""
WIDTH = 320
CLOSEUP_WIDTH = 200  # pixels of a plane, and of a close-up
MARGIN_MM = 15.0
TILES = 4  # tiles across a close-up
DARK = 0.2  # colours of less luminance than this have a light rim, others a dark one
WIDE = 300  # pictures of more pixels across have lines of two


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


class Picture(NamedTuple):
    """A picture as an address that holds it, with its caption and its size in pixels of the page."""

    address: str
    text: str
    width: int
    height: int

    @classmethod
    def of(cls, pixels: NDArray[np.uint8], text: str, width: int) -> Picture:
        """Encode pixels that are shown at a width."""
        height = max(1, round(width * pixels.shape[0] / pixels.shape[1]))
        return cls(data_address(encode_png(pixels)), text, width, height)


def pictures(shown: Viewer) -> list[Picture]:
    """Return fixed, warped and difference in the three planes through the start of the viewer, with the contours."""
    fixed, warped = _greys(shown)
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
            out.append(Picture.of(rows[::-1] if up else rows, f"{plane}, {name}", WIDTH))
    return out


def _greys(shown: Viewer) -> list[NDArray[np.uint8]]:
    """Return the fixed and the warped image in the first window, as 256 levels."""
    window = shown.windows[0]
    out = []
    for name, table in (("fixed", "fixed"), ("warped", "moving")):
        low, high = window[table]
        values = shown.tables[table][shown.codes[name]]
        out.append(np.asarray(np.rint(255 * np.clip((values - low) / max(high - low, 1e-9), 0, 1)), dtype=np.uint8))
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


def draw_line(picture: NDArray[np.uint8], inside: NDArray[np.bool_], colour: str) -> None:
    """Draw the border of a mask into an RGB picture, with a rim that is visible on black and on white."""
    boxes = ndimage.find_objects(inside.astype(np.uint8))
    if not boxes:
        return
    near = tuple(slice(max(0, part.start - 1), part.stop + 1) for part in boxes[0])
    picture, inside, across = picture[near], inside[near], inside.shape[1]
    rgb = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
    wide = 2 if across > WIDE else 1
    line = inside & ~ndimage.binary_erosion(inside, iterations=wide, border_value=1)
    rim = ndimage.binary_dilation(line) & ~line
    picture[rim] = 255 if np.dot(rgb, (0.2126, 0.7152, 0.0722)) < 255 * DARK else 0
    picture[line] = rgb


def closeups(shown: Viewer) -> dict[int, list[Picture]]:
    """Return three pictures of each structure that the contours of a set or the warped labels show, by its label."""
    if shown.contours is None and "after" not in shown.labels:
        return {}
    greys = _greys(shown)
    boxes = ((row, _box(shown, row["code"])) for row in shown.structures)
    return {
        row["label"]: [_closeup(plane, row, box, greys, shown) for plane in PLANES]
        for row, box in boxes
        if box is not None
    }


def _box(shown: Viewer, code: int) -> list[tuple[int, int]] | None:
    """Return the bounding box of a structure in voxels of the page; None if it is not drawn."""
    if shown.contours is None:
        boxes = ndimage.find_objects((shown.labels["after"] == code).astype(np.uint8))
        return [(part.start, part.stop) for part in boxes[0]] if boxes else None
    shape = np.array(shown.display.geometry.shape)
    rings = [ring for of_slice in shown.contours.by_slice.get(code, {}).values() for ring in of_slice]
    if not rings:
        return None
    low, high = shown.contours.corners(rings)
    first = np.clip(np.floor(low + 0.5), 0, shape - 1).astype(int).tolist()
    last = np.clip(np.ceil(high + 0.5), np.add(first, 1), shape).astype(int).tolist()
    return list(zip(first, last, strict=True))


def _closeup(
    plane: str,
    row: Mapping[str, Any],
    box: Sequence[tuple[int, int]],
    greys: Sequence[NDArray[np.uint8]],
    shown: Viewer,
) -> Picture:
    """Cut a plane through the middle of a structure: tiles of both images, and the outline of the structure."""
    across, down, through, up = PLANES[plane]
    spacing_mm, shape = shown.display.geometry.spacing_mm, shown.display.geometry.shape
    part = {}
    for axis in (across, down):
        more = int(np.ceil(MARGIN_MM / spacing_mm[axis]))
        part[axis] = slice(max(0, box[axis][0] - more), min(box[axis][1] + more, shape[axis]))
    place = row["centre"][through] if row["centre"] else sum(box[through]) // 2
    where = int(np.clip(np.rint(place), 0, shape[through] - 1))
    a, b = (np.take(volume, where, axis=through)[part[across], part[down]].T for volume in greys)  # rows run down
    aspect = spacing_mm[down] / spacing_mm[across]
    pixels = _enlarged(np.where(_tiles((a.shape[0], a.shape[1]), spacing_mm[[across, down]]), a, b), aspect)
    if shown.contours is None:
        drawn = np.take(shown.labels["after"], where, axis=through)[part[across], part[down]].T
        mask = _enlarged(drawn == row["code"], aspect)
    else:
        v, u = (
            part[axis].start - 0.5 + (np.arange(n) + 0.5) * (part[axis].stop - part[axis].start) / n
            for axis, n in zip((down, across), pixels.shape, strict=True)
        )
        mask = shown.contours.mask(row["code"], through, place, u, v)
    picture = np.repeat(pixels[..., None], 3, axis=2)
    draw_line(picture, mask, row["colour"])
    return Picture.of(picture[::-1] if up else picture, f"{row['name']}, {plane.lower()}", CLOSEUP_WIDTH)


def _tiles(size: tuple[int, int], step_mm: Float64Array) -> NDArray[np.bool_]:
    """Mark the tiles of a checkerboard (rows, columns), square in millimetres."""
    tile = max(size[1] * step_mm[0], size[0] * step_mm[1]) / TILES
    v, u = (np.floor(np.arange(n) * s / tile) for n, s in zip(size, step_mm[::-1], strict=True))
    return np.asarray((v[:, None] + u[None]) % 2 == 0)


def _enlarged(plane: NDArray[Any], aspect: float) -> NDArray[Any]:
    """Give a plane square pixels, several a voxel where it is small, so that an outline is thinner than a voxel."""
    times = 1 + CLOSEUP_WIDTH // plane.shape[1]
    return np.repeat(square_rows(plane, aspect * times), times, axis=1)
