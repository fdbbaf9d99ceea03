"""Overlap of two segmentations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from regweave.types import LabelArray, LabelMap


def dice(a: LabelMap | LabelArray, b: LabelMap | LabelArray, labels: Sequence[int] | None = None) -> dict[int, float]:
    """Compute the Dice coefficient of each label, ``2 |A ∩ B| / (|A| + |B|)``.

    Parameters
    ----------
    a, b : LabelMap or integer array of shape (X, Y, Z)
        Segmentations on one grid.
    labels : ints, optional
        Labels to compare; by default all of either segmentation but 0.

    Returns
    -------
    dict
        Dice by label: NaN where both lack the label, 0 where one does.

    Examples
    --------
    >>> dice(np.array([[[1, 1, 2, 0]]]), np.array([[[1, 0, 2, 0]]]))
    {1: 0.6666666666666666, 2: 1.0}
    """
    first, second = _array(a), _array(b)
    if first.shape != second.shape:
        raise ValueError(f"segmentations have shapes {first.shape} and {second.shape}; resample one onto the other")
    if labels is None:
        labels = sorted({int(v) for v in (*np.unique(first), *np.unique(second)) if v != 0})
    return {int(label): _dice(first == label, second == label) for label in labels}


def _dice(a: LabelArray, b: LabelArray) -> float:
    total = int(a.sum()) + int(b.sum())
    return 2.0 * int((a & b).sum()) / total if total else float("nan")


def _array(labels: LabelMap | LabelArray) -> LabelArray:
    return labels.data if isinstance(labels, LabelMap) else np.asarray(labels)
