"""Training of a model from a list of pairs, end to end."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from regweave import __version__, notices, predictors
from regweave.config.choice import Metrics, choose_settings, metric_weights
from regweave.config.settings import Settings, validate
from regweave.datasets.in_memory import Pairs, pairs_on_disk
from regweave.datasets.manifest import PairFiles
from regweave.errors import UsageError
from regweave.io import require_absent
from regweave.io.disk.working_folder import clear, working_folder
from regweave.jobs.cluster import Cluster, require_cluster
from regweave.jobs.kept import Kept
from regweave.jobs.placement import place
from regweave.jobs.runner import Runner
from regweave.jobs.store import BatchProgress, worker_count
from regweave.learning.columns import FittedColumns
from regweave.model.archive import SUFFIX
from regweave.model.model import Model
from regweave.model.record import TrainingRecord
from regweave.run.reading import Reading
from regweave.training.columns.learner import ColumnLearner
from regweave.training.columns.selection import ColumnSelection
from regweave.training.log import TrainingLog, TrainProgress
from regweave.training.options import TrainOptions
from regweave.training.refinement.stage import weigh_refinement
from regweave.training.stages import predict_classes, scan_dataset, select_columns, tune
from regweave.training.state import Listed, Selected, TrainingContext
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
        fixed labels and moving labels, as files or in memory; see `regweave.datasets.in_memory.pairs_on_disk`.
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
    kept: Kept | None = None,
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
    kept : Kept, optional
        Trajectories and fits of other trainings on the same pairs, which this one then does not make again.
    """
    log = TrainingLog(tell)
    context = TrainingContext(options, log, kept or Kept(options.max_memory_mb), workers)
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
