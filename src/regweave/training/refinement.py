"""Training stage of the refinement: weights with moving labels, and weights for pairs without them.

The refinement follows the gradient of a sum over voxels and has no labels, so the structured SVM of the levels does not
apply. Its members are few and a registration is short: real registrations choose their weights, and left-out patients
judge them. A search passes through six steps; each uses what the steps before have found:

1. weights of the refinement's members, the same for all structures, by coordinate search: `mix_refinement`
2. initial alignment of structures, where the class predictor and left-out patients allow it
3. weights of members that compare structure maps in the levels
4. smoothness of the refinement, tuned again for the new weights
5. weights by structure: `weigh_by_structure`. All pairs were registered with each value for all structures at once, and
   structures lie apart, so each structure reads its own curve from these registrations. The curve of a structure that
   few pairs show is noisy; it is shrunk towards the common one by empirical Bayes
6. background: its own column, from before structure maps had a weight

Last, with all other weights in place, `weigh_guides` learns how much structures weigh that guide: first all alike, then
each by its own curve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from regweave.config.settings import Settings
from regweave.jobs.runner import REFINE, best_of, next_values
from regweave.jobs.table import Fold, PairFiles, one_by_one
from regweave.jobs.workers import content_hash
from regweave.model.record import (
    BackgroundTrial,
    GateRecord,
    MemberTrial,
    OwnWeights,
    RefinementColumns,
    RefinementRecord,
    StartTrial,
    WithoutMask,
)
from regweave.progress import ProgressReporter
from regweave.registration.guides import FINE, usual_weights
from regweave.registration.initial import METHODS, STRUCTURES
from regweave.run.job import Job
from regweave.run.memory import no_cache
from regweave.run.register import align_levels, prepare
from regweave.spatial.warp import to_field
from regweave.threads import kernel_threads
from regweave.training.columns import ColumnLearner
from regweave.training.state import (
    CHOSEN_ERRORS,
    PairScores,
    TrainingState,
    choose,
    gain_interval,
    gains_over,
    judge_patients,
    overall,
    tuning_record,
)
from regweave.types import Float64Array, ImagePair, WeightTable

LEVEL_SHARES = (0.25, 0.5, 0.75)
"""Shares of the levels' weight that are tried for a member that compares structure maps there."""
MOST_LOST = 0.002  # largest loss in mean Dice of the known structures by the separate column of the background
DIGITS = 4  # decimals of recorded factors: the quadratic programme leaves traces of 1e-17 in unused members
FACTORS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Weights that may be tried for a member, relative to the largest start weight of the refinement."""
MAP_FACTORS = (*FACTORS, 16.0, 32.0)
"""The same for a member that compares structure maps: good maps are worth more than all images together."""
GUIDE_FACTORS = tuple(2.0**n for n in range(-3, 4))
"""Weights of guides that are tried, against the usual ones. None is 0: a structure that is asked for guides."""
SMOOTHNESS = "smoothness"  # name of the curve over the smoothness of the refinement
SHARES = (0.5, 1.0)
"""Shares of the way from the common column to the column of a structure that are tried on left-out patients."""

Register = Callable[[Sequence[Any]], Sequence[PairScores]]
"""Registers all pairs with each of some weights, or left-out pairs with each of some sets of weights by fold."""
Preferences = Mapping[str, Mapping[int, float]]  # best factor of each member by structure
Propose = Callable[[Sequence[PairFiles]], tuple[WeightTable, Preferences]]
"""Learner of columns from pairs: the weights, and the factors behind them."""


@dataclass(frozen=True)
class Curve:
    """Scores of all pairs at each value of one setting, and the value in use for all structures.

    The setting is the factor of a member of the refinement, or `SMOOTHNESS`.
    """

    name: str
    scores: Mapping[float, PairScores]
    common: float


NOT_SEARCHED = RefinementRecord(members=(), gain=None, smoothness=None, without_mask=None)


@dataclass(frozen=True)
class RefinementWeights:
    """Weights of a training during and after the search over the refinement."""

    weights: WeightTable
    """The start's, with other rows for members of the refinement where left-out patients gained by it."""
    scores: PairScores  # scores of all judged pairs with them
    record: RefinementRecord = NOT_SEARCHED  # values that were tried, and their gains
    curves: tuple[Curve, ...] = field(default=(), repr=False)
    """One for each setting that was searched; `weigh_by_structure` uses them."""
    without_labels: WeightTable | None = None  # weights for pairs without moving labels, where others are better there

    def recorded(self, **parts: Any) -> RefinementWeights:
        """Return the same weights with more parts of the record."""
        return replace(self, record=self.record.model_copy(update=parts))


