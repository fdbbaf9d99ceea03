"""Coordinate-wise search over the weights of the refinement metrics, judged by left-out patients.

The refinement decides by the gradient of a sum over voxels; it has no labels, so the structured SVM cannot teach it.
Its members are few and a registration is short: each weight is tried at a few values with real Dice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from regweave.config.settings import Schedule, Settings
from regweave.jobs.folds import Fold, one_by_one
from regweave.jobs.methods import REFINE, best_of, next_values
from regweave.jobs.store import content_hash
from regweave.jobs.table import PairFiles
from regweave.registration.initial import METHODS, STRUCTURES
from regweave.run.memory import no_cache
from regweave.run.prepare import Request, Stopwatch, align_levels, prepare
from regweave.spatial.warp import to_field
from regweave.threads import kernel_threads
from regweave.training.candidates import (
    CHOSEN_ERRORS,
    Gate,
    PairScores,
    gain_interval,
    gains_over,
    overall,
    tuning_record,
)
from regweave.training.columns import ColumnLearner
from regweave.training.refinement_weights import (
    FACTORS,
    MAP_FACTORS,
    SMOOTHNESS,
    Curve,
    Preferences,
    RefinementWeights,
    RegisterAll,
    by_curves,
    judge_without_mask,
    mix_refinement,
    weigh_by_structure,
)
from regweave.training.state import Predicted, TrainingContext, Weighed
from regweave.types import ImagePair, WeightTable


def may_lay(state: Predicted) -> bool:
    """Tell whether a start from structures can be tried: the settings name another method, not a file."""
    return state.settings.initial in METHODS and state.settings.initial != STRUCTURES


def starting(state: Predicted, initial: str) -> Predicted:
    """Return the state with another start of its registrations."""
    settings = state.settings.model_copy(update={"initial": initial})
    return replace(state, settings=settings, candidates=replace(state.candidates, settings=settings))


def lay_structures(
    context: TrainingContext,
    state: Predicted,
    found: RefinementWeights,
    uniform: PairScores,
    folds: Sequence[Fold],
) -> tuple[Predicted, RefinementWeights]:
    """Try a start from structures with the weights that were found; it must gain by two standard errors.

    Parameters
    ----------
    context : TrainingContext
        Log.
    state : Predicted
        Pairs, settings and candidates.
    found : RefinementWeights
        Weights of the refinement and their scores.
    uniform : PairScores
        Scores of the bank before learning, over which gains count.
    folds : sequence of Fold
        Splits by patient.
    """
    laid = starting(state, STRUCTURES)
    context.log.tell("mix", f"start from structures: {len(state.judged)} registrations")
    scores = laid.candidates([(found.weights, state.judged)])[0]
    gate = Gate.of_patients(gains_over(found.scores, scores, state.judged), state.judged, CHOSEN_ERRORS)
    record: dict[str, Any] = {
        "before": state.settings.initial,
        "used": STRUCTURES if gate.open else state.settings.initial,
        "gain": gate.gain,
        "standard_error": gate.standard_error,
        "n": gate.n,
    }
    context.log.tell("mix", f"start from structures {gate.gain:+.4f}, {'used' if gate.open else 'not used'}")
    if not gate.open:
        return state, replace(found, start=record)
    return laid, replace(found, scores=scores, start=record, gain=gain_interval(uniform, scores, folds))


def as_started(before: Predicted, after: Predicted) -> Predicted:
    """Return a state with the start of another one, and the scores of its bank from there without moving labels."""
    if after.settings.initial == before.settings.initial:
        return before
    state = starting(before, after.settings.initial)
    scores = state.candidates([(before.start, before.judged)], predicted=True)[0]
    return replace(state, uniform={**before.uniform, **scores})


MOST_LOST = 0.002
"""Mean Dice of the known structures that a background left to the images may cost."""


def leave_to_images(
    found: RefinementWeights, start: WeightTable, rows: tuple[str, ...], smoother: float, register: RegisterAll
) -> RefinementWeights:
    """Give the background the column of the start, unless the structures lose by it.

    Parameters
    ----------
    found : RefinementWeights
        Weights with maps.
    start : WeightTable
        Weights before maps came in.
    rows : tuple of str
        Members of the refinement: other rows stay.
    smoother : float
        Smoothness of the refinement before, over what a stiffness of 1 means now.
    register : RegisterAll
        Registers all pairs.
    """
    tried = background_of(found.weights, start, rows, smoother)
    scores = register([tried])[0]
    record = _record(found.scores, scores)
    if not record["used"]:
        return replace(found, background=record)
    return replace(found, weights=tried, scores=scores, background=record)


def background_of(table: WeightTable, start: WeightTable, rows: tuple[str, ...], stiffness: float) -> WeightTable:
    """Return the table with another column of the background, in some rows, and its stiffness.

    Examples
    --------
    >>> start = WeightTable(np.array([[1.0, 1.0], [0.0, 0.0]]), ("ncc", "maps"), (0, 1), 0.1)
    >>> mixed = WeightTable(np.array([[0.2, 0.2], [0.8, 0.8]]), ("ncc", "maps"), (0, 1), 0.1)
    >>> found = background_of(mixed, start, ("ncc", "maps"), 4.0)
    >>> found.matrix.tolist(), found.stiffness.tolist()
    ([[1.0, 0.2], [0.0, 0.8]], [4.0, 1.0])
    """
    matrix = table.matrix.copy()
    index = table.rows(rows)
    matrix[index, 0] = start.matrix[start.rows(rows), 0]
    stiff = np.ones(len(table.classes)) if table.stiffness is None else table.stiffness.copy()
    stiff[0] = stiffness
    return replace(table, matrix=matrix, stiffness=stiff)


def _record(before: PairScores, after: PairScores) -> dict[str, Any]:
    change = overall(after, before) - overall(before)
    return {"change": change, "n": len(before), "used": change >= -MOST_LOST}


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


def weigh_refinement(context: TrainingContext, state: Predicted) -> Weighed:
    """Weigh the members that compare maps and those of the refinement, and settle what holds without moving labels."""
    state = _with_judges(context, state)
    folds = one_by_one(state.judged) if context.options.gate else []
    maps = bool(folds) and _judged_by_fold(context, state)
    before = state
    state, found = RefinementSearch(context, before, folds, maps).run()
    _tell_trust(context, state, found)
    unmasked = state.settings.schedule(state.modality).without_label_members(found.weights)
    if (unmasked.matrix != found.weights.matrix).any():
        blind = RefinementSearch(context, as_started(before, state), folds, maps, predicted=True)
        found = _without_mask(blind, state, found)
    return state.then(Weighed, refinement=found)


def _with_judges(context: TrainingContext, state: Predicted) -> Predicted:
    """Leave pairs out of judging for which no predictor is fitted because its kind is costly."""
    members = state.settings.schedule(state.modality).bank
    kept = tuple(p for p in state.judged if state.candidates.predictors.judges(p))
    if len(kept) == len(state.judged) or not kept or all(m.source == "image" for m in members):
        return state
    text = f"{len(kept)} of {len(state.judged)} pairs judge weights: the patients of the others are in two parts"
    context.log.tell("note", text)
    return replace(state, judged=kept)


def _judged_by_fold(context: TrainingContext, state: Predicted) -> bool:
    """Fit a predictor without its patients for every pair, where a member compares maps; False where none can be."""
    compared = any(m.source != "image" for m in state.settings.schedule(state.modality).bank)
    if not compared or not state.settings.refine.steps:
        return False
    if state.predictor is not None:
        with kernel_threads(context.workers):
            if all(state.candidates.predictors.without(p) is not None for p in state.judged):
                return True
    context.log.tell("note", "too few patients to judge what a predictor makes out: those members stay unused")
    return False


def _without_mask(search: RefinementSearch, state: Predicted, found: RefinementWeights) -> RefinementWeights:
    """Search once more as if there were no moving labels; the better of that and of the weights with them is used."""
    context, pairs = search.context, state.judged
    context.log.tell("mix", f"without moving labels: {2 * len(pairs)} registrations")
    kept = state.settings.schedule(state.modality).without_label_members(found.weights)
    used = state.candidates([(found.weights, pairs)], predicted=True)[0]
    unused = state.candidates([(kept, pairs)], predicted=True)[0]
    judged = judge_without_mask(used, unused, pairs)
    fallback = used if judged["used"] else unused
    _, own = search.run()
    own_used = own.gain is not None and overall(own.scores) > overall(fallback)
    record = {**judged, "mean_dice": overall(fallback)}
    if own.gain is not None:
        record["own"] = {**own.record(), "mean_dice": overall(own.scores), "used": own_used}
    if own_used:
        context.log.tell("mix", f"without moving labels other weights: {overall(own.scores) - overall(fallback):+.4f}")
    blind = _in_settings(own.weights, search.state, state) if own_used else None
    return replace(found, without_mask=record, blind=blind)


def _in_settings(weights: WeightTable, before: Predicted, after: Predicted) -> WeightTable:
    """Return weights whose stiffness counts from the smoothness of other settings."""
    stiffness = np.ones(len(weights.classes)) if weights.stiffness is None else weights.stiffness
    return replace(weights, stiffness=stiffness * (REFINE.get(before.settings) / REFINE.get(after.settings)))


def _tell_trust(context: TrainingContext, state: Predicted, found: RefinementWeights) -> None:
    """Say what each structure came to trust."""
    for c in state.classes if found.columns is not None else ():
        context.log.tell("mix", f"{state.scan.names.get(c, c)} {_trust(found.columns or {}, str(c))}")


def _trust(columns: Mapping[str, Any], structure: str) -> str:
    """Say which factors a structure asks for, and what left-out patients made of it."""
    factors = ", ".join(f"{member} {row[structure]:g}" for member, row in columns["factors"].items())
    gate = columns["gates"].get(structure)
    if gate is None:
        return f"trusts {factors}, as all do"
    return f"trusts {factors}: {gate['gain']:+.4f} left out, {'used' if gate['used'] else 'not used'}"


DIGITS = 4
"""Decimals of what a structure is said to trust: the programme leaves traces of 1e-17 where a member is not used."""


@dataclass(frozen=True)
class RefinementSvm:
    """Learner of the refinement's columns from pairs.

    Parameters
    ----------
    learner : ColumnLearner
        Of the levels: options, schedule, candidates, memory and threads.
    common : WeightTable
        The mix that all structures share; its rows of the refinement are the start.
    predicted : bool
        As if there were no moving labels.
    """

    learner: ColumnLearner
    common: WeightTable
    predicted: bool = False

    def __call__(self, pairs: Sequence[PairFiles]) -> tuple[WeightTable, Preferences]:
        """Columns that these pairs ask for, and the weight of each member in them against the largest common one."""
        levels, learner = self.learner, self._of_refinement()
        used = levels.sampled(pairs)
        found = learner.learn(self.common, used, levels.options.grid()[0]).weights
        return found, trust(self.common, found, [m.name for m in learner.schedule.bank])

    def _of_refinement(self) -> ColumnLearner:
        """Return the learner of the levels with one level of the refinement's members instead."""
        options = replace(self.learner.options, method="lssvm-joint", levels="all")
        schedule = as_level(self.learner.schedule, self.common)
        mark = content_hash([self.common, self.predicted])
        return replace(self.learner, options=options, schedule=schedule, load=self._load, mark=mark)

    def _load(self, pair: PairFiles) -> ImagePair:
        """Return a pair as the refinement finds it: the displacement of the levels is its start."""
        candidates = self.learner.candidates
        request = Request(
            candidates.settings, **pair.files, model=candidates.model(self.common, pair),
            predict_classes=self.predicted, reading=candidates.run.reading,
        )  # fmt: skip
        run = prepare(request, no_cache, Stopwatch())
        aligned = align_levels(run, no_cache)
        return replace(run.seen, initial_field=to_field(aligned.displacement, run.pair.fixed.geometry))


def as_level(schedule: Schedule, weights: WeightTable) -> Schedule:
    """Return a schedule whose one level searches with the refinement's members at full resolution.

    Members that compare structure maps take part where they have a weight; the control points are those of the last
    level, the displacements those of its first step.
    """
    given = {m for m, row in zip(weights.members, weights.matrix, strict=True) if row.any()}
    bank = tuple(
        m.model_copy(update={"stage": "both"}) for m in schedule.continuous if m.source == "image" or m.name in given
    )
    level = schedule.levels[-1].model_copy(update={"shrink": 1, "voxels_per_spacing": None, "steps": 1})
    return schedule.model_copy(update={"levels": (level,), "bank": bank})


def trust(common: WeightTable, found: WeightTable, members: Sequence[str]) -> Preferences:
    """Weight of each member in the column of each structure, against the largest that the common column has."""
    rows = common.rows(members)
    unit = float(np.abs(common.matrix[rows, 0]).max())
    return {
        name: {c: round(float(found.matrix[row, k] / unit), DIGITS) for k, c in enumerate(common.classes) if c != 0}
        for name, row in zip(members, rows, strict=True)
    }
