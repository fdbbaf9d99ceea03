"""Volumes of structures, and the values of an image in each of them."""

from typing import Any

import numpy as np

from regweave.types import LabelMap, Volume


def region_table(labels: LabelMap, image: Volume | None = None) -> list[dict[str, Any]]:
    """Return a row for each structure: label, name, voxels and volume; with an image its mean, spread and range.

    Parameters
    ----------
    labels : LabelMap
    image : Volume, optional
        Image on the grid of the labels.

    >>> from regweave.types import Geometry
    >>> grid = Geometry((2, 1, 1), np.diag([10.0, 10.0, 10.0, 1.0]))
    >>> region_table(LabelMap(np.array([0, 3]).reshape(2, 1, 1), grid, {3: "cord"}))
    [{'label': 3, 'name': 'cord', 'voxels': 1, 'volume_ml': 1.0...}]
    """
    ml = abs(float(np.linalg.det(labels.geometry.affine[:3, :3]))) / 1000.0
    values, where, counts = np.unique(labels.data, return_inverse=True, return_counts=True)
    rows: list[dict[str, Any]] = []
    order = None if image is None else np.argsort(where.ravel(), kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)])
    for k, (value, count) in enumerate(zip(values.tolist(), counts.tolist(), strict=True)):
        if value == 0:
            continue
        row = {"label": value, "name": labels.name(value), "voxels": count, "volume_ml": count * ml}
        if image is not None and order is not None:
            found = image.data.ravel()[order[starts[k] : starts[k + 1]]].astype(np.float64)
            row |= {"mean": float(found.mean()), "sd": float(found.std())}
            row |= {"min": float(found.min()), "max": float(found.max())}
        rows.append(row)
    return rows