def weigh_refinement(state: TrainingState) -> TrainingState:
    """Search the weights of the refinement, and of structure maps in the levels; then without moving labels."""
    state = _with_judged_pairs(state)
    folds = one_by_one(state.judged) if state.options.gate else []
    maps = bool(folds) and _has_predictors(state)
    before = state
    state, found = RefinementSearch(before, folds, maps).run()
    if found.record.columns is not None:
        _report_columns(state, found.record.columns)
    unmasked = state.settings.for_bank(state.modality).without_label_members(found.weights)
    if (unmasked.matrix != found.weights.matrix).any():
        search = RefinementSearch(starting_as(before, state), folds, maps, predicted=True)
        found = _without_labels(search, state, found)
    return replace(state, refinement=found)


def _with_judged_pairs(state: TrainingState) -> TrainingState:
    """Judge only with pairs for which a predictor without their patients is fitted, if its kind is costly."""
    members = state.settings.for_bank(state.modality).bank
    kept = tuple(p for p in state.judged if state.candidates.predictors.judges(p))
    if len(kept) == len(state.judged) or not kept or all(m.source == "image" for m in members):
        return state
    text = f"{len(kept)} of {len(state.judged)} pairs judge weights: the patients of the others are in two parts"
    state.log.report("note", text)
    return replace(state, judged=kept)


def _has_predictors(state: TrainingState) -> bool:
    """Fit a predictor without its patients for every pair, if a member compares maps; False if one cannot be fitted."""
    compared = any(m.source != "image" for m in state.settings.for_bank(state.modality).bank)
    if not compared or not state.settings.refine.steps:
        return False
    if state.predictor is not None:
        with kernel_threads(state.workers):
            if all(state.candidates.predictors.without(p) is not None for p in state.judged):
                return True
    state.log.report(
        "note", "too few patients to judge segmentations by a predictor: members that use them stay unused"
    )
    return False


