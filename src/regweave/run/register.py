"""Registration of one pair, from two images to a deformation with its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from regweave import notices
from regweave.config.presets import Metrics, choose_settings, metric_weights
from regweave.config.settings import Settings
from regweave.errors import UsageError
from regweave.io import fill_value
from regweave.io.disk.records import this_program
from regweave.measures.deformation import regularity
from regweave.measures.scores import PairScore
from regweave.model.model import Model
from regweave.progress import OnProgress, RegistrationTeller
from regweave.registration import devices
from regweave.registration.refine import Refinement
from regweave.run.images import OutputImages
from regweave.run.memory import Cache, allowed_threads, forecast, no_cache, peak_memory_mb
from regweave.run.prepare import (
    Prepared,
    Request,
    Stopwatch,
    align_levels,
    prepare,
    refine_field,
    require_start,
)
from regweave.run.read import Reading, as_stored
from regweave.run.record import (
    Call,
    Modalities,
    Provenance,
    input_record,
    model_record,
    start_record,
    structures_record,
)
from regweave.run.result import Result
from regweave.run.stages.measurements import inverse_measures, look_out, residual_inside, score_of
from regweave.run.stages.node_evidence import Witness
from regweave.spatial.deformation import determinant
from regweave.spatial.intensity import inside
from regweave.spatial.invert import invert
from regweave.spatial.warp import turn_in_place, turned, warp_image, warp_labels
from regweave.threads import kernel_threads
from regweave.types import Ends, Field, Transform


def register(
    fixed: Any,
    moving: Any,
    *,
    moving_labels: Any = None,
    fixed_labels: Any = None,
    fixed_mask: Any = None,
    moving_mask: Any = None,
    preset: str | None = None,
    config: str | Path | Settings | None = None,
    model: str | Path | Model | None = None,
    metrics: Metrics | None = None,
    init: Any = None,
    engine: str | None = None,
    predict_classes: bool = False,
    threads: int | None = None,
    device: str | None = None,
    reading: Reading | None = None,
    on_progress: OnProgress | None = None,
    keep_view: bool = False,
) -> Result:
    """Register a moving image to a fixed one.

    Parameters
    ----------
    fixed, moving
        Paths of files or folders, images of SimpleITK, nibabel, ANTsPy, TorchIO or MONAI, (array, RAS affine) tuples
        or Volumes.
    moving_labels, fixed_labels : optional
        Segmentations, given as images are. The moving one chooses the weights of a model; both together give Dice.
        Without it a model's class predictor, if it has one, tells the classes; what it tells is not in the result.
    fixed_mask, moving_mask : optional
        Regions that count, given as labels are, on the grids of their images; 0 is outside. A lesion, a couch or what
        lies beyond the field of view then has no say.
    preset : str, optional
        Name of the settings, by default ``default``; see ``regweave presets``.
    config : path or Settings, optional
        Settings instead of a preset.
    model : path or Model, optional
        Weights per structure; brings its own settings unless ``preset`` or ``config`` is given.
    metrics : mapping or sequence, optional
        Members (or metrics) to use instead of the bank of the settings: weights by name, names, or "name=weight".
    init : "none", "moments", "rigid", "affine", path or object, optional
        Start; by default what the settings say. A transform takes fixed to moving points: a file, a (4, 4) matrix
        between LPS millimetres, a SimpleITK transform or a Transform.
    engine : str, optional
        Inference engine instead of that of the settings.
    predict_classes : bool
        Let the class predictor choose the weights even where moving labels are given; these are warped and scored.
    threads : int, optional
        Threads of the kernels; the result does not depend on it.
    device : str, optional
        What computes the levels and the refinement: ``cpu``, the default, ``cuda``, ``cuda:N`` or ``auto``.
    reading : Reading, optional
        How files are read: NIfTI frame, NaN, file with the names of the labels, modalities.
    on_progress : callable, optional
        Called with a `Progress` after every step.
    keep_view : bool
        Keep what a page shows beyond the result: which metric decided where, and how clearly.

    Returns
    -------
    Result
        Transform, inverse, warped images and all measurements; ``save`` writes them.

    Examples
    --------
    >>> from regweave.study.phantoms import make_phantom
    >>> pair = make_phantom(shape=(24, 24, 24), spacing_mm=(8.0, 8.0, 8.0)).pair
    >>> result = register(pair.fixed, pair.moving, fixed_labels=pair.fixed_labels, moving_labels=pair.moving_labels)
    >>> result.regularity["folding_fraction"]
    0.0
    """
    n_threads = allowed_threads(threads)
    tell = RegistrationTeller(on_progress)
    watch = Stopwatch(on_stage=tell.stage)
    with kernel_threads(n_threads), notices.collected() as caught:
        loaded = Model.load(model) if isinstance(model, str | Path) else model
        given = metric_weights(metrics)
        settings = _settings(preset, config, loaded, engine, given)
        request = Request(
            settings, fixed, moving, fixed_labels, moving_labels, loaded, given, init, predict_classes,
            reading or Reading(), device, fixed_mask, moving_mask,
        )  # fmt: skip
        run = prepare(request, no_cache, watch)
        grids = run.pair.fixed.geometry, run.pair.moving.geometry
        tell.weigh(forecast(*grids, settings, run.recipe.bank, probe=False))
        record = _provenance(run, request, model, n_threads)
        tell.begin(record.headline())
        recipe = run.recipe
        levels = recipe.schedule.for_levels(recipe.weights, recipe.coarse)
        witness = Witness(recipe.weights, levels, then=tell.level)
        with watch.stage("levels"):
            aligned = align_levels(run, no_cache, witness if keep_view else tell.level)
        with watch.stage("refine"):
            refined, steps = refine_field(run, aligned, tell.refine), aligned.steps
            del aligned  # large fields fit into memory a few times only
        with watch.stage("outputs"):
            pair = as_stored(run.pair, run.data)
            transform, descent = transform_of(run, refined), refined.steps
            kernels = run.device.fields
            del refined, run
            warped = warp_image(pair.moving, transform, fill=fill_value(pair.moving), kernels=kernels)
            labels = pair.moving_labels
            warped_labels = None if labels is None else warp_labels(labels, transform, kernels=kernels)
            jacobian = determinant(transform.field, kernels=kernels)
            numbers = regularity(jacobian, inside(pair.fixed))
            del jacobian  # beside the inverse there is no room
            inversion = invert(transform, pair.moving.geometry, kernels=kernels)
        with watch.stage("measure"):
            inverse, left_over = inversion.transform, residual_inside(pair, inversion)
            del inversion
            inverse_error, consistency_mm = inverse_measures(pair, transform, inverse, left_over, kernels)
            score = score_of(pair, warped_labels)
            look_out(pair, numbers, inverse_error, warped_labels)
    return Result(
        images=OutputImages(transform, inverse, warped, warped_labels, pair, witness.nodes), structures=score,
        steps=tuple(steps), refinement=tuple(descent), regularity=numbers,
        inverse_consistency_mm=consistency_mm, inverse_error=inverse_error,
        seconds=dict(watch.seconds), peak_memory_mb=peak_memory_mb(), warnings=tuple(caught),
        weights=recipe.weights, provenance=record,
    )  # fmt: skip


def check_call(
    *, preset: str | None = None, config: str | Path | Settings | None = None,
    model: str | Path | Model | None = None, engine: str | None = None, metrics: Metrics | None = None,
    init: Any = None, device: str | None = None,
) -> None:  # fmt: skip
    """Check the words of `register` that need no image, before any file is read and any folder is made."""
    loaded = Model.load(model) if isinstance(model, str | Path) else model
    settings = _settings(preset, config, loaded, engine, metric_weights(metrics))
    require_start(settings.initial if init is None else init, loaded)
    devices.get(device)


def score_trial(request: Request, cache: Cache) -> PairScore:
    """Register a pair and measure the overlap of its structures, nothing else.

    Parameters
    ----------
    request : Request
        Both label maps are given.
    cache : Cache
        Holds what other runs on this pair have computed.
    """
    run = prepare(request, cache, Stopwatch())
    run = replace(run, recipe=replace(run.recipe, schedule=run.recipe.schedule.without_proof()))  # nobody reads bounds
    refined = refine_field(run, align_levels(run, cache))
    pair = as_stored(run.pair, run.data)
    assert pair.moving_labels is not None
    return score_of(pair, warp_labels(pair.moving_labels, transform_of(run, refined)))


def transform_of(run: Prepared, refined: Refinement) -> Transform:
    """Return the transform of a refined displacement, on the grid of the fixed image as it is stored."""
    fixed, moving = run.data.stored["fixed"], run.data.stored["moving"]
    voxels = fixed.to_stored(refined.displacement)
    turn = turned if np.may_share_memory(voxels, refined.displacement) else turn_in_place
    field = Field(turn(voxels, run.pair.fixed.geometry.affine[:3, :3]), fixed.stored)
    return Transform(field, run.pair.initial, Ends("fixed_to_moving", fixed.stored, moving.stored), refined.knots)


def _provenance(run: Prepared, request: Request, model: str | Path | Model | None, threads: int) -> Provenance:
    fixed, moving = run.data.modalities
    return Provenance(
        **this_program(),
        threads=threads,
        inputs=input_record(run.data),
        start=start_record(run.start, run.pair, run.reading, run.used, run.reason),
        model=model_record(model, run.recipe.model, run.recipe.model_use(run.classes_from, run.used)),
        modality=Modalities(fixed=str(fixed), moving=str(moving), bank=run.recipe.bank),
        structures=structures_record(run.recipe.match, run.data.moving_labels),
        call=Call(
            metrics=None if request.metrics is None else dict(request.metrics),
            predict_classes=request.predict_classes, reading=run.reading,
        ),
        device=run.device.name,
        classes_from=run.classes_from,
        settings=request.settings,
        plugins=request.settings.plugins(),
    )  # fmt: skip


def _settings(
    preset: str | None,
    config: str | Path | Settings | None,
    model: Model | None,
    engine: str | None,
    metrics: Mapping[str, float] | None,
) -> Settings:
    if model is not None and metrics:
        raise UsageError("E189", "weights by hand (--metric) and a model are both given", "give one of them")
    if model is not None and config is None and preset is None:
        config = model.settings
    return choose_settings(preset or "default", config, engine, metrics)
