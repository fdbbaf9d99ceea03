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

from _crossval_mixes import COMPARED, LEARNED, MASKED, MIXES, Mix
from regweave.config.settings import Schedule, Settings
from regweave.datasets.manifest import PairFiles
from regweave.io import sha256
from regweave.jobs.methods import REFINE, Method, baseline_methods
from regweave.jobs.store import content_hash
from regweave.model.model import Model
from regweave.predictors import Predictor
from regweave.registration.initial import STRUCTURES
from regweave.training.refinement.background import background_of
from regweave.types import WeightTable

SMOOTHER = (0.5, 1.0, 2.0)
"""Factors of the smoothness of the refinement for the uniform bank and single metrics."""


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
    mixes: Sequence[str] = ("fine",)

    def candidates(self) -> list[Candidate]:
        """Weights of maps with and without the moving mask, of some families of `MIXES`."""
        names = [m.name for m in self.schedule.bank]
        compared = "shapes" if "shapes" in names else "anatomy"
        out = []
        for rung in (LEARNED, MASKED):
            for mix in (mix for family in self.mixes for mix in MIXES[family][rung]):
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
        refine = settings.refine.model_copy(update={"steps": mix.longer * settings.refine.steps})
        settings = settings.model_copy(update={"refine": refine})
        if mix.start:
            settings = settings.model_copy(update={"initial": STRUCTURES})
        start = self.schedule.start_weights(settings.smoothness, self.classes)
        weights = mixed(start, self.schedule, mix)

        def method(fold: int) -> Method:
            model = Model(weights, settings, self.modality, predictor=self.predictors[fold])
            path = self.folder / f"{content_hash(model)[:24]}.json"
            if not path.exists():
                model.save(path)
            return Method(rung, settings, model=(path, sha256(path)), predicted=rung == LEARNED)

        return Candidate(rung, mix.name, method)


def mixed(start: WeightTable, schedule: Schedule, mix: Mix) -> WeightTable:
    """Give members of maps so many times the weight of one metric of the refinement, and one a weight in the levels."""
    of = dict(zip(start.members, start.matrix[:, 0].tolist(), strict=True))
    fine = {m.name: of[m.name] for m in schedule.continuous if m.stage == "refine" and of[m.name]}
    one = max(fine.values())
    table = start.share_out({**fine, **{name: factor * one for name, factor in mix.maps.items()}})
    if mix.apart:
        table = background_of(table, start, table.members, 1 / mix.smoother)
    if not mix.coarse:
        return table
    levels = {m.name: of[m.name] for m in schedule.discrete if m.stage != "refine" and of[m.name]}
    return table.share_out({**levels, f"{next(iter(mix.maps))}-coarse": mix.levels * sum(levels.values())})


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

    def means(self, labels: Sequence[str]) -> dict[str, dict[str, float]]:
        """Mean Dice of every candidate over all pairs, by rung: what the folds chose from."""
        out: dict[str, dict[str, float]] = {}
        for (rung, name), found in self.dice.items():
            out.setdefault(rung, {})[name] = float(np.mean([mean_over(of, labels) for of in found.values()]))
        return out

    def _mean(self, found: Mapping[str, Mapping[str, float]], fold: int, labels: Sequence[str]) -> float:
        others = [p.id for f, pairs in self.pairs.items() if f != fold for p in pairs]
        means = [mean_over(found[name], labels) for name in others]
        # A candidate that fails somewhere is not chosen: its mean would be over easier pairs.
        return float(np.mean(means)) if np.isfinite(means).all() else -1.0


def mean_over(dice: Mapping[str, float | None], labels: Sequence[str]) -> float:
    """Mean over the structures that have a number; NaN for none."""
    values = [v for label in labels if (v := dice.get(label)) is not None]
    return float(np.mean(values)) if values else float("nan")