@dataclass(frozen=True)
class RefinementSearch:
    """Coordinate search by registrations, with the moving labels or without them."""

    state: TrainingState  # pairs, settings, start and candidates
    folds: Sequence[Fold]  # splits by patient; without any, nothing is tried
    maps: bool  # try members that compare structure maps; every pair then has a predictor without its patients
    predicted: bool = False
    """Search without moving labels: members that compare them are not tried. The smoothness of the settings stays; it
    becomes a stiffness, the same for all classes."""

    def run(self) -> tuple[TrainingState, RefinementWeights]:
        """Run all steps; return the state with the settings they chose, and the weights."""
        uniform = {p.id: self.state.uniform[p.id] for p in self.state.judged}
        if not self.state.settings.refine.steps:
            return self.state, RefinementWeights(self.state.start, uniform)
        register = self._register("members of the refinement")
        search = self.state.options.next_values
        found = mix_refinement(self.state.start, uniform, self._members(), self.folds, register, search)
        here, found = self._align_structures(found, uniform)
        found = here._weigh_levels(found, uniform)
        smoothness = REFINE.get(here.state.settings)
        if found.record.gain is not None:
            here, found = here._retune(found)
        if found.curves:
            found = here._by_structure(found)
        return here.state, here._separate_background(found, smoothness)

    def _members(self) -> dict[str, Sequence[float]]:
        """Members of the refinement alone, with the factors to try."""
        members = [m for m in self.state.settings.for_bank(self.state.modality).continuous if m.stage == "refine"]
        usable = [m for m in members if m.source == "image" or (self.maps and self._visible(m.source))]
        return {m.name: FACTORS if m.source == "image" else MAP_FACTORS for m in usable}

    def _visible(self, source: str) -> bool:
        return source == "structures" or not self.predicted

    def _align_structures(
        self, found: RefinementWeights, uniform: PairScores
    ) -> tuple[RefinementSearch, RefinementWeights]:
        """Try an initial alignment of the structures; left-out patients must gain by two standard errors.

        In different patients a structure may be displaced by more than the levels search.
        """
        state = self.state
        # Without labels the initial alignment has been chosen before.
        allowed = self.maps and not self.predicted and state.options.structure_start == "auto"
        if not allowed or not other_start(state):
            return self, found
        tried = starting(state, STRUCTURES)
        state.log.report("mix", f"start from structures: {len(state.judged)} registrations")
        scores = tried.candidates([(found.weights, state.judged)])[0]
        gate = judge_patients(gains_over(found.scores, scores, state.judged), state.judged, CHOSEN_ERRORS)
        state.log.report("mix", f"start from structures {gate.gain:+.4f}, {'used' if gate.used else 'not used'}")
        before, judged = state.settings.initial, gate.model_dump(exclude={"used"})
        found = found.recorded(start=StartTrial(before=before, used=STRUCTURES if gate.used else before, **judged))
        if not gate.used:
            return self, found
        found = replace(found, scores=scores).recorded(gain=gain_interval(uniform, scores, self.folds))
        return replace(self, state=tried), found

    def _weigh_levels(self, found: RefinementWeights, uniform: PairScores) -> RefinementWeights:
        """Try structure maps in the levels too: where motion is large, the refinement does not reach them."""
        members = self.state.settings.for_bank(self.state.modality).discrete
        coarse = [m for m in members if m.source != "image" and m.stage == "levels" and self._visible(m.source)]
        if not (self.maps and coarse):
            return found
        n = sum(bool(m.weight) for m in members if m.source == "image")
        tried = (0.0, *(n * share / (1 - share) for share in LEVEL_SHARES))
        factors: dict[str, Sequence[float]] = {m.name: () for m in members if m.source == "image"}
        factors |= {m.name: tried for m in coarse}
        register, search = self._register("structure maps in the levels"), self.state.options.next_values
        more = mix_refinement(found.weights, found.scores, factors, self.folds, register, search)
        found = found.recorded(members=(*found.record.members, *more.record.members))
        if more.record.gain is None:
            return found
        gain = gain_interval(uniform, more.scores, self.folds)
        return replace(found, weights=more.weights, scores=more.scores).recorded(gain=gain)

    def _retune(self, weighed: RefinementWeights) -> tuple[RefinementSearch, RefinementWeights]:
        """Tune the smoothness of the refinement again: other members have other forces."""
        state, candidates, settings = self.state, self.state.candidates, self.state.settings
        here = REFINE.get(settings)
        scores = {here: weighed.scores}
        found = {here: overall(weighed.scores)}
        while tried := state.options.next_values(REFINE.values(settings), found):
            for value in tried:
                state.log.report("mix", f"smoothness of the refinement: {len(state.judged)} registrations")
                at, weights = self._smoothed(value, weighed.weights)
                work = [(weights, state.judged)]
                scores[value] = replace(candidates, settings=at.settings)(work, predicted=self.predicted)[0]
                found[value] = overall(scores[value])
            found = dict(sorted(found.items()))
        best = best_of(found)
        state, weights = self._smoothed(best, weighed.weights)
        curves = (*weighed.curves, Curve(SMOOTHNESS, scores, best))
        tuned = replace(weighed, weights=weights, scores=scores[best], curves=curves)
        return replace(self, state=state), tuned.recorded(smoothness=tuning_record(best, found))

    def _smoothed(self, value: float, weights: WeightTable) -> tuple[TrainingState, WeightTable]:
        """Return the state and the weights with another smoothness of the refinement."""
        settings = self.state.settings
        if not self.predicted:
            return self.state.with_settings(REFINE.set(settings, value)), weights
        factor = value / REFINE.get(settings)
        return self.state, replace(weights, stiffness=np.full(len(weights.classes), factor))

    def _by_structure(self, found: RefinementWeights) -> RefinementWeights:
        """Try weights by structure, by the learner of the options."""
        state = self.state
        propose: Propose = partial(by_curves, found)
        folds = self.folds
        if state.options.refinement_learner == "svm":
            # A fit takes minutes of inference: few folds, not one for each patient.
            propose, folds = RefinementSvm(ColumnLearner.of(state), found.weights, self.predicted), state.folds()

        def left_out(models: Sequence[Sequence[WeightTable]]) -> list[PairScores]:
            n = len(models) * sum(len(fold.test) for fold in folds)
            state.log.report("mix", f"weights by structure: {n} registrations")
            return state.candidates.left_out(folds, models, predicted=self.predicted)

        register = self._register("weights by structure, all pairs")
        return weigh_by_structure(found, state.judged, folds, propose, left_out, register)

    def _separate_background(self, found: RefinementWeights, smoothness: float) -> RefinementWeights:
        """Restore the background's weights and smoothness from before structure maps, unless structures lose by it.

        Where maps have most of the weight, images have little, in the background too. Structures without labels are
        part of the background: they would follow the images less. Their Dice is unknown, so no gain can decide; the
        known structures must not lose more than `MOST_LOST`.
        """
        state = self.state
        members = [m for m in state.settings.for_bank(state.modality).continuous if m.stage == "refine"]
        maps = [m.name for m in members if m.source != "image"]
        if not found.weights.matrix[found.weights.rows(maps), 0].any():
            return found
        rows, stiffness = tuple(m.name for m in members), smoothness / REFINE.get(state.settings)
        tried = background_of(found.weights, state.start, rows, stiffness)
        scores = self._register("background left to the images")([tried])[0]
        change = overall(scores, found.scores) - overall(found.scores)
        used = change >= -MOST_LOST
        record = BackgroundTrial(change=change, n=len(found.scores), used=used)
        return (replace(found, weights=tried, scores=scores) if used else found).recorded(background=record)

    def _register(self, what: str) -> Callable[[Sequence[WeightTable]], list[PairScores]]:
        """Return a function that registers all pairs with each of some weights, and reports it."""

        def register(weights: Sequence[WeightTable]) -> list[PairScores]:
            pairs = self.state.judged
            self.state.log.report("mix", f"{what}: {len(weights) * len(pairs)} registrations")
            return self.state.candidates([(w, pairs) for w in weights], predicted=self.predicted)

        return register


