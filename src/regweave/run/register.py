"""Registration of one pair: read, resolve, start, levels, refinement, outputs, measurements."""

import hashlib
import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from regweave import notices
from regweave.config.settings import Settings, metric_weights
from regweave.io import fill_value
from regweave.io.disk.files import is_file, peak_memory_mb
from regweave.io.disk.records import this_program
from regweave.measures.landmarks import LandmarkPairs
from regweave.measures.likeness import likeness_of
from regweave.measures.scores import InverseError, PairScore, regularity
from regweave.options import called
from regweave.progress import OnProgress, ProgressReporter, RegistrationBar
from regweave.registration import devices
from regweave.registration.align import Alignment, Refinement, RefineStep, Step, align, refine, warn_if_left_out
from regweave.registration.cpu import Device
from regweave.registration.guides import redrawn
from regweave.registration.initial import STRUCTURES
from regweave.registration.landmarks import PointGuides, started_from_structures
from regweave.run import check as checking
from regweave.run import record
from regweave.run.guides import guiding, require_labels
from regweave.run.images import OutputImages
from regweave.run.job import AUTO, POINTS, Job, loaded, rules_of, settings_of, start_of
from regweave.run.memory import Cache, allowed_threads, forecast, no_cache
from regweave.run.read import Inputs, as_stored, read_inputs
from regweave.run.resolve import ClassesFrom, Recipe, doubt_segmentation, doubt_volumes, fitting, with_stated
from regweave.run.result import Result
from regweave.run.rigid import names_of, rigid_parts, stiffened
from regweave.run.start import point_guides, require_accuracy, start_pair, used_start
from regweave.spatial.voxels import inside
from regweave.spatial.warp import determinant, invert, turn_in_place, turned, warp_image, warp_labels
from regweave.threads import kernel_threads
from regweave.types import Ends, Field, ImagePair, LabelMap, Transform, Volume


@called(Job)
def register(job: Job) -> Result:
    """Register a moving image to a fixed one.

    Returns
    -------
    Result
        Transform, inverse, warped images and all measurements; ``save`` writes them.

    Examples
    --------
    >>> import regweave as rw
    >>> pair = rw.examples.pair(voxel_mm=8.0)
    >>> result = rw.register(pair.fixed, pair.moving, fixed_labels=pair.fixed_labels, moving_labels=pair.moving_labels)
    >>> result.regularity["folding_fraction"]
    0.0
    """
    with RegistrationBar(shown=job.progress and job.on_progress is None) as bar:
        return run(job, job.on_progress or bar)


