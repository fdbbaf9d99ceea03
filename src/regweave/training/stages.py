"""Stages of a training as pure functions: scan, tune, predict classes, select columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from regweave.datasets.coverage import cover_patients
from regweave.jobs.methods import LEVELS, Method, SmoothnessParameter, best_of, next_values
from regweave.jobs.scoring import mean_over_pairs, pair_score
from regweave.kernels.threads import kernel_threads
from regweave.measures.scores import PairScore
from regweave.predictors import Choice
from regweave.run.reading import in_one_numbering
from regweave.run.recipe import with_stated
from regweave.training.candidates import CandidateRunner, PairScores, tuning_record
from regweave.training.columns.learner import ColumnLearner
from regweave.training.columns.selection import Attempt, ColumnSelection, Trial, rebalance, strengthen, try_columns
from regweave.training.options import CHOICES
from regweave.training.predictor_choice import choose_predictors, with_record
from regweave.training.predictor_fits import PredictorFits, segmented_images
from regweave.training.predictors_by_fold import Predictors
from regweave.training.scan import choose_bank, choose_structures, scan
from regweave.training.state import Listed, Predicted, Scanned, Selected, TrainingContext, Tuned, Weighed


def scan_dataset(context: TrainingContext, state: Listed) -> Scanned:
    """Read every file once, leave out pairs that cannot be read, and settle structures and modality."""
    options, log = context.options, context.log
    reading = with_stated(in_one_numbering(state.run.reading, state.pairs), state.settings, None)
    found = scan(state.pairs, reading)
    state = state.leave_out({name: str(error) for name, error in found.failed.items()}, log)
    classes = choose_structures(found, options.classes, options.withhold or ())
    skipped = found.lacking(classes)
    bare = [name for name, missing in skipped.items() if len(missing) == len(classes)]
    state = state.leave_out(dict.fromkeys(bare, "E131: its label maps share none of the structures"), log)
    for name, missing in skipped.items():
        log.tell("note", f"pair {name} does not show {missing} in both label maps: skipped there")
    if options.classes is not None or options.withhold:
        reading = replace(reading, classes=classes)
    bank = choose_bank(found)
    chosen = cover_patients(state.pairs, options.judge_pairs, options.seed)
    judged, tuning = (tuple(sorted(of, key=lambda p: p.id)) for of in (chosen, chosen[: options.tune_pairs]))
    if len(tuning) < len(state.pairs):
        text = f"{len(tuning)} to tune and {len(judged)} to judge with of {len(state.pairs)} pairs, patients evenly"
        log.tell("note", text)
    context.folds(judged)  # before anything is computed: too few patients are an error of the list
    return state.then(
        Scanned, judged=judged, tuning=tuning, scan=found, classes=classes, skipped=skipped, modality=bank,
        run=state.run.reading_by(reading), settings=state.settings.model_copy(update={"modality": bank}),
    )  # fmt: skip


def tune(context: TrainingContext, state: Scanned) -> Tuned:
    """Choose both smoothnesses of the uniform bank on the training pairs, as every baseline's are."""
    uniform: PairScores = {}
    found: dict[str, Any] = {}
    least = 0.0
    for parameter in Method("uniform", state.settings).parameters:
        state, curve, scores = _try_values(context, state, parameter)
        best = best_of(curve)
        uniform = scores[best]
        state = state.then(Scanned, settings=parameter.set(state.settings, best))
        found[parameter.name] = tuning_record(best, curve)
        if parameter is LEVELS:
            least = min(curve)
    state, uniform = _score_rest(context, state, uniform)
    smoothness = {**found["levels"], **{k: v for k, v in found.items() if k != "levels"}}
    return state.then(Tuned, uniform=uniform, smoothness=smoothness, least_smoothness=least)


def _try_values(
    context: TrainingContext, state: Scanned, parameter: SmoothnessParameter
) -> tuple[Scanned, dict[float, float], dict[float, PairScores]]:
    """Go uphill from the settings' smoothness; mean Dice and scores by value. Pairs that fail are left out."""
    base = Method("uniform", state.settings, tunable=True)
    values = parameter.values(base.settings)
    means: dict[float, float] = {}
    scores: dict[float, PairScores] = {}
    known: dict[tuple[float, str], PairScore] = {}
    while tried := next_values(values, means):
        cases = [(v, p) for v in tried for p in state.tuning]
        plan = [(f"tune/{parameter.name}/{v!r}/{p.id}", base.at(parameter, v), p) for v, p in cases]
        context.log.tell("tune", f"smoothness of the {parameter.name}, uniform bank: {len(plan)} registrations")
        outcomes = dict(zip(cases, state.run(plan, dice_only=True), strict=True))
        context.log.count(registrations=len(plan))
        failed = {p.id: o.error for (_, p), o in outcomes.items() if o.error is not None}
        known |= {(v, p.id): pair_score(o.value) for (v, p), o in outcomes.items() if o.error is None}
        state = state.leave_out(failed, context.log)
        scores = {v: {p.id: known[v, p.id] for p in state.tuning} for v in [*means, *tried]}
        means = {v: mean_over_pairs(of.values()) for v, of in sorted(scores.items())}
    return state, means, scores