def other_start(state: TrainingState) -> bool:
    """Return whether the settings name another method of initial alignment than structures, and no file."""
    return state.settings.initial in METHODS and state.settings.initial != STRUCTURES


def starting(state: TrainingState, initial: str) -> TrainingState:
    """Return the state with another initial alignment of its registrations."""
    return state.with_settings(state.settings.model_copy(update={"initial": initial}))


def starting_as(before: TrainingState, after: TrainingState) -> TrainingState:
    """Return the earlier state with the later initial alignment, and its uniform scores without moving labels."""
    if after.settings.initial == before.settings.initial:
        return before
    state = starting(before, after.settings.initial)
    scores = state.candidates([(before.start, before.judged)], predicted=True)[0]
    return replace(state, uniform={**before.uniform, **scores})


def background_of(table: WeightTable, start: WeightTable, rows: tuple[str, ...], stiffness: float) -> WeightTable:
    """Return the table with the background column of the start in some rows, and another stiffness there."""
    matrix = table.matrix.copy()
    index = table.rows(rows)
    matrix[index, 0] = start.matrix[start.rows(rows), 0]
    stiff = _stiffness(table).copy()
    stiff[0] = stiffness
    return replace(table, matrix=matrix, stiffness=stiff)


def _without_labels(search: RefinementSearch, state: TrainingState, found: RefinementWeights) -> RefinementWeights:
    """Choose the weights of pairs without moving labels: those with labels, or those of a search without labels."""
    pairs = state.judged
    state.log.report("mix", f"without moving labels: {2 * len(pairs)} registrations")
    without = state.settings.for_bank(state.modality).without_label_members(found.weights)
    used = state.candidates([(found.weights, pairs)], predicted=True)[0]
    unused = state.candidates([(without, pairs)], predicted=True)[0]
    gate = judge_patients(gains_over(unused, used, pairs), pairs)
    fallback = overall(used if gate.used else unused)
    record = WithoutMask(**dict(gate), mean_dice=fallback)
    _, own = search.run()
    if own.record.gain is None:
        return found.recorded(without_mask=record)
    dice = overall(own.scores)
    better = dice > fallback
    parts = {name: getattr(own.record, name) for name in own.record.model_fields_set}
    record = record.model_copy(update={"own": OwnWeights(**parts, mean_dice=dice, used=better)})
    found = found.recorded(without_mask=record)
    if not better:
        return found
    state.log.report("mix", f"without moving labels other weights: {dice - fallback:+.4f}")
    # The stiffness becomes relative to the smoothness of the settings with labels.
    ratio = REFINE.get(search.state.settings) / REFINE.get(state.settings)
    return replace(found, without_labels=replace(own.weights, stiffness=_stiffness(own.weights) * ratio))