def run(job: Job, on_progress: OnProgress | None = None, *, keep_view: bool = True) -> Result:
    """Run a job; ``keep_view`` keeps what a page shows beyond the result: deciding metric and confidence of nodes."""
    rules, landmarks = rules_of(job.rules), None
    if any(given is not None for given in (job.fixed_points, job.moving_points, job.guide_points)):
        landmarks = LandmarkPairs.read(job.fixed_points, job.moving_points)
        require_accuracy(job.guide_points)
    report, threads = ProgressReporter(on_progress), allowed_threads(job.threads)
    with kernel_threads(threads), notices.collected() as warned:
        job, why = with_model(job)
        ready, guides = prepare(job, no_cache, report), None
        if landmarks is not None and job.guide_points is not None:
            guides, landmarks = point_guides(landmarks, job.fixed_points, job.guide_points, ready.pair)
            ready = replace(ready, seen=guides.start(ready.seen), data=with_points(ready.data, job, landmarks))
        parts = None if job.rigid is None else rigid_parts(names_of(job.rigid), ready.data.moving)
        recipe, kernels = ready.recipe, ready.device.fields
        grids = ready.pair.fixed.geometry, ready.pair.moving.geometry
        if not ready.is_linear:
            report.forecast(forecast(*grids, ready.settings, recipe.bank, probe=False))
        provenance = provenance_of(ready, job.model, threads)
        report.report(" · ".join(filter(None, (provenance.headline(), why))), "begin")
        nodes = checking.NodeRecorder(
            recipe.weights, recipe.schedule.for_levels(recipe.weights, recipe.coarse), report.level
        )
        with report.stage("levels"):
            aligned = align_levels(ready, no_cache, nodes if keep_view else report.level)
        with report.stage("refine"):
            refined, steps = refine_field(ready, aligned, report.refine), aligned.steps
            del aligned  # large fields fit into memory a few times only
        with report.stage("outputs"):
            pair = as_stored(ready.pair, ready.data)
            transform, descent = transform_of(ready, refined), refined.steps
            transform = transform if guides is None else guides.draw(transform)
            transform, bent = (transform, {}) if parts is None else stiffened(transform, parts)
            again = ready if job.check else None
            del refined, ready
            warped = warp_image(pair.moving, transform, fill=fill_value(pair.moving), kernels=kernels)
            labels = pair.moving.labels
            warped_labels = None if labels is None else warp_labels(labels, transform, kernels=kernels)
            jacobian = determinant(transform.field, kernels=kernels)
            numbers = regularity(jacobian, inside(pair.fixed))
            del jacobian  # beside the inverse there is no room
            inverse, residual_mm = invert(transform, pair.moving.geometry, kernels=kernels)
        with report.stage("measure"):
            error = InverseError.of_residual(residual_mm, checking.counted_body(pair.moving))
            del residual_mm
            inverse_error, consistency_mm = checking.inverse_measures(pair, transform, inverse, error, kernels)
            score = checking.score_of(pair, warped_labels)
            likeness = likeness_of(pair, transform, warped, warped_labels, recipe.bank, rules.reference)
            checking.warn_of_doubts(pair, numbers, inverse_error, warped_labels)
        check = limit = None
        if again is not None:
            check, limit = check_run(again, guides, parts, pair, transform, warped, warped_labels, report)
    result = Result(
        images=OutputImages(transform, inverse, warped, warped_labels, pair, nodes.evidence, limit), structures=score,
        steps=tuple(steps), refinement=tuple(descent), regularity=numbers,
        inverse_consistency_mm=consistency_mm, inverse_error=inverse_error, likeness=likeness,
        seconds=dict(report.seconds), peak_memory_mb=peak_memory_mb(), warnings=tuple(warned),
        weights=recipe.weights, rules=rules, rigid_mm=bent, provenance=provenance, check=check,
    )  # fmt: skip
    return result if landmarks is None else result.with_landmarks(landmarks)


def with_model(job: Job) -> tuple[Job, str]:
    """Return a job with the model that fits its images in place of ``auto``, and why it was chosen."""
    if not isinstance(job.model, str | Path) or str(job.model) != AUTO:
        return job, ""
    fixed = job.image(job.fixed, job.fixed_modality, job.fixed_series)
    path, why = fitting([fixed, job.image(job.moving, job.moving_modality, job.moving_series)])
    return replace(job, model=path), f"model auto: {why}"


@dataclass(frozen=True)
class Prepared:
    """A registration that is ready to run."""

    job: Job  # the job with the modalities that its settings state
    settings: Settings  # settings as they were chosen; the recipe has those that run
    recipe: Recipe  # what runs
    data: Inputs  # images and labels as they were read
    pair: ImagePair  # the same at their start, with the labels that were given
    seen: ImagePair  # the same with the classes that choose columns, and with structure maps
    classes_from: ClassesFrom  # source of these classes
    start: Any  # requested initial alignment, the method that was used, and why it is another one
    used: str
    reason: str
    guides: record.GuidesRecord | None  # structures that guide
    device: Device  # what computes the levels and the refinement
    key: Hashable  # names images, labels and start, for caches

    @property
    def is_linear(self) -> bool:
        """Whether the start is the whole result."""
        return self.job.transform != "deformable"


