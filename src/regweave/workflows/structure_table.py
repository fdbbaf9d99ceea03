"""How well each structure fits after a registration, one row for each; what is missing stays in the table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from regweave.evaluation.surface import assd_mm, hd95_mm
from regweave.types import ImagePair, LabelMap


def structure_rows(
    pair: ImagePair, warped: LabelMap | None, dice: Mapping[int, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Measure each structure that the fixed or the moving labels have.

    Parameters
    ----------
    pair : ImagePair
        With both label maps; without, there are no rows.
    warped : LabelMap, optional
        Moving labels on the fixed grid.
    dice : mapping
        Name and Dice before and after, by label.

    Returns
    -------
    list of dicts
        Label, name, Dice before and after, HD95 and ASSD after in mm, volume in the fixed image, in the moving image
        and after warping in ml, and ``missing``: fixed or warped labels lack the structure. What cannot be measured
        is None.
    """
    if pair.fixed_labels is None or pair.moving_labels is None or warped is None:
        return []
    return [_row(value, names, pair.fixed_labels, pair.moving_labels, warped) for value, names in dice.items()]


def _row(value: int, names: Mapping[str, Any], fixed: LabelMap, moving: LabelMap, warped: LabelMap) -> dict[str, Any]:
    a, b = warped.data == value, fixed.data == value
    spacing_mm = fixed.geometry.spacing_mm
    return {
        "label": value,
        "name": names["name"],
        "dice_before": _number(names["before"]),
        "dice_after": _number(names["after"]),
        "hd95_mm": _number(hd95_mm(a, b, spacing_mm)),
        "assd_mm": _number(assd_mm(a, b, spacing_mm)),
        "volume_fixed_ml": _volume_ml(fixed, value),
        "volume_before_ml": _volume_ml(moving, value),
        "volume_after_ml": _volume_ml(warped, value),
        "missing": not (a.any() and b.any()),
    }


def _volume_ml(labels: LabelMap, value: int) -> float:
    voxel_mm3 = abs(float(np.linalg.det(labels.geometry.affine[:3, :3])))
    return int((labels.data == value).sum()) * voxel_mm3 / 1000.0


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
