"""Exhaustive search over all labellings: the oracle that engines and learning are tested against."""

import numpy as np

from regweave.engines import Options, Solver, solution_of
from regweave.types import Energy


def minimize(energy, init=None):
    """Minimise an energy by trying every labelling; of several optima the first in lexicographic order."""
    return solution_of(_search, energy, init)


def _search(unary, shape, x, y, z, weight, base, init):
    n_nodes, n_labels = unary.shape
    code = np.arange(n_labels**n_nodes)
    labels = [code // n_labels ** (n_nodes - 1 - p) % n_labels for p in range(n_nodes)]
    best = int(_energies(Energy(unary, shape, (x, y, z), weight, base), labels).argmin())
    return np.array([digits[best] for digits in labels], dtype=np.int32), np.inf, 1


def _energies(energy, labels):
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


class _Exhaustive(Solver):
    def __call__(self, energy, init=None, max_iter=None, *, proof=True):
        return minimize(energy, init)


EXHAUSTIVE = _Exhaustive("exhaustive", Options())
"""The oracle where a solver is wanted."""