def prepare(
    job: Job, cache: Cache, report: ProgressReporter, content: Hashable = None,
    drawn: tuple[float, int] | None = None,
) -> Prepared:  # fmt: skip
    """Read and check everything that a registration needs, and bring the pair to its start.

    What depends on the images alone is cached for runs on the same ``content``, which names that of all sources.
    ``drawn`` are an error in mm and a seed: fixed labels are drawn with it to guide.
    """
    model, device = loaded(job.model), devices.get(job.device)
    settings = settings_of(job, model)
    start = start_of(job, settings, model)
    asked = job.guided_by
    require_labels(asked, job.fixed_labels, job.moving_labels)
    job = with_stated(job, settings, model)
    with report.stage("read"):
        key: Hashable = (content, json.dumps(job.to_json(), sort_keys=True))
        data = cache(("read", key), lambda: read_inputs(
            job.fixed, job.moving, job.fixed_labels, job.moving_labels, job,
            fixed_mask=job.fixed_mask, moving_mask=job.moving_mask,
        ))  # fmt: skip
        recipe = Recipe.resolve(settings, data, model, metric_weights(job.metrics))
        data = recipe.name_structures(data)
    with report.stage("initial"), notices.collected() as warned:
        named = str(start) if isinstance(start, str | Path) else object()  # an object in memory is not cached
        key = (key, named, tuple(model.class_names.items()) if model is not None and recipe.match is not None else None)
        alone = job.transform != "deformable"
        key = (key, alone)
        pair = cache(("start", key), lambda: start_pair(data, start, follow_links=job.follow_links, alone=alone))
    with report.stage("classes"):
        identity = None if recipe.predictor is None else recipe.predictor.save().identity()
        key = (key, job.predict_classes, recipe.weights.classes, identity, recipe.compares_maps)

        def seen_by_model() -> tuple[ImagePair, ClassesFrom]:
            seen, classes_from = recipe.attach_labels(pair, predict=job.predict_classes)
            return recipe.attach_structure_maps(seen), classes_from

        seen, classes_from = cache(("seen", key), seen_by_model)
        if not job.predict_classes:
            doubt_volumes(seen, recipe)
        doubt_segmentation(seen, recipe, given=classes_from == "labels")
        by_images = pair
        guides: record.GuidesRecord | None = None
        if asked is not None:
            assert pair.fixed.labels is not None
            apart = pair if drawn is None else pair.with_fixed(labels=redrawn(pair.fixed.labels, *drawn, str(content)))
            maps, guides = guiding(apart, recipe, asked, only=job.guide_only, anyway=job.guide_anyway)
            seen = replace(seen, guides=maps)
            key = (key, drawn, tuple(guides.weights.items())) if guides.levels else key  # they change the levels
        with notices.collected() as warned_later:
            from_guides = guides is not None and guides.levels and isinstance(start, str)
            if from_guides or (isinstance(start, str) and start == STRUCTURES):
                shown = seen if guides is not None else recipe.attach_structure_maps(seen, always=True)
                found = cache(("structures", key), lambda: started_from_structures(shown))
                pair = replace(pair, initial=found.initial, initial_field=found.initial_field)
                seen = replace(seen, initial=found.initial, initial_field=found.initial_field)
        used, reason = used_start(start, by_images, warned, warned_later)
    if job.device == "auto":  # the images decide too
        device = devices.best_for(pair, recipe.schedule)
    recipe = recipe.drop_label_members(classes_from)
    if guides is not None:
        recipe = recipe.guided(levels=guides.levels, only=guides.only)
    if not alone:
        warn_if_left_out(recipe.schedule, recipe.weights, recipe.settings.refine)
    return Prepared(job, settings, recipe, data, pair, seen, classes_from, start, used, reason, guides, device, key)


