"""Paired bootstrap comparison of two methods, with the patient as the unit of chance."""

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Interval(NamedTuple):
    """A mean with the interval that holds it with 95 % confidence; NaN where there is none."""

    mean: float
    low: float
    high: float


def paired_bootstrap(differences: ArrayLike, groups: Sequence[str], n: int = 2000, seed: int = 0) -> Interval:
    """Estimate a mean difference with a bootstrap interval by patient, the 2.5 and 97.5 percentiles of drawn means.

    As many patients are drawn with replacement as there are, ``n`` times. The weight of a pair is the product of how
    often each of its patients was drawn, so that a pair of two patients is as uncertain as both. Draws in which no pair
    counts are left out, as are differences of NaN, where one of the methods has no number. ``groups`` name the patients
    of each pair, ``p07`` or ``p07+p11``. The interval is NaN for fewer than two patients.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.shape != (len(groups),):
        raise ValueError(f"{values.size} differences and {len(groups)} groups; give one group for each difference")
    kept = np.flatnonzero(~np.isnan(values))
    if kept.size == 0:
        return Interval(np.nan, np.nan, np.nan)
    members = [patients_of(groups[int(i)]) for i in kept]
    patients = sorted({name for names in members for name in names})
    mean = float(values[kept].mean())
    if len(patients) < 2:
        return Interval(mean, np.nan, np.nan)
    counts = np.random.default_rng(seed).multinomial(len(patients), np.full(len(patients), 1 / len(patients)), size=n)
    # How often each pair counts in each draw, (n, pairs).
    columns = ([patients.index(name) for name in names] for names in members)
    weights = np.stack([counts[:, own].astype(np.float64).prod(axis=1) for own in columns], axis=1)
    total = weights.sum(axis=1)
    means = (weights @ values[kept])[total > 0] / total[total > 0]
    if means.size == 0:
        return Interval(mean, np.nan, np.nan)
    low, high = np.percentile(means, (2.5, 97.5))
    return Interval(mean, float(low), float(high))


def count_better(differences: ArrayLike) -> dict[str, int]:
    """Count differences above, below and at zero, ``better``, ``worse`` and ``equal``; NaN counts nowhere."""
    values = np.asarray(differences, dtype=np.float64)
    better, worse = int((values > 0).sum()), int((values < 0).sum())
    return {"better": better, "worse": worse, "equal": int((values == 0).sum())}


def patients_of(group: str) -> tuple[str, ...]:
    """Split a group into its patients, each once, in the order given."""
    return tuple(dict.fromkeys(name.strip() for name in re.split(r"[+;]", group) if name.strip()))


def error_by_patient(gains: Sequence[float], patients: Sequence[Collection[str]]) -> float:
    """Estimate the standard error of a mean gain over pairs with the jackknife by patient.

    Each patient in turn is left out with all pairs that show it. Where no two pairs share a patient, this is the
    usual standard error of a mean; pairs that share a patient are not independent. Infinite for fewer than two
    patients.
    """
    values = np.asarray(gains, dtype=np.float64)
    means = []
    for patient in sorted(set().union(*patients)):
        kept = [v for v, shown in zip(values, patients, strict=True) if patient not in shown]
        # Without an atlas that every pair shows nothing is left: the error is that of the others, given the atlas.
        if kept:
            means.append(np.mean(kept))
    if len(means) < 2:
        return float("inf")
    spread = float(np.square(np.array(means) - np.mean(means)).sum())
    return float(np.sqrt((len(means) - 1) / len(means) * spread))
