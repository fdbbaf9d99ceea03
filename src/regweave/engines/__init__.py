"""Engines that minimise an energy: one file each, whose name is the engine's name everywhere.

An engine sees numbers only, never an image: a file with ``Options`` and ``minimize(energy, init, options)``. It calls
`solution_of`: a checked energy, a start, a solution never worse than it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, Self, cast

import numpy as np
from pydantic import Field

from regweave import registry as plugins
from regweave.types import Energy, IntArray, Solution

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


def solution_of(
    search: Callable[..., tuple[IntArray, float, int]], energy: Energy, init: IntArray | None, *options: Any
) -> Solution:
    """Check an energy and its start, minimise it, and score the labels by the energy itself.

    ``search(unary, shape, *offsets, weight, base, init, *options)`` takes C-contiguous float64 arrays and returns
    labels (N,), a lower bound and the number of iterations. Labels no better than ``init`` are replaced by these.
    """
    x, y, z = (np.ascontiguousarray(o, dtype=np.float64) for o in energy.offsets)
    base = None if energy.base is None else np.ascontiguousarray(energy.base, dtype=np.float64)
    unary, weight = np.ascontiguousarray(energy.unary, dtype=np.float64), float(energy.weight)
    i, j, k = shape = tuple(map(int, energy.shape))
    if min(shape) < 1 or any(o.ndim != 1 or o.size < 1 for o in (x, y, z)):
        counts = tuple(o.shape for o in (x, y, z))
        raise ValueError(f"nodes {shape} and offsets {counts} must be 1 or more along each axis")
    expected = (prod(shape), x.size * y.size * z.size)
    if unary.shape != expected:
        raise ValueError(f"unary has shape {unary.shape}; grid {shape} and the offsets need {expected}")
    if base is not None and base.shape != (expected[0], 3):
        raise ValueError(f"base has shape {base.shape}; grid {shape} needs {(expected[0], 3)}")
    if not (np.isfinite(weight) and weight >= 0):
        raise ValueError(f"pairwise weight is {weight}; it must be finite and 0 or more")
    for name, array in {"unary": unary, "base": base, "offsets": np.concatenate([x, y, z])}.items():
        if array is not None and not np.isfinite(array).all():
            bad = int((~np.isfinite(array)).sum())
            raise ValueError(f"{name} has {bad} values of {array.size} that are not finite")
    start = unary.argmin(axis=1).astype(np.int32) if init is None else _check_init(np.asarray(init), *expected)
    labels, lower_bound, iterations = search(unary, shape, x, y, z, weight, base, start, *options)
    checked = Energy(unary, (i, j, k), (x, y, z), weight, base)
    value, before = checked(labels), checked(start)
    if value > before:
        labels, value = start, before
    # A bound above the energy of a labelling is rounding.
    return Solution(labels, value, min(lower_bound, value), iterations)


def _check_init(init: IntArray, n_nodes: int, n_labels: int) -> IntArray:
    if init.shape != (n_nodes,):
        raise ValueError(f"init has shape {init.shape}; the energy has {n_nodes} nodes")
    if not np.issubdtype(init.dtype, np.integer):
        raise ValueError(f"init has dtype {init.dtype}; labels are integers")
    if init.min() < 0 or init.max() >= n_labels:
        raise ValueError(f"init has labels {init.min()}..{init.max()}; the energy has 0..{n_labels - 1}")
    return np.array(init, dtype=np.int32)
