"""Exhaustive search over all labellings: the oracle that the other engines are tested against."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from regweave import engines
from regweave.engines._problem import check
from regweave.types import Energy, Float64Array, IntArray, Solution

MAX_LABELLINGS = 2_000_000


class Options(engines.Options):
    """Effort.

    Parameters
    ----------
    max_iter : int
        Without effect: there is one iteration.
    """

    max_iter: int = Field(default=1, ge=1, le=10_000)


DEFAULTS = Options()


def minimize(energy: Energy, init: IntArray | None = None, options: Options = DEFAULTS) -> Solution:
    """Minimise an energy by trying every labelling.

    Parameters
    ----------
    energy : Energy
        At most two million labellings, L ** N.
    init : int array of shape (N,), optional
        Checked, as by every engine; the result does not depend on it.
    options : Options
        How much is tried.

    Returns
    -------
    Solution
        The optimum, the first in lexicographic order where there are several; the bound is its energy.

    Raises
    ------
    ValueError
        Where there are too many labellings.

    Examples
    --------
    >>> line = np.array([0.0, 1.0])
    >>> e = Energy(np.array([[0.0, 1.0], [0.2, 0.0]]), (2, 1, 1), (line, line[:1], line[:1]), weight=3.0)
    >>> minimize(e).labels
    array([0, 0], dtype=int32)
    """
    problem = check(energy, init)
    energy = problem.energy
    n_nodes, n_labels = energy.unary.shape
    if n_labels**n_nodes > MAX_LABELLINGS:
        raise ValueError(
            f"{n_labels}**{n_nodes} labellings; exhaustive search tries at most {MAX_LABELLINGS}, use trws"
        )
    code = np.arange(n_labels**n_nodes)
    labels = [code // n_labels ** (n_nodes - 1 - p) % n_labels for p in range(n_nodes)]
    best = int(_energies(energy, labels).argmin())
    chosen = np.array([digits[best] for digits in labels], dtype=np.int32)
    return problem.solution(chosen, np.inf, 1)


def _energies(energy: Energy, labels: list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]) -> Float64Array:
    """Energy of many labellings at once, ``labels[p]`` holding the label of node p in each of them."""
    grid = np.stack(np.meshgrid(*energy.offsets, indexing="ij"), axis=-1).reshape(-1, 3)
    base = np.zeros((len(labels), 3)) if energy.base is None else energy.base
    total = np.zeros(len(labels[0]))
    for p, label in enumerate(labels):
        total += energy.unary[p, label]
    nodes = np.arange(len(labels)).reshape(energy.shape)
    for axis in range(3):
        ends = (np.delete(nodes, end, axis=axis).ravel() for end in (-1, 0))
        for p, q in zip(*ends, strict=True):
            cost = np.abs((grid + base[p])[:, None] - (grid + base[q])).sum(axis=-1)
            total += energy.weight * cost[labels[p], labels[q]]
    return total
