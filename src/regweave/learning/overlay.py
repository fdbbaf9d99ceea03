"""Displacements of one slice of nodes: imputed beside predicted.

Displacements of nodes alone: no intensity and no contour, so that a model can travel without showing a patient.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from regweave.energy.assemble import assemble
from regweave.engines import Solver
from regweave.learning.samples import Sample, Task, can_lose, delta, infer
from regweave.types import Float64Array, IntArray, WeightTable

AXES = "ijk"
DIGITS = 3
LARGEST = 24
"""Nodes along a side of the slice, at most; of more, every second or third is kept."""


def overlay(sample: Sample, imputed: IntArray, weights: WeightTable, engine: str | Solver) -> dict[str, Any]:
    """Compare the imputed deformation of a sample with the one that weights predict, in the slice that loses most.

    Parameters
    ----------
    sample : Sample
        Terms of one pair at one level.
    imputed : int array of shape (N,)
        Labels of D̂, eq. (9).
    weights : WeightTable
        Learned weights, members and classes of the sample.
    engine : str or Solver
        Inference engine; it runs once.

    Returns
    -------
    dict
        ``level``; ``axes``, the two axes of the slice; ``imputed`` and ``predicted``, each with ``loss`` (Δ) and a text
        line for each row of nodes with the two components node after node, in units of the control spacing;
        ``counts``, a line for each row with 1 where a label of the node can lose anything.
    """
    predicted = infer(Task(sample, weights.as_vector(), 0.0, engine)).labels
    shape = sample.terms.shape
    mask = can_lose(sample.terms).reshape(shape)
    thin = min(range(3), key=lambda axis: shape[axis])
    across = [a for a in range(3) if a != thin]
    where = int(mask.sum(axis=tuple(across)).argmax())
    steps = tuple(slice(None, None, -(-shape[a] // LARGEST)) for a in across)

    def rows(labels: IntArray) -> dict[str, Any]:
        moved: Float64Array = assemble(sample.terms, weights, 0.0, tie_break=0.0).positions(labels)
        part = np.take(moved, where, axis=thin)[..., across][steps]
        return {"loss": delta(sample, labels), "rows": [_text(row.ravel()) for row in part]}

    counts = np.take(mask, where, axis=thin)[steps]
    return {
        "level": sample.level,
        "axes": [AXES[a] for a in across],
        "imputed": rows(imputed),
        "predicted": rows(predicted),
        "counts": [_text(row) for row in counts.astype(int)],
    }


def _text(values: Any) -> str:
    """Join numbers to a line: a model is read by people, and an array of arrays takes a line for each number."""
    return " ".join(f"{round(float(v), DIGITS):g}" for v in values)
