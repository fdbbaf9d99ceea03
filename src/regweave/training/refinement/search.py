"""Coordinate search over weights and smoothness of the refinement, by real registrations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from regweave.config.settings import Settings
from regweave.datasets.folds import Fold
from regweave.jobs.methods import REFINE, best_of, next_values
from regweave.training.candidates import PairScores, gain_interval, overall, tuning_record
from regweave.training.columns.learner import ColumnLearner
from regweave.training.refinement.background import leave_to_images
from regweave.training.refinement.columns import SMOOTHNESS, by_curves, weigh_by_structure
from regweave.training.refinement.members import FACTORS, MAP_FACTORS, Curve, RefinementWeights, mix_refinement
from regweave.training.refinement.start import lay_structures, may_lay
from regweave.training.refinement.svm import RefinementSvm
from regweave.training.state import Predicted, TrainingContext
from regweave.types import WeightTable

LEVEL_SHARES = (0.25, 0.5, 0.75)
"""Shares of the levels' weight that a member which compares maps is tried with there."""


@dataclass(frozen=True)
class RefinementSearch:
    """Coordinate search with the moving labels, or as if there were none.

    Parameters
    ----------
    context : TrainingContext
        Options and log.
    state : Predicted
        Pairs, settings, start and candidates.
    folds : sequence of Fold
        Splits by patient; without one nothing is tried.
    maps : bool
        Try members that compare structure maps; every pair then has a predictor without its patients.
    predicted : bool
        As if there were no moving labels: members that compare them are not tried, and the smoothness, of which
        settings have one, becomes a stiffness that is the same for all classes.
    """

    context: TrainingContext
    state: Predicted
    folds: Sequence[Fold]
    maps: bool
    predicted: bool = False

    def run(self) -> tuple[Predicted, RefinementWeights]:
        """Weigh members of the refinement, try a start from structures, then members of the levels and columns."""
        uniform = {p.id: self.state.uniform[p.id] for p in self.state.judged}
        if not self.state.settings.refine.steps:
            return self.state, RefinementWeights(self.state.start, uniform)
        start = self.state.start
        register = self._register("members of the refinement")
        found = mix_refinement(start, uniform, self._of_refinement(), self.folds, register)
        state = self.state
        tried = (
            self.context.options.structure_start == "auto" and not self.predicted
        )  # without labels it is settled already
        if tried and self.maps and may_lay(state):
            state, found = lay_structures(self.context, state, found, uniform, self.folds)
        return replace(self, state=state)._from_start(found, uniform)

    def _from_start(self, found: RefinementWeights, uniform: PairScores) -> tuple[Predicted, RefinementWeights]:
        """Weigh members of the levels, tune the smoothness again, and try columns, all from one start."""
        found = self._weigh_levels(found, uniform)
        state = self.state
        if found.gain is not None:
            settings, found = self._retune(found)
            state = replace(state, settings=settings, candidates=replace(state.candidates, settings=settings))
        if found.curves:
            found = replace(self, state=state)._by_structure(found)
        return state, replace(self, state=state)._background(found, REFINE.get(self.state.settings))

    def _of_refinement(self) -> dict[str, Sequence[float]]:
        """Members of the refinement alone, with the factors to try."""
        members = [m for m in self.state.settings.schedule(self.state.modality).continuous if m.stage == "refine"]
        usable = [m for m in members if m.source == "image" or (self.maps and self._seen(m.source))]
        return {m.name: FACTORS if m.source == "image" else MAP_FACTORS for m in usable}

    def _seen(self, source: str) -> bool:
        return source == "structures" or not self.predicted

    def _weigh_levels(self, found: RefinementWeights, uniform: PairScores) -> RefinementWeights:
        """Try members that compare maps in the levels too: where motion is large, the refinement comes too late."""
        members = self.state.settings.schedule(self.state.modality).discrete
        coarse = [m for m in members if m.source != "image" and m.stage == "levels" and self._seen(m.source)]
        if not (self.maps and coarse):
            return found
        n = sum(bool(m.weight) for m in members if m.source == "image")
        tried = (0.0, *(n * share / (1 - share) for share in LEVEL_SHARES))
        factors: dict[str, Sequence[float]] = {m.name: () for m in members if m.source == "image"}
        factors |= {m.name: tried for m in coarse}
        register = self._register("structure maps in the levels")
        more = mix_refinement(found.weights, found.scores, factors, self.folds, register)
        trail = (*found.trail, *more.trail)
        if more.gain is None:
            return replace(found, trail=trail)
        gain = gain_interval(uniform, more.scores, self.folds)
        return replace(found, weights=more.weights, scores=more.scores, trail=trail, gain=gain)

    def _retune(self, weighed: RefinementWeights) -> tuple[Settings, RefinementWeights]:
        """Tune the smoothness of the refinement once more where its members changed: other forces, other balance."""
        pairs, candidates, settings = self.state.judged, self.state.candidates, self.state.settings
        here = REFINE.get(settings)
        scores = {here: weighed.scores}
        found = {here: overall(weighed.scores)}
        while tried := next_values(REFINE.values(settings), found):
            for value in tried:
                self.context.log.tell("mix", f"smoothness of the refinement: {len(pairs)} registrations")
                at, weights = self._smoothed(value, weighed.weights)
                scores[value] = replace(candidates, settings=at)([(weights, pairs)], predicted=self.predicted)[0]
                found[value] = overall(scores[value])
            found = dict(sorted(found.items()))
        best = best_of(found)
        curves = (*weighed.curves, Curve(SMOOTHNESS, scores, best))
        settings, weights = self._smoothed(best, weighed.weights)
        record = tuning_record(best, found)
        return settings, replace(weighed, weights=weights, scores=scores[best], smoothness=record, curves=curves)

    def _smoothed(self, value: float, weights: WeightTable) -> tuple[Settings, WeightTable]:
        """Return settings and weights with another smoothness of the refinement."""
        settings = self.state.settings
        if not self.predicted:
            return REFINE.set(settings, value), weights
        factor = value / REFINE.get(settings)
        return settings, replace(weights, stiffness=np.full(len(weights.classes), factor))

    def _by_structure(self, found: RefinementWeights) -> RefinementWeights:
        """Try columns of each structure's own, by the learner that the options name."""
        propose, folds = by_curves(found), self.folds
        if self.context.options.refinement_learner == "svm":
            learner = ColumnLearner.of(self.context, self.state)
            # A fit is minutes of inference: it is left out by folds, not pair by pair.
            propose, folds = (
                RefinementSvm(learner, found.weights, self.predicted),
                self.context.folds(self.state.judged),
            )

        def left_out(models: Sequence[Sequence[WeightTable]]) -> list[PairScores]:
            n = len(models) * sum(len(fold.test) for fold in folds)
            self.context.log.tell("mix", f"weights by structure: {n} registrations")
            return self.state.candidates.left_out(folds, models, predicted=self.predicted)

        register = self._register("weights by structure, all pairs")
        return weigh_by_structure(found, self.state.judged, folds, propose, left_out, register)

    def _background(self, found: RefinementWeights, before: float) -> RefinementWeights:
        """Leave the background to the images where maps have a weight in it; ``before`` is the smoothness without."""
        members = [m for m in self.state.settings.schedule(self.state.modality).continuous if m.stage == "refine"]
        maps = [m.name for m in members if m.source != "image"]
        if not found.weights.matrix[found.weights.rows(maps), 0].any():
            return found
        rows, smoother = tuple(m.name for m in members), before / REFINE.get(self.state.settings)
        register = self._register("background left to the images")
        return leave_to_images(found, self.state.start, rows, smoother, register)

    def _register(self, what: str) -> Callable[[Sequence[WeightTable]], list[PairScores]]:
        """Return what registers all pairs with each of some weights, and says so."""

        def register(weights: Sequence[WeightTable]) -> list[PairScores]:
            pairs = self.state.judged
            self.context.log.tell("mix", f"{what}: {len(weights) * len(pairs)} registrations")
            return self.state.candidates([(w, pairs) for w in weights], predicted=self.predicted)

        return register