def with_points(data: Inputs, job: Job, landmarks: LandmarkPairs) -> Inputs:
    """Return inputs with the landmarks among them: a record needs them to run again."""
    files = {name: getattr(job, name) for name in POINTS}
    arrays = dict(zip(POINTS, (landmarks.fixed, landmarks.moving), strict=True))
    hashes = {name: landmarks.sha256.get(name) or hashlib.sha256(arrays[name].tobytes()).hexdigest() for name in POINTS}
    paths = {name: str(Path(file).absolute()) for name, file in files.items() if isinstance(file, str | Path)}
    return replace(data, hashes={**data.hashes, **hashes}, sources={**data.sources, **paths})


def align_levels(ready: Prepared, cache: Cache, on_step: Callable[[Step], None] | None = None) -> Alignment:
    """Run the discrete levels; weights of the refinement do not change the result."""
    recipe, schedule = ready.recipe, ready.recipe.schedule
    if ready.is_linear:
        return Alignment(np.zeros((3, *ready.pair.fixed.geometry.shape), dtype=np.float32), ())
    names = tuple(m.name for m in schedule.discrete)
    tables = [recipe.weights.select(names), None if recipe.coarse is None else recipe.coarse.select(names)]
    weights = tuple(None if w is None else (w.matrix.tobytes(), w.classes, w.pairwise) for w in tables)
    return cache(
        ("levels", ready.key, ready.device.name, schedule.levels_key(), weights),
        lambda: align(ready.seen, recipe.weights, schedule, coarse=recipe.coarse, on_step=on_step, device=ready.device),
    )


def refine_field(
    ready: Prepared, aligned: Alignment, on_step: Callable[[RefineStep], None] | None = None
) -> Refinement:
    """Run the continuous stage from the result of the levels."""
    recipe, start = ready.recipe, aligned.displacement
    if ready.is_linear:
        return Refinement(start, (), ())
    settings = recipe.settings.refine
    return refine(ready.seen, start, recipe.weights, recipe.schedule, settings, on_step=on_step, device=ready.device)


def check_run(
    ready: Prepared, guides: PointGuides | None, parts: LabelMap | None, pair: ImagePair, transform: Transform,
    image: Volume, warped: LabelMap | None, report: ProgressReporter,
) -> tuple[checking.Check, Volume]:  # fmt: skip
    """Repeat a run with slightly other weights and smoothness, and run it the other way; see `regweave.run.check`.

    ``pair`` has the images as they are stored, ``transform``, warped ``image`` and ``warped`` labels are those of the
    result, ``parts`` what it kept rigid, which the other way does not.
    """
    repeated, recipe = checking.Repetitions(transform, pair.moving.labels, warped), ready.recipe
    with report.stage("check"), notices.unheard():
        for n in range(checking.REPETITIONS):
            report.report(f"repetition {n + 1} of {checking.REPETITIONS}")
            settings, weights = checking.perturbed(recipe.settings.for_bank(recipe.bank), recipe.weights, n)
            changed = replace(recipe, settings=settings, weights=weights, schedule=recipe.schedule.without_proof())
            other = _transform_alone(replace(ready, recipe=changed), guides)
            repeated.add(other if parts is None else stiffened(other, parts)[0])
        report.report("the other way")
        back = prepare(turned_job(ready, pair, warped), no_cache, ProgressReporter())
        turned = None if guides is None else replace(guides, fixed=guides.moving, moving=guides.fixed)
        back = back if turned is None else replace(back, seen=turned.start(back.seen))
        return checking.summarise(pair, transform, image, warped, repeated, _transform_alone(back, turned))


def _transform_alone(ready: Prepared, guides: PointGuides | None) -> Transform:
    found = transform_of(ready, refine_field(ready, align_levels(ready, no_cache)))
    return found if guides is None else guides.draw(found)


