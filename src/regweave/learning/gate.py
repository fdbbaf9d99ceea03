"""Safe use of what was learned: shrinkage towards the start, and a gate for each class.

A learned column is used only where it raised the Dice of really warped masks of left-out patients; every other class
keeps the start, so that a model is the uniform bank plus what has been shown to help.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from regweave.types import Float64Array, Weights

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


def balanced(learned: Weights, start: Weights) -> Weights:
    """Keep the direction of each learned column, and the start's balance between costs and smoothness.

    The learned pairwise weight is the noisiest number of all: a patch loss has no reason to keep fields smooth. A
    column whose sum is not above zero rewards mismatch and is the start's instead.
    """
    matrix = _rescaled(learned.matrix, start.matrix)
    return Weights(matrix, start.members, start.classes, start.pairwise)


def blend(start: Weights, learned: Weights, share: float, classes: Collection[int]) -> Weights:
    """Go a share of the way from the start to the learned columns, in some classes only."""
    matrix: Float64Array = start.matrix.copy()
    for k, c in enumerate(start.classes):
        if c in classes:
            matrix[:, k] += share * (learned.matrix[:, k] - start.matrix[:, k])
    return Weights(matrix, start.members, start.classes, start.pairwise)


def embed(rows: Weights, whole: Weights) -> Weights:
    """Put the rows of some members into the weights of all; their total per class stays what it was.

    Examples
    --------
    >>> whole = Weights.uniform(("sad", "ncc", "mind", "fine"), 0.1)
    >>> embed(Weights(np.array([[0.75], [0.25]]), ("sad", "ncc"), (0,), 0.1), whole).matrix.ravel()
    array([0.375, 0.125, 0.25 , 0.25 ])
    """
    matrix = whole.matrix.copy()
    index = [whole.members.index(m) for m in rows.members]
    matrix[index] = _rescaled(rows.matrix, matrix[index])
    return Weights(matrix, whole.members, whole.classes, whole.pairwise)


def _rescaled(columns: Float64Array, like: Float64Array) -> Float64Array:
    """Columns with the absolute sums of others: the plain sum of a signed column may be as near zero as it likes."""
    size, wanted = np.abs(columns).sum(axis=0), np.abs(like).sum(axis=0)
    usable = columns.sum(axis=0) > 0
    scale = np.divide(wanted, size, out=np.zeros_like(size), where=usable)
    return np.asarray(np.where(usable, columns * scale, like))