def _report_columns(state: TrainingState, columns: RefinementColumns) -> None:
    """Report the factors of each structure, and the gain of left-out patients by them."""
    for c in state.classes:
        factors = ", ".join(f"{member} {row[str(c)]:g}" for member, row in columns.factors.items())
        gate = columns.gates.get(str(c))
        result = "as all structures"
        if gate is not None:
            result = f"{gate.gain:+.4f} left out, {'used' if gate.used else 'not used'}"
        state.log.report("mix", f"{state.scan.names.get(c, c)}: {factors}: {result}")


@dataclass(frozen=True)
class RefinementSvm:
    """Latent SVM of the refinement: learner of its columns from pairs.

    The refinement follows a gradient and has no labels. StepSearch the result of the levels its members are compared at
    full resolution for small displacements of control points instead, as a last discrete level would. Prediction,
    imputation and the most violated constraint are then the inference of the levels, and the learner of the levels
    applies unchanged. The proximity term of the programme keeps columns near the common one.
    """

    learner: ColumnLearner  # learner of the levels: options, schedule, candidates, memory and threads
    common: WeightTable  # weights that all structures share; their rows of the refinement are the start
    predicted: bool = False  # ignore the moving labels

    def __call__(self, pairs: Sequence[PairFiles]) -> tuple[WeightTable, Preferences]:
        """Columns learned from pairs, and the weight of each member in them relative to the largest common one."""
        levels, schedule = self.learner, as_level(self.learner.schedule, self.common)
        options = replace(levels.options, method="lssvm-joint", levels="all")
        mark = content_hash([self.common, self.predicted])
        learner = replace(levels, options=options, schedule=schedule, load=self._load, mark=mark)
        found = learner.learn(self.common, levels.sampled(pairs), levels.options.grid()[0]).weights
        return found, factors_of(self.common, found, [m.name for m in schedule.bank])

    def _load(self, pair: PairFiles) -> ImagePair:
        """Return a pair whose initial field is the displacement of the levels."""
        candidates = self.learner.state.candidates
        job = Job(
            **pair.files, **vars(candidates.run.reading), config=candidates.settings,
            model=candidates.model(self.common, pair), predict_classes=self.predicted,
        )  # fmt: skip
        run = prepare(job, no_cache, ProgressReporter())
        aligned = align_levels(run, no_cache)
        return replace(run.seen, initial_field=to_field(aligned.displacement, run.pair.fixed.geometry))


def as_level(schedule: Settings, weights: WeightTable) -> Settings:
    """Return a schedule of one level, at full resolution, with the members of the refinement.

    Members that compare structure maps take part where they have a weight; the control points are those of the last
    level, the displacements those of its first step.
    """
    given = {m for m, row in zip(weights.members, weights.matrix, strict=True) if row.any()}
    bank = tuple(
        m.model_copy(update={"stage": "both"}) for m in schedule.continuous if m.source == "image" or m.name in given
    )
    level = schedule.levels[-1].model_copy(update={"shrink": 1, "voxels_per_spacing": None, "steps": 1})
    return schedule.model_copy(update={"levels": (level,)}).with_bank(bank)


def factors_of(common: WeightTable, found: WeightTable, members: Sequence[str]) -> Preferences:
    """Weight of each member in the column of each structure, relative to the largest of the common column."""
    rows = common.rows(members)
    unit = float(np.abs(common.matrix[rows, 0]).max())
    return {
        name: {c: round(float(found.matrix[row, k] / unit), DIGITS) for k, c in enumerate(common.classes) if c != 0}
        for name, row in zip(members, rows, strict=True)
    }