def turned_job(ready: Prepared, pair: ImagePair, warped: LabelMap | None) -> Job:
    """Return the job of the other way: a method finds its own start, a given start is inverted."""
    job, fixed, moving = ready.job, replace(pair.moving, labels=None), replace(pair.fixed, labels=None)
    start: Any = ready.start
    if not isinstance(start, str) or is_file(start):
        given = Transform(pair.initial_field or Field.zero(pair.fixed.geometry), pair.initial)
        start = invert(given, pair.moving.geometry)[0]
    guided = job.guided_by is not None  # by the drawn structures of both images, not by those that were warped
    labels = (pair.moving.labels, pair.fixed.labels) if guided else (None, warped)
    return replace(
        job, fixed=fixed, moving=moving, fixed_labels=labels[0], moving_labels=labels[1], init=start, check=False,
        fixed_mask=fixed.mask, moving_mask=moving.mask, fixed_points=None, moving_points=None, guide_points=None,
        fixed_modality=job.moving_modality, moving_modality=job.fixed_modality, rigid=None,
        fixed_series=None, moving_series=None, classes=None, numbering=None, label_names=None,
    )  # fmt: skip


def transform_of(ready: Prepared, refined: Refinement) -> Transform:
    """Return the transform of a refined displacement, on the stored grid of the fixed image."""
    fixed, moving = ready.data.stored["fixed"], ready.data.stored["moving"]
    voxels = fixed.to_stored(refined.displacement)
    turn = turned if np.may_share_memory(voxels, refined.displacement) else turn_in_place
    field = Field(turn(voxels, ready.pair.fixed.geometry.affine[:3, :3]), fixed.stored)
    return Transform(field, ready.pair.initial, Ends("fixed_to_moving", fixed.stored, moving.stored), refined.knots)


def score_trial(job: Job, cache: Cache, content: Hashable = None, drawn: tuple[float, int] | None = None) -> PairScore:
    """Register a pair with both label maps, and measure the overlap of its structures only.

    ``cache`` has what other trials on the same ``content`` have computed; ``drawn`` is that of `prepare`.
    """
    ready = prepare(job, cache, ProgressReporter(), content, drawn)
    schedule = ready.recipe.schedule.without_proof()  # the bounds are not used
    ready = replace(ready, recipe=replace(ready.recipe, schedule=schedule))
    refined = refine_field(ready, align_levels(ready, cache))
    pair = as_stored(ready.pair, ready.data)
    assert pair.moving.labels is not None
    return checking.score_of(pair, warp_labels(pair.moving.labels, transform_of(ready, refined)))


def provenance_of(ready: Prepared, model: Any, threads: int) -> record.Provenance:
    """Return all that is needed to run the registration again; ``model`` is the given path or object."""
    job, recipe, data = ready.job, ready.recipe, ready.data
    fixed, moving = data.modalities
    match, labels, structures = recipe.match, data.moving.labels, None
    if match is not None and labels is not None:
        names = {v: labels.name(v) for v in (*match.to, *match.unknown)}
        structures = record.StructuresRecord(
            matched_by=match.by, classes=dict(match.to), names=names, unknown=tuple(match.unknown)
        )
    return record.Provenance(
        **this_program(), threads=threads, guides=ready.guides, device=ready.device.name,
        inputs={k: record.InputFile(path=data.sources.get(k), sha256=sha256) for k, sha256 in data.hashes.items()},
        start=record.start_record(ready.start, ready.pair, job, ready.used, ready.reason),
        model=record.model_record(model, recipe.model, recipe.model_use(ready.classes_from, ready.used)),
        modality=record.Modalities(fixed=str(fixed), moving=str(moving), bank=recipe.bank), structures=structures,
        call=record.Call(
            metrics=metric_weights(job.metrics), predict_classes=job.predict_classes, guide_points=job.guide_points,
            transform=job.transform, guide=job.guided_by or job.guided_by is not None, guide_only=job.guide_only,
            guide_anyway=job.guide_anyway, rigid=None if job.rigid is None else names_of(job.rigid),
            reading=job.reading,
        ),
        classes_from=ready.classes_from, settings=ready.settings, plugins=ready.settings.plugins(),
    )  # fmt: skip
