"""Tables of structures: their volumes, and the values of an image in each, for one label map or a list."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from regweave.errors import UsageError
from regweave.io import check_same_grid, read_image, read_labels
from regweave.jobs.table import Table, TableColumns, read_table
from regweave.run.read import ImageLike
from regweave.types import LabelMap, Volume


def region_table(labels: LabelMap, image: Volume | None = None) -> list[dict[str, Any]]:
    """Return a row for each structure: label, name, voxels and volume; with an image its mean, spread and range.

    Parameters
    ----------
    labels : LabelMap
    image : Volume, optional
        Image on the grid of the labels.
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


COLUMNS = TableColumns(
    ("id", "labels"), ("image",), ("labels", "image"), "each line names a label map, and an image if wanted"
)


def measure(
    labels: ImageLike | Table, image: ImageLike | None = None, *,
    label_names: str | Path | Mapping[int, str] | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Measure the volume of each structure, and the mean, spread and range of an image in it.

    Parameters
    ----------
    labels : ImageLike or table
        A label map; or a list, CSV or rows, with the columns ``id``, ``labels`` and if wanted ``image``.
    image : ImageLike, optional
        Image on the grid of the labels.
    label_names : path or mapping, optional
        Names of the labels; by default those of a file beside the label map.

    Returns
    -------
    list of dict
        A row for each structure: ``label``, ``name``, ``voxels``, ``volume_ml``, and with an image ``mean``, ``sd``,
        ``min`` and ``max``; of a list with the ``id``.

    Raises
    ------
    RegweaveError
        E112 where image and labels lie on different grids; what reading the files raises.
    """
    listed = isinstance(labels, list) or hasattr(labels, "to_dict")
    if listed or (isinstance(labels, str | Path) and Path(labels).suffix.lower() == ".csv"):
        if image is not None:
            raise UsageError("E192", "a list and an image are both given", "name the images in the column image")
        out: list[dict[str, Any]] = []
        for row in read_table(labels, COLUMNS).rows:  # type: ignore[arg-type]
            found = measure(row["labels"], row.get("image"), label_names=label_names)
            out += [{"id": row["id"], **one} for one in found]
        return out
    map_ = read_labels(labels, names_path=label_names)
    if image is None:
        return region_table(map_)
    volume = read_image(image)
    check_same_grid(volume.geometry, map_.geometry, labels if isinstance(labels, str | Path) else "the labels")
    return region_table(map_, volume)