def mix_refinement(
    start: WeightTable, scores: PairScores, members: Mapping[str, Sequence[float]], folds: Sequence[Fold],
    register: Register, search: Callable[..., list[float]] = next_values,
) -> RefinementWeights:  # fmt: skip
    """Search the weight of each member of the refinement, one after the other, the same for all classes.

    For each fold, the value that is best on its training pairs is judged on its left-out pairs. If these gain by
    `CHOSEN_ERRORS` standard errors, the member takes the value that is best on all pairs. All pairs are registered with
    all values, so folds need no further registrations, and leave-one-out folds are affordable.

    ``scores`` are those of all pairs with the start. ``members`` has the factors that may be tried for each member of
    one stage; a member without factors keeps its own, and takes part in the normalisation. Rows of other members stay.
    Without folds nothing is judged and nothing changes.
    """
    rows = start.matrix[start.rows([*members]), 0]
    if not folds or len(members) < 2 or not rows.any():
        return RefinementWeights(start, scores)
    factors = dict(zip(members, (rows / rows.max()).tolist(), strict=True))
    known, trail, curves = scores, [], []
    for member, now in factors.items():
        if not members[member]:
            continue
        alone = not any(f for m, f in factors.items() if m != member)
        values = [f for f in sorted({*members[member], now}) if f > 0 or not alone]
        found: dict[float, PairScores] = {now: known}
        while tried := search(values, {f: overall(s, known) for f, s in found.items()}):
            new = register([start.share_out({**factors, member: f}) for f in tried])
            found.update(zip(tried, new, strict=True))
        curve, line = _chosen(member, found, now, folds)
        trail.append(line)
        curves.append(curve)
        factors[member], known = curve.common, found[curve.common]
    if all(line.used == line.before for line in trail):
        return RefinementWeights(start, scores, curves=tuple(curves)).recorded(members=tuple(trail))
    mixed = RefinementWeights(start.share_out(factors), known, curves=tuple(curves))
    return mixed.recorded(members=tuple(trail), gain=gain_interval(scores, known, folds))


def _chosen(
    member: str, found: Mapping[float, PairScores], now: float, folds: Sequence[Fold]
) -> tuple[Curve, MemberTrial]:
    """Choose among the factors of a member that were tried; its curve with the chosen one, and the record."""
    best, gate = choose(found, partial(_judge, found, now, folds), now)
    curve = tuple({"factor": f, "mean_dice": overall(found[f], found[now])} for f in sorted(found))
    judged = gate.model_dump(exclude={"used"})
    return Curve(member, found, best), MemberTrial(member=member, curve=curve, before=now, used=best, **judged)


def weigh_guides(state: TrainingState, weights: WeightTable) -> tuple[WeightTable, RefinementRecord]:
    """Add a row of weights of structures that guide, learned from contours with the error of the options.

    The true labels judge, and all other weights stay. Pairs in which no structure can guide are left out.
    """
    assert state.options.guide_error_mm is not None
    drawn = (state.options.guide_error_mm, state.options.seed)
    usual = usual_weights(weights, state.settings.for_bank(state.modality).continuous, FINE.stage)
    candidates = replace(state.candidates, drawn=drawn)

    def table(factors: Float64Array | float) -> WeightTable:
        matrix = np.vstack([weights.matrix, usual * factors])
        return replace(weights, matrix=matrix, members=(*weights.members, FINE.name))

    def register(tables: Sequence[WeightTable]) -> list[PairScores]:
        state.log.report("guides", f"{len(tables) * len(pairs)} registrations")
        return candidates([(w, pairs) for w in tables])

    def propose(known: Sequence[PairFiles]) -> tuple[WeightTable, Preferences]:
        factors = preferences([curve], known, weights.classes)
        return table(np.array([curve.common, *factors[FINE.name].values()])), factors

    first = candidates([(table(1.0), state.judged)], any_fail=True)[0]
    pairs = [p for p in state.judged if p.id in first]
    folds = one_by_one(pairs)
    if not folds:
        state.log.report("note", "too few pairs with structures that can guide: the model has no weights of guides")
        return weights, NOT_SEARCHED
    found = {1.0: first}
    while tried := state.options.next_values(GUIDE_FACTORS, {f: overall(s) for f, s in found.items()}):
        found.update(zip(tried, register([table(f) for f in tried]), strict=True))
    curve, line = _chosen(FINE.name, found, 1.0, folds)
    gain = gain_interval(first, found[curve.common], folds)
    common = RefinementWeights(table(curve.common), found[curve.common]).recorded(members=(line,), gain=gain)
    learned = weigh_by_structure(common, pairs, folds, propose, partial(candidates.left_out, folds), register)
    return learned.weights, learned.record


def _judge(found: Mapping[float, PairScores], now: float, folds: Sequence[Fold], _best: float) -> GateRecord:
    """Gain of left-out pairs when each fold takes the value that is best on its own training pairs."""
    gains: list[float] = []
    pairs: list[PairFiles] = []
    for fold in folds:
        means = {f: overall(s, (p.id for p in fold.train)) for f, s in found.items()}
        best = max(means, key=lambda f: (means[f], f == now))
        gains += gains_over(found[now], found[best], fold.test)
        pairs += fold.test
    return judge_patients(gains, pairs, CHOSEN_ERRORS)


