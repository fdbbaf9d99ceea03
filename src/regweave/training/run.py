"""Training of a model from a list of pairs, end to end."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from regweave import __version__, notices, predictors
from regweave.config.choice import Metrics, choose_settings, metric_weights
from regweave.config.settings import Settings, validate
from regweave.errors import UsageError
from regweave.io import require_absent
from regweave.io.disk.outputs import clear, working_folder
from regweave.jobs.folds import cover_patients
from regweave.jobs.methods import LEVELS, Method, SmoothnessParameter, best_of, next_values
from regweave.jobs.runner import Runner, mean_over_pairs, pair_score
from regweave.jobs.store import worker_count
from regweave.jobs.table import PairFiles, Pairs, in_one_numbering, pairs_on_disk
from regweave.jobs.workers import Cluster, place, require_cluster
from regweave.learning.columns import FittedColumns
from regweave.measures.scores import PairScore
from regweave.model.archive import SUFFIX
from regweave.model.model import Model
from regweave.model.record import TrainingRecord
from regweave.predictors import Choice
from regweave.progress import BatchProgress, TrainProgress
from regweave.run.memory import Cache
from regweave.run.read import Reading
from regweave.run.resolve import with_stated
from regweave.threads import kernel_threads
from regweave.training.candidates import CandidateRunner, PairScores, tuning_record
from regweave.training.columns import Attempt, ColumnLearner, ColumnSelection, Trial, rebalance, strengthen, try_columns
from regweave.training.options import CHOICES, TrainOptions
from regweave.training.predictor_fits import PredictorFits, Predictors, choose_predictors, segmented_images, with_record
from regweave.training.refinement import weigh_refinement
from regweave.training.scan import choose_bank, choose_structures, scan
from regweave.training.state import Listed, Predicted, Scanned, Selected, TrainingContext, TrainingLog, Tuned, Weighed
from regweave.types import WeightTable

NOT_RECORDED = ("predictor", "predictor_options", "tune_pairs", "judge_pairs")


def train(
    pairs: Pairs,
    output: str | Path | None = None,
    *,
    options: TrainOptions | None = None,
    preset: str = "default",
    config: str | Path | Settings | None = None,
    metrics: Metrics | None = None,
    loss: str | None = None,
    workers: int | None = None,
    scheduler: str | Cluster | None = None,
    device: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    reading: Reading | None = None,
    on_progress: Callable[[TrainProgress | BatchProgress], None] | None = None,
) -> Model:
    """Learn weights from pairs with labels.

    Parameters
    ----------
    pairs : path, table, or sequence
        Pairs with both label maps: a CSV file, a pandas table, rows by column, or tuples of fixed image, moving image,
        fixed labels and moving labels, as files or in memory; see `regweave.jobs.table.pairs_on_disk`.
    output : path, optional
        Model to write, when all is done. Until then finished registrations are kept in a folder beside it. Without it
        nothing is left on disk.
    options : TrainOptions, optional
        Method, structures, hyper-parameters, folds.
    preset, config : optional
        Settings of the registrations.
    metrics : sequence of str, optional
        Members, or metrics with their default options, instead of the bank of the settings.
    loss : str, optional
        Loss instead of that of the settings.
    workers, scheduler : optional
        Processes of this machine, or a Dask scheduler.
    device : str, optional
        What registers: ``cpu``, the default, ``cuda``, ``cuda:N``, several GPUs as ``cuda:0,1``, or ``auto``.
    resume : bool
        Continue after a run that was stopped, whose pairs were files; the model is the same, bit for bit.
    overwrite : bool
        Replace an older model.
    reading : Reading, optional
        How files are read.
    on_progress : callable, optional
        Called with a `TrainProgress` when a stage begins, and with a `BatchProgress` after every registration.
    """
    options, tell = options or TrainOptions(), on_progress or (lambda _: None)
    options.check()
    n, placement = worker_count(workers, scheduler), place(device, scheduler)
    settings = training_settings(preset, config, metrics, loss)
    with TemporaryDirectory(prefix="regweave-") as name:
        images = Path(name) / "images"
        path = Path(name) / f"model{SUFFIX}" if output is None else Path(output)
        _require_archive(path, options)
        claim = require_absent(path, overwrite=overwrite)
        listed = pairs_on_disk(pairs, images)
        if resume and images.exists():
            message = "a training from images in memory cannot be continued"
            raise UsageError("E194", message, "save the images and give their files, or leave resume out")
        require_cluster(scheduler)
        store = path.with_name(path.name + ".work")
        with (
            working_folder(store, "tasks", "a training that was stopped", resume=resume),
            Runner(reading or Reading(), workers, scheduler, store / "tasks", tell, placement) as runner,
        ):
            model = fit_model(listed, settings, options, runner, tell, n)
            with claim.writing(keep=True):
                model.save(path)
        clear(store, ("tasks",))
    return model


def _require_archive(path: Path, options: TrainOptions) -> None:
    """Refuse to train for an hour what could not be written; the model may turn out to be small, but need not."""
    large = [kind for kind in options.predictors if getattr(predictors.get(kind), "ARCHIVED", False)]
    if large and path.suffix != SUFFIX:
        message = f"{path} would be JSON, which holds no {large[0]}; the predictor asked for is {options.predictor}"
        raise UsageError("E152", message, f"write the model to {path.stem}{SUFFIX}")


def training_settings(
    preset: str, config: str | Path | Settings | None, metrics: Metrics | None, loss: str | None
) -> Settings:
    """Return settings with the bank and the loss replaced where asked."""
    given = metric_weights(metrics)
    settings = choose_settings(preset, config, None, given)
    if given:
        banks = {k: [{**m.model_dump(), "weight": given[m.name]} for m in bank] for k, bank in settings.banks.items()}
        settings = validate({**settings.model_dump(), "banks": banks}, "the command line")
    if loss is None:
        return settings
    return validate({**settings.model_dump(), "loss": loss}, "the command line")


def fit_model(
    pairs: Sequence[PairFiles],
    settings: Settings,
    options: TrainOptions,
    run: Runner,
    tell: Callable[[TrainProgress], None],
    workers: int = 1,
    kept: Cache | None = None,
) -> Model:
    """Run all stages and return the model.

    Parameters
    ----------
    pairs : sequence of PairFiles
        In any order; it does not change the model.
    settings : Settings
        Settings of the registrations.
    options : TrainOptions
        How to train.
    run : Runner
        Runs the registrations.
    tell : callable
        Called with a `TrainProgress` now and then.
    workers : int
        Threads for learning.
    kept : Cache, optional
        Trajectories and fits of other trainings on the same pairs, which this one then does not make again.
    """
    log = TrainingLog(tell)
    context = TrainingContext(options, log, kept or Cache(options.max_memory_mb), workers)
    with log.stage("read"):
        scanned = scan_dataset(context, Listed(tuple(sorted(pairs, key=lambda p: p.id)), settings, run, {}))
    with notices.muted("W20"):  # warnings about files have been shown and would come again with every round
        with log.stage("tune"):
            tuned = tune(context, scanned)
        with log.stage("predictor"):
            predicted = predict_classes(context, tuned)
        with log.stage("mix"):
            weighed = weigh_refinement(context, predicted)
        with log.stage("gate"):
            selected = select_columns(context, weighed)
        return _fit_columns(context, selected)


def _fit_columns(context: TrainingContext, state: Selected) -> Model:
    """Learn the columns from all pairs, and put together the model with its record."""
    log, w0 = context.log, state.refinement.weights
    learner = ColumnLearner.of(context, state)
    with log.stage("learn"):
        used = learner.sampled(state.judged)
        log.tell("learn", f"{len(used)} pairs")
        learned = learner.learn(w0, used, state.selection.options)
    selection = state.selection.where_learned(w0, learned.weights)
    content = _record(context, state, selection, learned, [p.id for p in used])
    names = {c: "background" if c == 0 else state.scan.names.get(c, str(c)) for c in w0.classes}
    log.finish()
    without_mask = state.refinement.without_mask
    weights = selection.apply(w0, learned.weights)
    return Model(
        weights=weights,
        settings=state.settings,
        modality=state.modality,
        class_names=names,
        training=TrainingRecord.model_validate(plain(content)),
        levels=context.options.levels,
        predictor=state.predictor,
        outline_without_mask=without_mask is None or without_mask["used"],
        weights_without_mask=_without_mask(state, weights),
    )


def _without_mask(state: Selected, weights: WeightTable) -> WeightTable | None:
    """Return the weights for pairs without moving labels, where training found others.

    Where their levels are those of the weights with labels, these follow what columns and balance were selected.
    """
    blind, schedule = state.refinement.blind, state.settings.schedule(state.modality)
    if blind is None:
        return None
    rows = blind.rows([m.name for m in schedule.discrete])
    before, after = (schedule.without_label_members(w).matrix[rows] for w in (state.refinement.weights, weights))
    matrix = blind.matrix.copy()
    if not np.allclose(before, matrix[rows]):
        return blind
    matrix[rows] = after
    return replace(blind, matrix=matrix, pairwise=weights.pairwise)


def _record(
    context: TrainingContext, state: Selected, selection: ColumnSelection, learned: FittedColumns, used: Sequence[str]
) -> Mapping[str, Any]:
    return {
        "regweave": __version__,
        "method": context.options.method,
        **({} if state.run.placement.word == "cpu" else {"device": state.run.placement.word}),
        "groups": sorted({p.group for p in state.pairs}),
        "pairs": {p.id: state.run.hashes(p) for p in state.pairs},
        "failed": dict(sorted(state.failed.items())),
        "skipped": state.skipped,
        "registrations": context.log.registrations,
        "inferences": context.log.inferences,
        "stages": context.log.counts,
        "options": _said(context.options),
        **({} if state.predictor_choice is None else {"predictor": state.predictor_choice}),
        **_chosen(state),
        "learned_on": used,
        "smoothness": state.smoothness,
        "refinement": state.refinement.record(),
        "surrogate_and_dice": state.trail,
        **selection.record(),
        "learned": learned.weights.matrix.tolist(),
        "learned_by_fold": [columns.weights.matrix.tolist() for columns in state.by_fold],
        "history": dict(learned.history),
    }


def _chosen(state: Selected) -> dict[str, Any]:
    """Return the ids of the pairs that smoothness was tuned and weights were judged with, where these are not all."""
    if len(state.tuning) == len(state.pairs):
        return {}
    return {"chosen": {"tune": [p.id for p in state.tuning], "judge": [p.id for p in state.judged]}}


def _said(options: TrainOptions) -> dict[str, Any]:
    """Return the options but those that stand elsewhere: the predictor's with it, the pairs that were chosen below."""
    unsaid = {
        "withhold": not options.withhold,
        "refinement_learner": options.refinement_learner == "dice",
        "structure_start": options.structure_start == "auto",
    }
    left_out = {*NOT_RECORDED, *(name for name, usual in unsaid.items() if usual)}
    return {name: value for name, value in vars(options).items() if name not in left_out}


def plain(value: Any) -> Any:
    """Return JSON values, what is not finite as null."""
    text = json.dumps(value, default=lambda v: v.tolist() if isinstance(v, np.ndarray) else str(v))
    return json.loads(text, parse_constant=lambda _: None)


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
