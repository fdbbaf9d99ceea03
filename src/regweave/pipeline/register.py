"""Registration of one pair, from two images to a deformation with its evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave import notices
from regweave.config.choice import choose_settings
from regweave.config.settings import Settings
from regweave.errors import UsageError
from regweave.io import fill_value
from regweave.kernels.threads import kernel_threads
from regweave.measures.body import body_mask
from regweave.measures.inverse import InverseError
from regweave.measures.regularity import regularity
from regweave.measures.scores import PairScore, score_labels
from regweave.model.model import Model
from regweave.pipeline.machine import allowed_threads, peak_memory_mb
from regweave.pipeline.memory import Plan, forecast
from regweave.pipeline.node_evidence import Witness
from regweave.pipeline.outputs import OutputImages
from regweave.pipeline.prepare import (
    Keep,
    Prepared,
    Request,
    Stopwatch,
    afresh,
    align_levels,
    prepare,
    refine_field,
)
from regweave.pipeline.reading import Reading, as_stored
from regweave.pipeline.record import RunRecord, model_record, run_record, start_record, structure_record
from regweave.pipeline.result import Result
from regweave.registration.align import Step
from regweave.registration.refine import Refinement, RefineStep
from regweave.spatial.invert import Inversion, inverse_errors_mm, invert, summary_mm
from regweave.spatial.masking import inside
from regweave.spatial.warp import turn_in_place, turned, warp_image, warp_labels
from regweave.types import Ends, Field, Float32Array, Image, ImagePair, LabelMap, Transform

VOLUME_CHANGE_LIMIT = 0.5
STAGES = {
    "read": "reading",
    "initial": "initial alignment",
    "classes": "structures",
    "levels": "levels",
    "refine": "refinement",
    "outputs": "inverse and warped images",
    "measure": "measurements",
}
"""Stages of a registration, in their order, and their names for users."""


@dataclass(frozen=True)
class Progress:
    """Position of a run in its stages.

    Parameters
    ----------
    stage : str
        One of `STAGES`; ``begin`` once, when it is known what runs.
    done, total : int
        Steps of the levels and of the refinement; the total is 0 before it is known.
    message : str
        The stage that begins, or what the last step was.
    fraction : float
        Share of the forecast work that is done, 0 to 1.
    """

    stage: str
    done: int
    total: int
    message: str
    fraction: float = 0.0


OnProgress = Callable[[Progress], None]


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
    metrics: Mapping[str, float] | None = None,
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
    metrics : mapping, optional
        Members (or metrics) to use and their weights, instead of the bank of the settings.
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
    >>> from regweave.datasets.phantom import make_phantom
    >>> pair = make_phantom(shape=(24, 24, 24), spacing_mm=(8.0, 8.0, 8.0)).pair
    >>> result = register(pair.fixed, pair.moving, fixed_labels=pair.fixed_labels, moving_labels=pair.moving_labels)
    >>> result.regularity["folding_fraction"]
    0.0
    """
    n_threads = allowed_threads(threads)
    tell = _Teller(on_progress)
    watch = Stopwatch(on_stage=tell.stage)
    with kernel_threads(n_threads), notices.collected() as caught:
        loaded = Model.load(model) if isinstance(model, str | Path) else model
        settings = _settings(preset, config, loaded, engine, metrics)
        request = Request(
            settings, fixed, moving, fixed_labels, moving_labels, loaded, metrics, init, predict_classes,
            reading or Reading(), device, fixed_mask, moving_mask,
        )  # fmt: skip
        run = prepare(request, afresh, watch)
        grids = run.pair.fixed.geometry, run.pair.moving.geometry
        tell.weigh(forecast(*grids, settings, run.recipe.bank, probe=False))
        record = _record(run, request, model)
        tell.begin(record.headline())
        recipe = run.recipe
        levels = recipe.schedule.for_levels(recipe.weights, recipe.coarse)
        witness = Witness(recipe.weights, levels, then=tell.level)
        with watch.stage("levels"):
            aligned = align_levels(run, afresh, witness if keep_view else tell.level)
        with watch.stage("refine"):
            refined, steps = refine_field(run, aligned, tell.refine), aligned.steps
            del aligned  # large fields fit into memory a few times only
        with watch.stage("outputs"):
            pair = as_stored(run.pair, run.data)
            transform, descent = transform_of(run, refined), refined.steps
            kernels, data, classes_from = run.device.fields, run.data, run.classes_from
            hashes, sources = data.hashes, data.sources
            del refined, run, data
            warped = warp_image(pair.moving, transform, fill=fill_value(pair.moving), kernels=kernels)
            labels = pair.moving_labels
            warped_labels = None if labels is None else warp_labels(labels, transform, kernels=kernels)
            inversion = invert(transform, pair.moving.geometry, kernels=kernels)
        with watch.stage("measure"):
            inverse, errors_mm = inversion.transform, inverse_errors_mm(transform, inversion.transform, kernels=kernels)
            inverse_error, consistency_mm = _inverse_error(pair, inversion, errors_mm), summary_mm(errors_mm)
            del inversion, errors_mm
            numbers = regularity(transform.field, inside(pair.fixed), kernels=kernels)
            score = score_of(pair, warped_labels)
            _look_out(pair, numbers, inverse_error, warped_labels)
    return Result(
        images=OutputImages(transform, inverse, warped, warped_labels, pair, witness.nodes), score=score,
        steps=steps, refinement=descent, regularity=numbers,
        inverse_consistency_mm=consistency_mm, inverse_error=inverse_error,
        seconds=watch.seconds, peak_memory_mb=peak_memory_mb(), warnings=tuple(caught),
        weights=recipe.weights, settings=settings, modality=recipe.bank, hashes=hashes,
        threads=n_threads, record=record, classes_from=classes_from, sources=sources,
    )  # fmt: skip


