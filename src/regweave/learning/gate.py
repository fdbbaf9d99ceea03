"""Model selection on left-out patients: shrinkage towards the start, and a gate for each class.

A learned column is used only where it raised the Dice of really warped masks of left-out patients; every other class
keeps the start, so that a model is the uniform bank plus what has been shown to help.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

STANDARD_ERRORS = 1.0
"""A column must gain at least this many standard errors of its mean gain."""


@dataclass(frozen=True)
class Gate:
    """Decision for one class: mean gain in Dice on left-out pairs, standard error, number, and the errors asked for."""

    gain: float
    standard_error: float
    n: int
    wanted: float = STANDARD_ERRORS

    @property
    def open(self) -> bool:
        """True if what was tried is used."""
        return self.n > 1 and self.gain > self.wanted * self.standard_error


def decide(gains: Mapping[int, Sequence[float]], wanted: float = STANDARD_ERRORS) -> dict[int, Gate]:
    """Decide each class from the gains of left-out pairs, one number for each pair that shows it.

    Examples
    --------
    >>> {c: g.open for c, g in decide({1: [0.02, 0.03, 0.02], 2: [0.02, -0.03, 0.01]}).items()}
    {1: True, 2: False}
    """
    out = {}
    for c, values in gains.items():
        x = np.asarray(values, dtype=np.float64)
        x = x[np.isfinite(x)]
        error = float(x.std(ddof=1) / np.sqrt(len(x))) if len(x) > 1 else float("inf")
        out[c] = Gate(float(x.mean()) if len(x) else float("nan"), error, len(x), wanted)
    return out


def error_by_patient(gains: Sequence[float], patients: Sequence[Collection[str]]) -> float:
    """Estimate the standard error of a mean gain with the jackknife by patient.

    Each patient in turn is left out with all pairs that show it. Where every pair has a patient of its own, this is the
    usual standard error of a mean; pairs that share a patient do not pass for independent ones. Infinite for fewer
    than two patients.

    Parameters
    ----------
    gains : floats of shape (N,)
        One gain for each pair.
    patients : sequence of N collections of str
        Patients that each pair shows.

    Examples
    --------
    >>> round(error_by_patient([0.0, 0.2, 0.1], [("a",), ("b",), ("c",)]), 4)
    0.0577
    >>> round(error_by_patient([0.0, 0.0, 0.2, 0.2, 0.1, 0.1], [(p,) for p in "aabbcc"]), 4)
    0.0577
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
