"""From pairs with masks to the columns of W: one class at a time (the paper), all jointly, or one for all.

Every function calls the one `align` for its samples and the one inference for its constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from regweave.learning.cccp import Iteration
from regweave.learning.lssvm import Fit, fit_lssvm
from regweave.learning.samples import Sample, collect
from regweave.registration.settings import Schedule
from regweave.types import Float64Array, ImagePair, Weights

Mapper = Callable[..., Iterable[Any]]
LEFT_OUT = ("seconds", "rounds")


@dataclass(frozen=True)
class Hyper:
    """Hyper-parameters of Algorithm 1, and how often the trajectories are refreshed."""

    C: float = 100.0
    alpha: float = 1.0
    eta: float = 3.0
    epsilon: float = 1e-3
    rounds: int = 2
    max_outer: int = 6
    signed: bool = False


@dataclass(frozen=True)
class Columns:
    """Learned weights of the discrete members, and the curve behind each column."""

    weights: Weights
    history: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    n_inferences: int = 0
    n_registrations: int = 0


@dataclass(frozen=True)
class Trainer:
    """What all ways of learning share: training pairs in memory, the schedule, the start, a parallel ``map``."""

    pairs: Sequence[tuple[str, ImagePair]]
    schedule: Schedule
    start: Weights
    hyper: Hyper
    mapper: Mapper = map

    def whole(self) -> Columns:
        """One column for everything, learned with the loss of all structures: the global mix."""
        classes = self.start.classes[1:]
        fit, n = self._rounds(_one_column(self.start), classes, one_class=True)
        matrix = np.repeat(fit.weights.matrix, len(self.start.classes), axis=1)
        return self._columns(matrix, fit.weights.pairwise, {"all": fit}, n)

    def per_class(self) -> Columns:
        """One column at a time, eqs. (4) to (11); the background's is learned with the loss of all structures."""
        fits: dict[str, Fit] = {}
        registrations = 0
        for c in self.start.classes:
            chosen = self.start.classes[1:] if c == 0 else (c,)
            fits[str(c)], n = self._rounds(_one_column(self.start), chosen, one_class=True)
            registrations += n
        # Eq. (2) has no pairwise weight: a column is divided by its own, then brought to the start's.
        columns = [f.weights.matrix[:, 0] / f.weights.pairwise for f in fits.values()]
        return self._columns(np.stack(columns, axis=1) * self.start.pairwise, self.start.pairwise, fits, registrations)

    def joint(self) -> Columns:
        """All columns and the pairwise weight in one quadratic programme, with the class rule of prediction."""
        fit, n = self._rounds(self.start, self.start.classes[1:], one_class=False)
        return self._columns(fit.weights.matrix, fit.weights.pairwise, {"joint": fit}, n)

    def _rounds(self, w0: Weights, classes: tuple[int, ...], *, one_class: bool) -> tuple[Fit, int]:
        """Fit on samples along the trajectory of the current weights, which is refreshed from round to round."""
        schedule = self.schedule.model_copy(update={"loss_classes": classes})
        weights, registrations = w0, 0
        for _ in range(self.hyper.rounds):
            current = weights

            def samples_of(named: tuple[str, ImagePair], current: Weights = current) -> list[Sample]:
                trajectory = _spread(current, self.start) if one_class else current
                return collect(*named, trajectory, schedule, None, one_class=one_class)

            samples = [s for found in self.mapper(samples_of, self.pairs) for s in found]
            registrations += len(self.pairs)
            h = self.hyper
            fit = fit_lssvm(
                samples, w0, C=h.C, alpha=h.alpha, eta=h.eta, epsilon=h.epsilon, signed=h.signed,
                engine=schedule.engine, max_outer=h.max_outer, mapper=self.mapper,
            )  # fmt: skip
            weights = fit.weights
        return fit, registrations

    def _columns(self, matrix: Float64Array, pairwise: float, fits: Mapping[str, Fit], registrations: int) -> Columns:
        weights = Weights(matrix, self.start.members, self.start.classes, pairwise)
        history = {name: [_curve(i) for i in fit.history] for name, fit in fits.items()}
        inferences = sum(fit.history[-1].n_inferences for fit in fits.values())
        return Columns(weights, history, inferences, registrations)


def _one_column(weights: Weights) -> Weights:
    return Weights(weights.matrix[:, :1].copy(), weights.members, (0,), weights.pairwise)


def _spread(column: Weights, start: Weights) -> Weights:
    matrix = np.repeat(column.matrix, len(start.classes), axis=1)
    return Weights(matrix, start.members, start.classes, column.pairwise)


def _curve(iteration: Iteration) -> dict[str, Any]:
    """Numbers of an iteration, without its seconds: a model does not depend on the speed of the machine."""
    record = asdict(iteration)
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in record.items() if k not in LEFT_OUT}
