"""Candidates of a cross-validation, registered once for all folds, and the choice of each fold among them.

A pair is drawn inside a fold, so that it may choose for every other fold: each candidate is registered once with each
pair, and a fold takes the one that is best on the pairs of all others. That is one training a fold, by search on real
Dice, for the price of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from regweave.config.settings import Schedule, Settings
from regweave.datasets.manifest import PairFiles
from regweave.io import sha256
from regweave.jobs.methods import REFINE, Method, baseline_methods
from regweave.jobs.store import content_hash
from regweave.model.model import Model
from regweave.predictors import Predictor
from regweave.registration.initial import STRUCTURES
from regweave.types import WeightTable

SMOOTHER = (0.5, 1.0, 2.0)
"""Factors of the smoothness of the refinement for the uniform bank and single metrics."""
COMPARED = "compared"
"""Stands for the member that compares maps of both images: `shapes`, or `anatomy` where a bank has no `shapes`."""


@dataclass(frozen=True)
class Mix:
    """Weights of members of maps against one metric, factor of the smoothness, and whether maps act earlier too.

    ``coarse`` gives half of the levels' weight to the first member's maps, ``start`` lays structures on each other.
    """

    maps: Mapping[str, float]
    smoother: float
    coarse: bool = False
    start: bool = False

    @property
    def name(self) -> str:
        """How results and models call it."""
        parts = [f"{member} {factor:g}" for member, factor in self.maps.items()]
        parts += [f"{next(iter(self.maps))}-coarse"] if self.coarse else []
        return ", ".join([*parts, *(["structures"] if self.start else [])]) + f" × {self.smoother:g}"


FINE = {
    "learned": (Mix({COMPARED: 8}, 0.25), Mix({COMPARED: 32}, 0.25)),
    "learned, mask": (
        Mix({"outline": 4}, 0.5), Mix({"outline": 8}, 0.5), Mix({"outline": 8, COMPARED: 4}, 0.25),
    ),
}  # fmt: skip
"""Mixes without and with the moving mask."""
COARSE = {
    "learned": (Mix({COMPARED: 2}, 0.5, coarse=True), Mix({COMPARED: 8}, 0.5, coarse=True)),
    "learned, mask": (Mix({"outline": 2}, 1.0, coarse=True), Mix({"outline": 8}, 1.0, coarse=True)),
}
"""The same where maps have half of the weight of the levels too."""
STARTED = {
    "learned": (
        Mix({COMPARED: 8}, 0.5, coarse=True, start=True), Mix({COMPARED: 32}, 0.25, coarse=True, start=True),
    ),
    "learned, mask": (
        Mix({"outline": 8}, 0.5, coarse=True, start=True),
        Mix({"outline": 8, COMPARED: 4}, 0.25, coarse=True, start=True),
    ),
}  # fmt: skip
"""The same where the structures of both images are laid on each other first."""


@dataclass(frozen=True)
class Candidate:
    """One way to register: the rung that it belongs to, its name, and the method for a pair of a fold."""

    rung: str
    name: str
    method: Callable[[int], Method]


def fixed_candidates(base: Settings, modality: Any, only: Sequence[str] = ()) -> list[Candidate]:
    """The uniform bank with some smoothnesses, and every metric that can be refined, or some of them, alone."""
    uniform, *singles = baseline_methods(base, modality)
    named = {m.name.removeprefix("single:"): m for m in singles if m.settings.refine.steps}
    return [
        *(_smoothed("uniform", "uniform", uniform, factor) for factor in SMOOTHER),
        *(_smoothed("single", name, m, 1.0) for name, m in named.items() if not only or name in only),
    ]


def tuned_singles(base: Settings, modality: Any, names: Sequence[str]) -> list[Candidate]:
    """Other smoothnesses of the single metrics that some fold found best."""
    methods = {m.name.removeprefix("single:"): m for m in baseline_methods(base, modality)}
    return [_smoothed("single", name, methods[name], factor) for name in names for factor in SMOOTHER if factor != 1.0]


def _smoothed(rung: str, name: str, method: Method, factor: float) -> Candidate:
    turned = method.at(REFINE, REFINE.get(method.settings) * factor)
    return Candidate(rung, f"{name} × {factor:g}", lambda _: turned)


@dataclass(frozen=True)
class Learning:
    """What candidates that compare maps are made of; ``predictors`` of a fold have seen none of its people.

    Models are written to ``folder``: workers read them there, for a plug-in does not travel in memory.
    """

    settings: Settings
    modality: Any
    classes: tuple[int, ...]
    predictors: Mapping[int, Predictor]
    folder: Path
    coarse: bool
    start: bool = False

    def candidates(self) -> list[Candidate]:
        """Weights of maps with and without the moving mask; in the levels and at the start too where that is asked."""
        names = [m.name for m in self.schedule.bank]
        compared = "shapes" if "shapes" in names else "anatomy"
        out = []
        for rung, fine in FINE.items():
            mixes = [*fine, *(COARSE[rung] if self.coarse else ()), *(STARTED[rung] if self.start else ())]
            for mix in mixes:
                maps = {compared if member == COMPARED else member: f for member, f in mix.maps.items()}
                out.append(self._candidate(rung, replace(mix, maps=maps)))
        return out

    @property
    def schedule(self) -> Schedule:
        """Bank and levels."""
        return self.settings.schedule(self.modality)

    def _candidate(self, rung: str, mix: Mix) -> Candidate:
        base = self.settings.model_copy(update={"modality": self.modality})
        settings = REFINE.set(base, REFINE.get(base) * mix.smoother)
        if mix.start:
            settings = settings.model_copy(update={"initial": STRUCTURES})
        start = self.schedule.start_weights(settings.smoothness, self.classes)
        weights = mixed(start, self.schedule, mix)

        def method(fold: int) -> Method:
            model = Model(weights, settings, self.modality, predictor=self.predictors[fold])
            path = self.folder / f"{content_hash(model)[:24]}.json"
            if not path.exists():
                model.save(path)
            return Method(rung, settings, model=(path, sha256(path)), predicted=rung == "learned")

        return Candidate(rung, mix.name, method)


def mixed(start: WeightTable, schedule: Schedule, mix: Mix) -> WeightTable:
    """Give members of maps so many times the weight of one metric of the refinement, and half of the levels to one."""
    of = dict(zip(start.members, start.matrix[:, 0].tolist(), strict=True))
    fine = {m.name: of[m.name] for m in schedule.continuous if m.stage == "refine" and of[m.name]}
    one = max(fine.values())
    table = start.share_out({**fine, **{name: factor * one for name, factor in mix.maps.items()}})
    if not mix.coarse:
        return table
    levels = {m.name: of[m.name] for m in schedule.discrete if m.stage != "refine" and of[m.name]}
    return table.share_out({**levels, f"{next(iter(mix.maps))}-coarse": sum(levels.values())})


@dataclass(frozen=True)
class Table:
    """Dice of every candidate on every pair: by candidate, pair and label; and of the start, by pair and label."""

    pairs: Mapping[int, Sequence[PairFiles]]
    dice: Mapping[tuple[str, str], Mapping[str, Mapping[str, float]]]
    before: Mapping[str, Mapping[str, float]]

    def best(self, rung: str, fold: int, labels: Sequence[str]) -> str:
        """Name of the candidate of a rung that is best on the pairs of all other folds."""
        names = [name for of, name in self.dice if of == rung]
        return max(names, key=lambda name: self._mean(self.dice[rung, name], fold, labels))

    def _mean(self, found: Mapping[str, Mapping[str, float]], fold: int, labels: Sequence[str]) -> float:
        others = [p.id for f, pairs in self.pairs.items() if f != fold for p in pairs]
        means = [mean_over(found[name], labels) for name in others]
        # A candidate that fails somewhere is not chosen: its mean would be over easier pairs.
        return float(np.mean(means)) if np.isfinite(means).all() else -1.0


def mean_over(dice: Mapping[str, float | None], labels: Sequence[str]) -> float:
    """Mean over the structures that have a number; NaN for none."""
    values = [v for label in labels if (v := dice.get(label)) is not None]
    return float(np.mean(values)) if values else float("nan")