def score_trial(request: Request, keep: Keep) -> PairScore:
    """Register a pair and measure the overlap of its structures, nothing else.

    Parameters
    ----------
    request : Request
        Both label maps are given.
    keep : Keep
        Has what other runs on this pair have left.
    """
    run = prepare(request, keep, Stopwatch())
    refined = refine_field(run, align_levels(run, keep))
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


def _record(run: Prepared, request: Request, model: str | Path | Model | None) -> RunRecord:
    return run_record(
        run.data, run.reading, start_record(run.start, run.pair, run.reading), model_record(model, run.recipe.model),
        run.recipe.bank, structure_record(run.recipe.match, run.data.moving_labels),
        metrics=request.metrics and dict(request.metrics),
        predict_classes=request.predict_classes, device=run.device.name,
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


def score_of(pair: ImagePair, warped: LabelMap | None) -> PairScore:
    """Score the structures of both label maps, where there are both; before is the initial alignment only."""
    if pair.fixed_labels is None or pair.moving_labels is None or warped is None:
        return PairScore()
    start = Transform(pair.initial_field or Field.zero(pair.fixed.geometry), pair.initial)
    return score_labels(pair.fixed_labels, pair.moving_labels, warp_labels(pair.moving_labels, start), warped)


def _inverse_error(pair: ImagePair, inversion: Inversion, errors_mm: Float32Array) -> InverseError:
    moving, fixed = (_body(image) for image in (pair.moving, pair.fixed))
    spacing_mm = float(pair.fixed.geometry.spacing_mm.max())
    return InverseError.of(inversion.residual_mm, moving, errors_mm, fixed, spacing_mm)


def _body(image: Image) -> NDArray[np.bool_]:
    """Voxels of the body that the mask lets count; the whole mask where it shows none of the body."""
    body, mask = body_mask(image, image.labels), inside(image)
    return body if mask is None else (body & mask if (body & mask).any() else mask)


def _look_out(
    pair: ImagePair, numbers: Mapping[str, float], inverse_error: InverseError, warped: LabelMap | None
) -> None:
    """Warn of what a user should look at."""
    if numbers["folding_fraction"] > 0:
        share = f"{100 * numbers['folding_fraction']:.2g}%"  # one voxel of a large image is no 0.00%
        notices.warn(f"W201: the field folds in {share} of the voxels; do not use it there")
    if inverse_error.notable:
        mind = "contours and images are not affected; mind it if you use inverse.h5 there"
        notices.warn(f"W202: {inverse_error.words()}; {mind}")
    _look_outside(pair)
    if warped is None or pair.moving_labels is None:
        return
    voxel = [abs(np.linalg.det(v.geometry.affine[:3, :3])) for v in (pair.moving_labels, warped)]
    for value in pair.moving_labels.values():
        before, after = (
            float((m.data == value).sum()) * v for m, v in zip((pair.moving_labels, warped), voxel, strict=True)
        )
        name = pair.moving_labels.name(value)
        if after == 0:
            notices.warn(
                f"W203: label {name} vanished from the warped labels; it lies outside the fixed image or is thin"
            )
        elif abs(after - before) > VOLUME_CHANGE_LIMIT * before:
            notices.warn(f"W203: label {name} changed its volume by {after / before - 1:+.0%}; look at it")


def _look_outside(pair: ImagePair) -> None:
    """Warn of structures that lie outside a mask in part: they are scored whole, though nothing guides them there."""
    for name, image in (("fixed", pair.fixed), ("moving", pair.moving)):
        mask, labels = inside(image), image.labels
        if mask is None or labels is None:
            continue
        shares = {v: float((~mask)[labels.data == v].mean()) for v in labels.values()}
        outside = [f"{labels.name(v)} {share:.0%}" for v, share in shares.items() if share > 0]
        if outside:
            notices.warn(
                f"W214: structures lie outside the {name} mask in part ({', '.join(outside)}); they are scored whole, "
                "and outside the field only follows its surroundings"
            )


class _Teller:
    """Turns stages and steps into progress, weighed by the forecast of their work."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._tell = on_progress
        self._done, self._total = 0, 0
        self._shares: list[float] = []
        self._stage, self._fraction = "", 0.0

    def weigh(self, plan: Plan) -> None:
        """Learn the number of the steps, and how much work each of them and what follows will be."""
        work = plan.work
        steps = [w / size.steps for w, size in zip(work.levels, plan.sizes, strict=True) for _ in range(size.steps)]
        steps += [work.refine / max(plan.refine_steps, 1)] * plan.refine_steps
        self._total = len(steps)
        self._shares = [*steps, work.outputs / 3, 2 * work.outputs / 3]

    def _say(self, message: str, stage: str | None = None) -> None:
        if self._tell is not None:
            self._tell(Progress(stage or self._stage, self._done, self._total, message, self._fraction))

    def _advance(self) -> None:
        counted = self._done + (self._stage == "measure")
        self._fraction = sum(self._shares[:counted]) / (sum(self._shares) or 1.0)

    def begin(self, message: str) -> None:
        """Say what runs before anything is computed."""
        self._say(message, "begin")

    def stage(self, name: str) -> None:
        """Say that a stage begins."""
        self._stage = name
        self._advance()
        self._say(STAGES[name])

    def _next(self, message: str) -> None:
        self._done += 1
        self._advance()
        self._say(message)

    def level(self, step: Step) -> None:
        s = step.solution
        self._next(f"{step.spacing_mm:.3g} mm step {step.step + 1}: energy {s.energy:.2f}, gap {s.gap:.2%}")

    def refine(self, step: RefineStep) -> None:
        self._next(f"refine step {step.step + 1}: cost {step.data + step.smoothness:.1f}")
