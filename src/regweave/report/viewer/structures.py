"""Structures of the page: codes in the volumes, names, places and colours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave.report.viewer.volumes import Display
from regweave.types import PALETTE, LabelArray

COLOURS = tuple(f"#{r:02x}{g:02x}{b:02x}" for r, g, b in PALETTE)


def structures(
    labels: Mapping[str, LabelArray], names: Mapping[int, str], display: Display
) -> tuple[dict[str, NDArray[Any]], list[dict[str, Any]]]:
    """Bring label maps to the page.

    Returns
    -------
    tuple of a dict and a list
        Number of the structure at each voxel of the page, 0 for none, for each label map; and for each structure its
        code, label, name, colour, and centre in voxels of the page where there is one.
    """
    maps = {name: display.labels(data) for name, data in labels.items()}
    values = sorted({int(v) for data in labels.values() for v in np.unique(data)} - {0})
    known = np.array([0, *values])
    kind = np.uint8 if len(values) <= 255 else np.uint16
    codes = {name: np.searchsorted(known, data).astype(kind) for name, data in maps.items()}
    places = {name: ndimage.find_objects(data, len(values)) for name, data in codes.items()}
    rows = [
        {
            "code": n, "label": v, "name": names.get(v, str(v)), "colour": COLOURS[(n - 1) % len(COLOURS)],
            "centre": _centre(codes, places, n),
        }
        for n, v in enumerate(values, start=1)
    ]  # fmt: skip
    return codes, rows


def _centre(codes: Mapping[str, NDArray[Any]], places: Mapping[str, Any], code: int) -> list[int] | None:
    """Voxel of the structure that is nearest to its mean, in the first label map that shows it."""
    for name, data in codes.items():
        box = places[name][code - 1]
        if box is not None:
            where = np.argwhere(data[box] == code)
            nearest = where[int(((where - where.mean(axis=0)) ** 2).sum(axis=1).argmin())]
            return [int(i) + part.start for i, part in zip(nearest, box, strict=True)]
    return None
