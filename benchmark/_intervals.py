"""Means with bootstrap intervals that respect that pairs of one person are not independent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

N_DRAWS = 4000
LEVEL = 0.95


def mean_interval(values: Sequence[float], subjects: Sequence[str], seed: int) -> dict[str, float]:
    """Mean of one value per pair, and its interval from drawing subjects with replacement.

    Returns
    -------
    dict
        ``mean``, ``low`` and ``high`` (the middle 95 % of the drawn means), ``n`` pairs, ``n_subjects``.
    """
    table = np.asarray(values, dtype=np.float64)
    names = sorted(set(subjects))
    if table.size == 0:
        return {"mean": float("nan"), "low": float("nan"), "high": float("nan"), "n": 0, "n_subjects": 0}
    of = [np.flatnonzero([s == name for s in subjects]) for name in names]
    sums, counts = np.array([table[i].sum() for i in of]), np.array([len(i) for i in of])
    drawn = np.random.default_rng(seed).integers(0, len(names), (N_DRAWS, len(names)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {
        "mean": float(table.mean()), "low": float(low), "high": float(high), "n": table.size, "n_subjects": len(names)
    }  # fmt: skip
