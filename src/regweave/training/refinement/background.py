"""Column of the background in the refinement: where no structure map speaks, images do.

Where maps weigh most, little is left for the images, in all classes alike; structures that nobody labelled, which are
background here, then follow less of what the images show. So the background gets back the weights and the smoothness
that it had before maps came in. Its own Dice is not known, so it is no gain that decides: the structures that are known
must not lose by it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from regweave.training.candidates import PairScores, overall
from regweave.training.refinement.members import RefinementWeights, RegisterAll
from regweave.types import WeightTable

MOST_LOST = 0.002
"""Mean Dice of the known structures that a background left to the images may cost."""


def leave_to_images(
    found: RefinementWeights, start: WeightTable, rows: tuple[str, ...], smoother: float, register: RegisterAll
) -> RefinementWeights:
    """Give the background the column of the start, unless the structures lose by it.

    Parameters
    ----------
    found : RefinementWeights
        Weights with maps.
    start : WeightTable
        Weights before maps came in.
    rows : tuple of str
        Members of the refinement: other rows stay.
    smoother : float
        Smoothness of the refinement before, over what a stiffness of 1 means now.
    register : RegisterAll
        Registers all pairs.
    """
    tried = background_of(found.weights, start, rows, smoother)
    scores = register([tried])[0]
    record = _record(found.scores, scores)
    if not record["used"]:
        return replace(found, background=record)
    return replace(found, weights=tried, scores=scores, background=record)


def background_of(table: WeightTable, start: WeightTable, rows: tuple[str, ...], stiffness: float) -> WeightTable:
    """Return the table with another column of the background, in some rows, and its stiffness.

    Examples
    --------
    >>> start = WeightTable(np.array([[1.0, 1.0], [0.0, 0.0]]), ("ncc", "maps"), (0, 1), 0.1)
    >>> mixed = WeightTable(np.array([[0.2, 0.2], [0.8, 0.8]]), ("ncc", "maps"), (0, 1), 0.1)
    >>> found = background_of(mixed, start, ("ncc", "maps"), 4.0)
    >>> found.matrix.tolist(), found.stiffness.tolist()
    ([[1.0, 0.2], [0.0, 0.8]], [4.0, 1.0])
    """
    matrix = table.matrix.copy()
    index = table.rows(rows)
    matrix[index, 0] = start.matrix[start.rows(rows), 0]
    stiff = np.ones(len(table.classes)) if table.stiffness is None else table.stiffness.copy()
    stiff[0] = stiffness
    return replace(table, matrix=matrix, stiffness=stiff)


def _record(before: PairScores, after: PairScores) -> dict[str, Any]:
    change = overall(after, before) - overall(before)
    return {"change": change, "n": len(before), "used": change >= -MOST_LOST}
