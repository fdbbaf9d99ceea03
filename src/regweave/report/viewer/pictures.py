"""Still pictures of the middle planes, for browsers that run no script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.report.viewer.contours import draw_line
from regweave.report.viewer.data import Shown
from regweave.report.viewer.png import data_address, encode_png
from regweave.types import Float32Array

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