def _score_rest(context: TrainingContext, state: Scanned, known: PairScores) -> tuple[Scanned, PairScores]:
    """Add the scores of pairs that smoothness was not tuned with; those that fail are left out."""
    rest = [p for p in state.judged if p not in state.tuning]
    if not rest:
        return state, known
    context.log.tell("tune", f"uniform bank on the other pairs: {len(rest)} registrations")
    plan = [(f"tune/rest/{p.id}", Method("uniform", state.settings), p) for p in rest]
    outcomes = dict(zip([p.id for p in rest], state.run(plan, dice_only=True), strict=True))
    context.log.count(registrations=len(plan))
    state = state.leave_out({name: o.error for name, o in outcomes.items() if o.error is not None}, context.log)
    found = {name: pair_score(o.value) for name, o in outcomes.items() if o.error is None}
    return state, {p.id: known[p.id] if p.id in known else found[p.id] for p in state.judged}


def predict_classes(context: TrainingContext, state: Tuned) -> Predicted:
    """Learn to tell the classes of an image without labels; no predictor, with a note, where that cannot be.

    Where there are several kinds to choose from, or a fit is costly, left-out patients say what it is worth.
    """
    options, bank = context.options, state.modality
    start = state.settings.schedule(bank).start_weights(state.settings.smoothness, (0, *state.classes))
    grids = {name: {"fixed": c.fixed, "moving": c.moving} for name, c in state.scan.contents.items()}
    # Where no predictor is asked for, one without images stands in, which can say nothing of any pair.
    shown = state.pairs if options.predictors else ()
    images = segmented_images(shown, state.run.hashes, lambda p: grids[p.id])
    fits = [
        PredictorFits(
            Choice(name, options.predictor_options or {}), start.classes, "ct" if bank == "ct" else "mr",
            state.run.reading, options.seed, options.max_memory_mb, state.run.store,
            partial(context.log.tell, "predictor"),
        )
        for name in options.predictors or CHOICES[:1]
    ]  # fmt: skip
    kinds = [Predictors(images, fit, state.judged, options.seed) for fit in fits]
    predictor, choice, reason = None, None, "one classifier does not read two modalities"
    taken = kinds[0]
    if bank != "multi":
        try:
            with kernel_threads(context.workers):
                taken, choice = choose_predictors(kinds, context.log)
                predictor = with_record(taken.whole, choice)
        except ValueError as error:
            reason = str(error)
    if predictor is None:
        context.log.tell("note", f"the model has no class predictor: {reason}")
    candidates = CandidateRunner(state.run, state.settings, options.levels, context.log, taken)
    return state.then(Predicted, start=start, predictor=predictor, predictor_choice=choice, candidates=candidates)


def select_columns(context: TrainingContext, state: Weighed) -> Selected:
    """Learn on each fold, register its left-out pairs, and decide hyper-parameters, share and gates."""
    grid, w0 = context.options.grid(), state.refinement.weights
    if not context.options.gate:
        return state.then(Selected, selection=ColumnSelection(grid[0], 1.0, w0.classes, {}), by_fold=(), trail=())
    learner, folds = ColumnLearner.of(context, state), context.folds(state.judged)
    shown = {name: contents.in_both for name, contents in state.scan.contents.items()}
    register = partial(state.candidates.left_out, folds)
    attempts: list[Attempt] = []
    trials: dict[Any, Trial] = {}
    for options in grid:
        columns = []
        for i, fold in enumerate(folds, start=1):
            context.log.tell("gate", f"fold {i} of {len(folds)}, {options.words()}")
            columns.append(learner.learn(w0, learner.sampled(fold.train), options))
        trials[options] = Trial(w0, columns, state.refinement.scores, folds, register)
        attempts += try_columns(options, trials[options], shown)
    best = _best(attempts)
    attempts += rebalance(best, trials[best.options], least=state.least_smoothness)
    best = _best(attempts)
    best = best if best.value > 0 else best.unused()
    attempts += (strong := strengthen(best, trials[best.options]))
    best = _best([Attempt(best, {}), *strong])
    trail = [attempt.line for attempt in attempts]
    return state.then(Selected, selection=best, by_fold=trials[best.options].columns, trail=trail)


def _best(attempts: Sequence[Attempt]) -> ColumnSelection:
    """Return the selection with the largest gain, of equals the first."""
    return max((attempt.selection for attempt in attempts), key=lambda selection: selection.value)