def weigh_by_structure(
    found: RefinementWeights, pairs: Sequence[PairFiles], folds: Sequence[Fold], propose: Propose, left_out: Register,
    register: Register,
) -> RefinementWeights:  # fmt: skip
    """Use weights by structure in the refinement where left-out patients gain by it.

    Each fold learns columns from its own training pairs by ``propose``, and its left-out pairs are registered with
    them. A structure keeps its column if its own Dice rises by a standard error; then the mean over all structures must
    rise by one. ``found`` are the common weights, with the curves of their search.
    """
    common = found.weights
    whole, factors = propose(pairs)
    record = RefinementColumns(
        factors={member: {str(c): f for c, f in row.items()} for member, row in factors.items()},
        share=None, gates={}, gain=None,
    )  # fmt: skip
    differs = (whole.matrix != common.matrix).any(axis=0) | (_stiffness(whole) != _stiffness(common))
    changed = tuple(c for c, new in zip(common.classes, differs, strict=True) if new and c != 0)
    if not changed:
        return found.recorded(columns=record)
    tables = [propose(fold.train)[0] for fold in folds]
    judged = [p for fold in folds for p in fold.test]
    tried = left_out([[part_of(common, t, share, changed) for t in tables] for share in SHARES])
    choices = []
    for share, of_all in zip(SHARES, tried, strict=True):
        gates = structure_gates(found.scores, of_all, folds, changed)
        kept = tuple(c for c, gate in gates.items() if gate.used)
        scores = of_all
        if kept and kept != changed:
            scores = left_out([[part_of(common, t, share, kept) for t in tables]])[0]
        gate = judge_patients(gains_over(found.scores, scores, judged) if kept else [0.0] * len(judged), judged)
        choices.append((gate, share, gates, kept, scores))
    gate, share, gates, kept, scores = max(choices, key=lambda choice: choice[0].gain or 0.0)
    used = kept if gate.used else ()
    gates = {c: g.model_copy(update={"used": c in used}) for c, g in gates.items()}
    record = record.model_copy(update={"share": share, "gates": {str(c): g for c, g in gates.items()}})
    if not gate.used:
        return found.recorded(columns=record)
    weights = part_of(common, whole, share, kept)
    record = record.model_copy(update={"gain": gain_interval(found.scores, scores, folds)})
    return replace(found, weights=weights, scores=register([weights])[0]).recorded(columns=record)


def by_curves(found: RefinementWeights, pairs: Sequence[PairFiles]) -> tuple[WeightTable, Preferences]:
    """Learn columns from Dice: each structure takes the best values of its shrunken curves."""
    factors = preferences(found.curves, pairs, found.weights.classes)
    return column_table(found.weights, factors), factors


def preferences(curves: Sequence[Curve], pairs: Sequence[PairFiles], classes: Sequence[int]) -> dict[str, Any]:
    """Return the best value of each setting for each structure, by its shrunken curve on some pairs.

    For the smoothness the value is a factor on the common one.
    """
    out: dict[str, dict[int, float]] = {}
    for curve in curves:
        known = [p for p in pairs if p.id in curve.scores[curve.common]]
        values = [curve.common, *(v for v in sorted(curve.scores) if v != curve.common)]
        gains = np.stack([shrunken_gains(curve, value, known, classes[1:]) for value in values])
        best = gains.argmax(axis=0)  # of equals the first: the common one
        unit = curve.common if curve.name == SMOOTHNESS else 1.0
        out[curve.name] = {c: values[k] / unit for c, k in zip(classes[1:], best.tolist(), strict=True)}
    return out


def shrunken_gains(curve: Curve, value: float, pairs: Sequence[PairFiles], classes: Sequence[int]) -> Float64Array:
    """Gain of each structure by another value, shrunk towards the common gain, (C,).

    The deviations of the structures from the common gain have the variance τ² beside their squared standard errors σ².
    An observed deviation is multiplied by τ² / (τ² + σ²) (James and Stein). A common gain above zero counts as zero:
    `mix_refinement` has tried that value for all structures, and left-out patients rejected it.
    """
    before, after = curve.scores[curve.common], curve.scores[value]
    mean, error = gains_by_structure(before, after, pairs, classes)
    names = [p.id for p in pairs]
    prior = min(overall(after, names) - overall(before, names), 0.0)
    known = np.isfinite(error)
    deviation = np.where(known, mean - prior, 0.0)
    variance = np.square(np.where(known, error, 0.0))
    spread = max(float((deviation**2 - variance)[known].mean()), 0.0) if known.any() else 0.0
    total = spread + variance
    share = np.divide(spread, total, out=np.zeros_like(total), where=total > 0)
    return np.asarray(prior + share * deviation)


