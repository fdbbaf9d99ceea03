"""Engines that minimise an energy: one file each, whose name is the engine's name everywhere.

An engine sees numbers only, never an image: a file with ``Options`` and ``minimize(energy, init, options)``.
"""

from dataclasses import dataclass
from typing import Any, Protocol, Self, cast

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
