"""Training of the columns of W from pairs with masks: one class at a time (the paper), all jointly, or one for all.

Every function calls the one `align` for its samples and the one inference for its constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from regweave.config.settings import Settings
from regweave.learning.lssvm import Fit, Iteration, LssvmOptions, fit_lssvm
from regweave.learning.samples import Sample, first_steps, samples_at
from regweave.registration.align import Step
from regweave.types import ImagePair, WeightTable

Mapper = Callable[..., Iterable[Any]]
Load = Callable[[], ImagePair]
Keep = Callable[[Hashable, Callable[[], Any]], Any]
_Rounds = tuple[Fit | None, int, int]
"""The last fit, None where no pair showed anything to learn from; registrations and inferences of all rounds."""
LEFT_OUT = ("seconds", "rounds")


@dataclass(frozen=True)
class FittedColumns:
    """Learned weights of the discrete members, and the curve behind each column.

    A class without a curve could not be learned, because no pair shows it, and has the start's column.
    """

    weights: WeightTable
    history: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    n_inferences: int = 0
    n_registrations: int = 0

    def surrogate(self) -> tuple[float, float] | None:
        """Mean loss Δ of the predictions under the start and under what was learned; None without a curve."""
        ends = [(c[0]["predicted_loss"], c[-1]["predicted_loss"]) for c in self.history.values()]
        if not ends:
            return None
        before, after = np.mean(ends, axis=0)
        return float(before), float(after)


@dataclass(frozen=True)
class Trainer:
    """Training problem that all ways of learning share."""

    pairs: Sequence[tuple[str, Load]]
    """The training pairs; the function reads one, so that not all images need to be in memory."""
    schedule: Settings  # levels and engine; its bank are the discrete members alone
    start: WeightTable  # w₀, and the classes to learn
    options: LssvmOptions
    finest: bool = False  # learn at the last level alone; the coarser ones keep the start
    mapper: Mapper = map  # `map` or its like, over pairs and over samples; it does not change the result
    keep: Keep = lambda _, make: make()
    """Returns the value of a key, made by a function if it is not kept. Trajectories of a pair are the same whatever
    the structures, the hyper-parameters and the other pairs; a fit is the same for every way that needs it."""
    device: str = "cpu"  # what follows the trajectories, as in `regweave.registration.devices.get`

    def fit_global(self) -> FittedColumns:
        """One column for everything, learned with the loss of all structures: the global mix."""
        found = self._rounds(self.start.background(), self.start.classes[1:], one_class=True)
        return self._columns({"all": found}, lambda fits: fits["all"].weights.repeat(self.start.classes))

    def per_class(self) -> FittedColumns:
        """One column at a time, eqs. (4) to (11); the background's is learned with the loss of all structures."""
        found = {
            str(c): self._rounds(self.start.background(), self.start.classes[1:] if c == 0 else (c,), one_class=True)
            for c in self.start.classes
        }

        def stack(fits: Mapping[str, Fit]) -> WeightTable:
            matrix = self.start.matrix.copy()
            for k, c in enumerate(self.start.classes):
                if str(c) in fits:
                    w = fits[str(c)].weights
                    # Eq. (2) has no pairwise weight: a column is divided by its own, then brought to the start's.
                    matrix[:, k] = w.matrix[:, 0] / w.pairwise * self.start.pairwise
            return replace(self.start, matrix=matrix)

        return self._columns(found, stack)

    def joint(self) -> FittedColumns:
        """All columns and the pairwise weight in one quadratic programme, with the class rule of prediction."""
        found = self._rounds(self.start, self.start.classes[1:], one_class=False)
        return self._columns({"joint": found}, lambda fits: fits["joint"].weights)

    def _rounds(self, w0: WeightTable, classes: tuple[int, ...], *, one_class: bool) -> _Rounds:
        """Fit to some structures, or take the fit that was made before of the same pairs from the same start."""
        names, schedule = tuple(name for name, _ in self.pairs), self.schedule.levels_key()
        key = ("fit", names, schedule, w0.as_vector().tobytes(), classes, one_class, self.finest, self.options)
        found: _Rounds = self.keep(key, lambda: self._fitted(w0, classes, one_class=one_class))
        return found

    def _fitted(self, w0: WeightTable, classes: tuple[int, ...], *, one_class: bool) -> _Rounds:
        """Fit on samples along the trajectory of the current weights, which is refreshed from round to round."""
        fit: Fit | None = None
        n_registrations = n_inferences = 0
        for _ in range(self.options.rounds):
            trajectory = w0 if fit is None else fit.weights
            trajectory = trajectory.repeat(self.start.classes) if one_class else trajectory
            per_pair = self._samples(trajectory, classes, one_class)
            n_registrations += sum(s is not None for s in per_pair)
            samples = [s for of_pair in per_pair for s in of_pair or ()]
            if not samples:
                return None, n_registrations, 0
            fit = fit_lssvm(samples, w0, self.options, engine=self.schedule.solver, mapper=self.mapper)
            n_inferences += fit.history[-1].n_inferences
        return fit, n_registrations, n_inferences

    def _samples(self, trajectory: WeightTable, classes: tuple[int, ...], one_class: bool) -> list[list[Sample] | None]:
        """Collect the samples of each pair; None for a pair that shows none of the classes and is not registered."""
        last = len(self.schedule.levels) - 1
        coarse = self.start if self.finest else None
        schedule = self.schedule.levels_key()

        def samples_of(named: tuple[str, Load]) -> list[Sample] | None:
            name, load = named
            key = (name, schedule, self.finest, trajectory.classes, trajectory.as_vector().tobytes())

            def walked() -> tuple[frozenset[int], Sequence[Step]]:
                steps = first_steps(pair := load(), trajectory, self.schedule, coarse, self.device)
                # A structure that only one image shows costs the same for every deformation.
                fixed, moving = pair.fixed.labels, pair.moving.labels
                both = set() if fixed is None or moving is None else {*fixed.values()} & {*moving.values()}
                return frozenset(both), tuple(steps)

            def sampled(structures: frozenset[int], walk: Sequence[Step]) -> list[Sample] | None:
                shown = tuple(c for c in classes if c in structures)
                if not shown:
                    return None
                steps = [s for s in walk if s.level == last or not self.finest]
                return samples_at(name, steps, shown, one_class=one_class)

            if one_class:  # one trajectory for all classes: restricted copies of its costs are not kept
                return sampled(*self.keep(("steps", *key), walked))
            samples: list[Sample] | None = self.keep(("samples", classes, *key), lambda: sampled(*walked()))
            return samples

        return list(self.mapper(samples_of, self.pairs))

    def _columns(
        self, found: Mapping[str, _Rounds], weights: Callable[[Mapping[str, Fit]], WeightTable]
    ) -> FittedColumns:
        fits = {name: fit for name, (fit, _, _) in found.items() if fit is not None}
        return FittedColumns(
            weights(fits) if fits else self.start,
            {name: [_curve(i) for i in fit.history] for name, fit in fits.items()},
            sum(n for _, _, n in found.values()),
            sum(n for _, n, _ in found.values()),
        )


def _curve(iteration: Iteration) -> dict[str, Any]:
    """Numbers of an iteration, without its seconds: a model does not depend on the speed of the machine."""
    record = asdict(iteration)
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in record.items() if k not in LEFT_OUT}