def gains_by_structure(
    before: PairScores, after: PairScores, pairs: Sequence[PairFiles], classes: Sequence[int]
) -> tuple[Float64Array, Float64Array]:
    """Mean gain of each structure over the pairs that show it, and its standard error, a jackknife by patient.

    Both are of shape (C,); the mean is NaN where no pair shows the structure, the error infinite below two patients.
    """
    gains = _dice(after, pairs, classes) - _dice(before, pairs, classes)  # (N, C)
    seen = np.isfinite(gains)
    gains = np.where(seen, gains, 0.0)
    patients = sorted({name for p in pairs for name in p.patients})
    shows = np.array([[name in p.patients for p in pairs] for name in patients], dtype=np.float64)  # (P, N)
    count, total = seen.sum(axis=0), gains.sum(axis=0)
    n, own = count - shows @ seen, shows @ seen
    used = (own > 0) & (n > 0)  # a patient of all pairs cannot be left out
    means = np.divide(total - shows @ gains, n, out=np.zeros_like(n), where=used)
    k = used.sum(axis=0)
    centre = np.divide(means.sum(axis=0), k, out=np.zeros(len(k)), where=k > 0)
    spread = np.where(used, (means - centre) ** 2, 0.0).sum(axis=0)
    error = np.where(k > 1, np.sqrt((k - 1) / np.maximum(k, 1) * spread), np.inf)
    return np.divide(total, count, out=np.full(len(k), np.nan), where=count > 0), error


def column_table(common: WeightTable, preferred: Preferences) -> WeightTable:
    """Divide the refinement's weight among its members by the factors of each structure, with its own smoothness.

    A structure whose column equals the common one keeps the common bits.
    """
    table = common
    for c in common.classes[1:]:
        shares = {member: factors[c] for member, factors in preferred.items() if member != SMOOTHNESS}
        if any(shares.values()):
            own = common.share_out(shares)
            k = common.classes.index(c)
            if not np.allclose(own.matrix[:, k], common.matrix[:, k], rtol=1e-12, atol=0):
                table = table.blend(own, 1.0, (c,))
    smooth = preferred.get(SMOOTHNESS)
    if smooth is None:
        return table
    factors = np.array([1.0, *(smooth[c] for c in common.classes[1:])])
    return replace(table, stiffness=_stiffness(common) * factors)


def part_of(common: WeightTable, whole: WeightTable, share: float, classes: Sequence[int]) -> WeightTable:
    """Interpolate from the common table towards the columns of some structures; the stiffness in its logarithm."""
    kept = np.isin(common.classes, classes)
    ratio = _stiffness(whole) / _stiffness(common)
    stiffness = _stiffness(common) * np.where(kept, ratio**share, 1.0)
    return replace(common.blend(whole, share, classes), stiffness=stiffness)


def _stiffness(table: WeightTable) -> Float64Array:
    return np.ones(len(table.classes)) if table.stiffness is None else table.stiffness


def structure_gates(
    before: PairScores, after: PairScores, folds: Sequence[Fold], classes: Sequence[int]
) -> dict[int, GateRecord]:
    """Judge the gain of each structure on the left-out pairs that show it, by patient."""
    pairs = [p for fold in folds for p in fold.test]
    means, errors = gains_by_structure(before, after, pairs, classes)
    counts = np.isfinite(_dice(after, pairs, classes)).sum(axis=0)
    rows = zip(classes, means.tolist(), errors.tolist(), counts.tolist(), strict=True)
    return {
        c: GateRecord(gain=mean, standard_error=error, n=n, used=n > 1 and mean > error) for c, mean, error, n in rows
    }


def _dice(scores: PairScores, pairs: Sequence[PairFiles], classes: Sequence[int]) -> Float64Array:
    """Dice by pair and structure, (N, C); NaN where a pair does not count it."""
    rows = []
    for pair in pairs:
        known = {s.label: s.dice_after for s in scores[pair.id].counted}
        rows.append([known.get(c, np.nan) for c in classes])
    return np.array(rows, dtype=np.float64).reshape(len(pairs), len(classes))
