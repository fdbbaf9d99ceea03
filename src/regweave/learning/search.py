"""Direct search (CMA-ES) on the Dice of warped masks: the honest rival of the structured SVM.

CMA-ES (Hansen and Ostermeier 2001, package ``cma``) over the logarithms of the weights, started at w₀, with a budget
counted in registrations.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from regweave import extras
from regweave.types import Float64Array, WeightTable

Score = Callable[[Sequence[WeightTable]], Sequence[float]]
FIRST_STEP = 0.5
"""Standard deviation of the first generation, in the logarithm of a weight."""
LEAST_CANDIDATES = 5
"""The start and a generation of four: with fewer there is nothing to search."""


@dataclass(frozen=True)
class SearchResult:
    """Best weights of a search, its score, and the best score of each generation."""

    weights: WeightTable
    score: float
    history: tuple[float, ...]
    n_scored: int


def search(score: Score, start: WeightTable, n_candidates: int, seed: int = 0) -> SearchResult:
    """Maximise a score over weights.

    Parameters
    ----------
    score : callable
        Scores several weights at once, higher is better.
    start : WeightTable
        Start; columns keep its sums.
    n_candidates : int
        Candidates that may be scored, the start included; at least `LEAST_CANDIDATES`.
    seed : int
        Chooses the candidates.
    """
    if n_candidates < LEAST_CANDIDATES:
        raise ValueError(f"a search needs {LEAST_CANDIDATES} candidates, not {n_candidates}; raise the budget")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cma warns of an unknown terminal width and the like
        cma = extras.load("cma", "train", "searching weights")

        # A generator of its own: left alone, cma would seed that of numpy for the whole program.
        options = {"seed": np.nan, "randn": _normal(np.random.default_rng(seed)), "verbose": -9}
        options["popsize"] = min(n_candidates - 1, 4 + int(3 * np.log(start.matrix.size)))
        strategy = cma.CMAEvolutionStrategy(np.zeros(start.matrix.size), FIRST_STEP, options)
        best, value = start, score([start])[0]
        history, n_scored = [value], 1
        while n_scored + strategy.popsize <= n_candidates:
            points = strategy.ask()
            candidates = [start.scale(np.exp(np.asarray(p).reshape(start.matrix.shape))) for p in points]
            values = list(score(candidates))
            strategy.tell(points, [-v for v in values])
            n_scored += len(points)
            top = int(np.argmax(values))
            if values[top] > value:
                best, value = candidates[top], values[top]
            history.append(value)
    return SearchResult(best, value, tuple(history), n_scored)


def _normal(rng: np.random.Generator) -> Callable[..., Float64Array]:
    def draw(*shape: int) -> Float64Array:
        return rng.standard_normal(shape)

    return draw
