"""Engines that minimise an energy: one file each, whose name is the engine's name everywhere.

An engine sees numbers only, never an image: a file with ``Options`` and ``minimize(energy, init, options)``. It begins
with `check` and ends with `Problem.solution`: a checked energy, a start, a solution never worse than it.
"""

from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol, Self, cast

import numpy as np
from pydantic import Field

from regweave import registry as plugins
from regweave.types import Energy, Float64Array, IntArray, Solution

__all__ = ["Engine", "Options", "Solver", "add", "available", "get", "registry", "solver"]


class Options(plugins.Options):
    """Base of every engine's options."""

    max_iter: int = Field(default=30, ge=1, le=10_000)
    """Largest number of iterations."""

    def without_proof(self) -> Self:
        """Return the same search without work that only tightens the lower bound: labels stay the same."""
        return self


class Engine(Protocol):
    """Interface of an inference engine."""

    Options: type[Options]

    def minimize(self, energy: Energy, init: IntArray | None, options: Any) -> Solution:
        """Minimise an energy from the labels ``init`` (default: the best unary of each node).

        The result is never worse than ``init``, its energy is recomputed from its labels, and no labelling has an
        energy below its lower bound.
        """


registry = plugins.Registry[Engine]("engines", "engine", "E180", ("Options", "minimize"))
available, add, get = registry.available, registry.add, registry.get


@dataclass(frozen=True)
class Solver:
    """An engine with its options, by name so that it travels between processes."""

    name: str
    options: Options

    def __call__(
        self, energy: Energy, init: IntArray | None = None, max_iter: int | None = None, *, proof: bool = True
    ) -> Solution:
        """Minimise an energy, with at most so many iterations where that is less than the options allow.

        Without ``proof`` nothing is done for the lower bound alone.
        """
        options = self.options if proof else self.options.without_proof()
        if max_iter is not None:
            options = options.model_copy(update={"max_iter": min(max_iter, options.max_iter)})
        return get(self.name).minimize(energy, init, options)


def solver(engine: str | Solver, **options: Any) -> Solver:
    """Return an engine with options; a name alone means its defaults."""
    return engine if isinstance(engine, Solver) else Solver(engine, cast("Options", registry.options(engine, options)))


Three = tuple[int, int, int]
Arguments = tuple[Float64Array, Three, Float64Array, Float64Array, Float64Array, float, Float64Array | None, IntArray]


@dataclass(frozen=True)
class Problem:
    """An energy whose arrays are checked, float64 and C-contiguous, with labels (N,) to start from."""

    energy: Energy
    init: IntArray

    @property
    def arrays(self) -> Arguments:
        """Arguments that every compiled engine begins with."""
        e = self.energy
        return (e.unary, e.shape, *e.offsets, e.weight, e.base, self.init)

    def solution(self, labels: IntArray, lower_bound: float, iterations: int) -> Solution:
        """Score labels by the energy itself; return ``init`` where they are no better."""
        value, start = self.energy(labels), self.energy(self.init)
        if value > start:
            labels, value = self.init, start
        # A bound above the energy of a labelling is rounding.
        return Solution(labels, value, min(lower_bound, value), iterations)


def check(energy: Energy, init: IntArray | None) -> Problem:
    """Check an energy and its start."""
    energy = _contiguous(energy)
    _check_shapes(energy)
    _check_values(energy)
    if init is None:
        return Problem(energy, energy.unary.argmin(axis=1).astype(np.int32))
    return Problem(energy, _check_init(energy, np.asarray(init)))


def _contiguous(energy: Energy) -> Energy:
    x, y, z = (np.ascontiguousarray(o, dtype=np.float64) for o in energy.offsets)
    i, j, k = (int(n) for n in energy.shape)
    base = None if energy.base is None else np.ascontiguousarray(energy.base, dtype=np.float64)
    unary = np.ascontiguousarray(energy.unary, dtype=np.float64)
    return replace(energy, unary=unary, shape=(i, j, k), offsets=(x, y, z), weight=float(energy.weight), base=base)


def _check_shapes(energy: Energy) -> None:
    if min(energy.shape) < 1 or any(o.ndim != 1 or o.size < 1 for o in energy.offsets):
        counts = tuple(o.shape for o in energy.offsets)
        raise ValueError(f"nodes {energy.shape} and offsets {counts} must be 1 or more along each axis")
    expected = (prod(energy.shape), prod(o.size for o in energy.offsets))
    if energy.unary.shape != expected:
        raise ValueError(f"unary has shape {energy.unary.shape}; grid {energy.shape} and the offsets need {expected}")
    if energy.base is not None and energy.base.shape != (expected[0], 3):
        raise ValueError(f"base has shape {energy.base.shape}; grid {energy.shape} needs {(expected[0], 3)}")


def _check_values(energy: Energy) -> None:
    if not (np.isfinite(energy.weight) and energy.weight >= 0):
        raise ValueError(f"pairwise weight is {energy.weight}; it must be finite and 0 or more")
    arrays = {"unary": energy.unary, "base": energy.base, "offsets": np.concatenate(energy.offsets)}
    for name, array in arrays.items():
        if array is not None and not np.isfinite(array).all():
            bad = int((~np.isfinite(array)).sum())
            raise ValueError(f"{name} has {bad} values of {array.size} that are not finite")


def _check_init(energy: Energy, init: IntArray) -> IntArray:
    n_nodes, n_labels = energy.unary.shape
    if init.shape != (n_nodes,):
        raise ValueError(f"init has shape {init.shape}; the energy has {n_nodes} nodes")
    if not np.issubdtype(init.dtype, np.integer):
        raise ValueError(f"init has dtype {init.dtype}; labels are integers")
    if init.min() < 0 or init.max() >= n_labels:
        raise ValueError(f"init has labels {init.min()}..{init.max()}; the energy has 0..{n_labels - 1}")
    return np.array(init, dtype=np.int32)
