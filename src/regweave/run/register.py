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
from regweave.io import fill_value, image_sha256
from regweave.io.disk.files import is_file, peak_memory_mb
from regweave.io.disk.records import this_program
from regweave.measures.landmarks import LandmarkPairs
from regweave.measures.likeness import likeness_of
from regweave.measures.scores import InverseError, PairScore, regularity
from regweave.options import called
from regweave.progress import OnProgress, ProgressReporter, StagedBar
from regweave.registration import cpu, devices, initial
from regweave.registration.align import Alignment, Refinement, Step, align, refine, warn_if_left_out
from regweave.registration.guides import redrawn
from regweave.registration.landmarks import PointGuides, started_from_structures
from regweave.run import check as checking, record, resolve
from regweave.run.job import AUTO, POINTS, Job, check_method, rules_of
from regweave.run.memory import Cache, allowed_threads, forecast, no_cache
from regweave.run.read import Inputs, as_stored, read_inputs
from regweave.run.result import Images, Result
from regweave.run.rigid import names_of, rigid_parts, stiffened
from regweave.run.start import guiding, point_guides, read_landmarks, start_pair, used_start
from regweave.spatial.voxels import inside
from regweave.spatial.warp import determinant, invert, turn_in_place, turned, warp_image, warp_labels
from regweave.threads import kernel_threads
from regweave.types import Ends, Field, ImagePair, LabelMap, NodeEvidence, Transform, Volume


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
    >>> result = rw.register(pair.fixed, pair.moving, fixed_labels=pair.fixed.labels, moving_labels=pair.moving.labels)
    >>> result.regularity["folding_fraction"]
    0.0
    """
    with StagedBar(shown=job.progress and job.on_progress is None) as bar:
        return run(job, job.on_progress or bar)


def run(
    job: Job, on_progress: OnProgress | None = None, *, keep_view: bool = True, command: tuple[str, ...] = ()
) -> Result:
    """Run a job; ``keep_view`` keeps what a page shows beyond the result: deciding metric and confidence of nodes.

    The record has the ``command`` line that asked for it.
    """
    rules, report, threads = rules_of(job.rules), ProgressReporter(on_progress), allowed_threads(job.threads)
    with kernel_threads(threads), notices.collected() as warned:
        job, why = with_model(job)
        ready = prepare(job, no_cache, report)
        recipe, landmarks, kernels = ready.recipe, ready.landmarks, ready.device.fields
        bank, levels = recipe.schedule.bank_name, recipe.schedule.for_levels(recipe.weights, recipe.coarse)
        if not ready.linear:
            grids = ready.pair.fixed.geometry, ready.pair.moving.geometry
            report.forecast(forecast(*grids, ready.settings, bank, probe=False))
        provenance = provenance_of(ready, job.model, threads, command)
        report.report(" · ".join(filter(None, (provenance.headline(), why))), "begin")
        nodes: NodeEvidence | None = None

        def on_level(step: Step) -> None:
            nonlocal nodes
            energy, gap = step.solution.energy, step.solution.gap
            report.step(f"{step.spacing_mm:.3g} mm step {step.step + 1}: energy {energy:.2f}, gap {gap:.2%}")
            if keep_view and (step.level, step.step) == (len(levels.levels) - 1, levels.levels[-1].steps - 1):
                nodes = checking.node_evidence(step, recipe.weights, tuple(member.name for member in levels.bank))

        with report.stage("levels"):
            aligned = align_levels(ready, no_cache, on_level)
        with report.stage("refine"):
            refined, steps = refine_field(ready, aligned, report), aligned.steps
            del aligned  # large fields fit into memory a few times only
        with report.stage("outputs"):
            pair = as_stored(ready.pair, ready.data)
            transform, descent = transform_of(ready, refined), refined.steps
            transform, bent = (transform, {}) if ready.rigid is None else stiffened(transform, ready.rigid)
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
            likeness = likeness_of(pair, transform, warped, warped_labels, bank, rules.reference)
            checking.warn_of_doubts(pair, numbers, inverse_error, warped_labels)
        check = limit = None
        if again is not None:
            check, limit = check_run(again, pair, transform, warped, warped_labels, report)
    images = Images.made(transform, inverse, warped, warped_labels, pair, nodes, limit)
    result = Result(
        images=images, structures=score, steps=tuple(steps), refinement=tuple(descent), regularity=numbers,
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
    path, why = resolve.fitting([fixed, job.image(job.moving, job.moving_modality, job.moving_series)])
    return replace(job, model=path), f"model auto: {why}"


@dataclass(frozen=True)
class Prepared:
    """A registration that is ready to run."""

    job: Job  # the job with the modalities that its settings state
    settings: Settings  # settings as they were chosen; the recipe has those that run
    recipe: resolve.Recipe  # what runs
    data: Inputs  # images and labels as they were read
    pair: ImagePair  # the same at their start, with the labels that were given
    seen: ImagePair  # the same with the classes that choose columns, and with structure maps
    classes_from: resolve.ClassesFrom  # source of these classes
    start: Any  # requested initial alignment, the method that was used, and why it is another one
    used: str
    reason: str
    guides: record.GuidesRecord | None  # structures that guide
    device: cpu.Device  # what computes the levels and the refinement
    key: Hashable  # names images, labels and start, for caches
    linear: bool  # whether the start is the whole result
    landmarks: LandmarkPairs | None  # those that judge, and those of them that guide
    drawing: PointGuides | None
    rigid: LabelMap | None  # parts that stay rigid


def prepare(
    job: Job, cache: Cache, report: ProgressReporter, content: Hashable = None,
    drawn: tuple[float, int] | None = None,
) -> Prepared:  # fmt: skip
    """Read and check everything that a registration needs, and bring the pair to its start.

    What depends on the images alone is cached for runs on the same ``content``, which names that of all sources.
    ``drawn`` are an error in mm and a seed: fixed labels are drawn with it to guide.
    """
    landmarks, drawing = read_landmarks(job.fixed_points, job.moving_points, job.guide_points), None
    model, settings, start, device = check_method(job)
    job = resolve.with_stated(job, settings, model)
    with report.stage("read"):
        key: Hashable = (content, json.dumps(job.to_json(), sort_keys=True))
        data = cache(("read", key), lambda: read_inputs(
            job.fixed, job.moving, job.fixed_labels, job.moving_labels, job,
            fixed_mask=job.fixed_mask, moving_mask=job.moving_mask,
        ))  # fmt: skip
        recipe = resolve.Recipe.resolve(settings, data, model, metric_weights(job.metrics))
        data = recipe.name_structures(data)
    with report.stage("initial"), notices.collected() as warned:
        named = str(start) if isinstance(start, str | Path) else object()  # an object in memory is not cached
        names = tuple(model.class_names.items()) if model is not None and recipe.match is not None else None
        linear = job.transform != "deformable"
        key = (key, named, names, linear)
        pair = cache(("start", key), lambda: start_pair(data, start, follow_links=job.follow_links, alone=linear))
    with report.stage("classes"):
        identity = None if recipe.predictor is None else recipe.predictor.save().identity()
        key = (key, job.predict_classes, recipe.weights.classes, identity, recipe.compares_maps)
        seen, classes_from = cache(("seen", key), lambda: recipe.attach_classes(pair, predict=job.predict_classes))
        if not job.predict_classes:
            resolve.doubt_volumes(seen, recipe)
        resolve.doubt_segmentation(seen, recipe, given=classes_from == "labels")
        by_images, guides = pair, None
        if (asked := job.guided_by) is not None:
            assert pair.fixed.labels is not None
            apart = pair if drawn is None else pair.with_fixed(labels=redrawn(pair.fixed.labels, *drawn, str(content)))
            maps, guides = guiding(apart, recipe, asked, only=job.guide_only, anyway=job.guide_anyway)
            seen = replace(seen, guides=maps)
            key = (key, drawn, tuple(guides.weights.items())) if guides.levels else key  # they change the levels
        with notices.collected() as warned_later:
            from_guides = guides is not None and guides.levels and isinstance(start, str)
            if from_guides or (isinstance(start, str) and start == initial.STRUCTURES):
                mapped = guides is not None or seen.fixed.maps is not None
                shown = seen if mapped else resolve.with_structure_maps(seen, recipe.predictor)
                found = cache(("structures", key), lambda: started_from_structures(shown))
                pair = replace(pair, initial=found.initial, initial_field=found.initial_field)
                seen = replace(seen, initial=found.initial, initial_field=found.initial_field)
        used, reason = used_start(start, by_images, warned, warned_later)
    if job.device == "auto":  # the images decide too
        device = devices.best_for(pair, recipe.schedule)
    recipe = recipe.drop_label_members(classes_from)
    if guides is not None:
        recipe = recipe.guided(levels=guides.levels, only=guides.only)
    if not linear:
        warn_if_left_out(recipe.schedule, recipe.weights, recipe.settings.refine)
    if landmarks is not None and job.guide_points is not None:
        drawing, landmarks = point_guides(landmarks, job.fixed_points, job.guide_points, pair)
        seen, data = drawing.start(seen), with_points(data, job, landmarks)
    return Prepared(
        job, settings, recipe, data, pair, seen, classes_from, start, used, reason, guides, device, key, linear,
        landmarks, drawing, None if job.rigid is None else rigid_parts(names_of(job.rigid), data.moving),
    )  # fmt: skip


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
    if ready.linear:
        return Alignment(np.zeros((3, *ready.pair.fixed.geometry.shape), dtype=np.float32), ())
    names = tuple(m.name for m in schedule.discrete)
    tables = [recipe.weights.select(names), None if recipe.coarse is None else recipe.coarse.select(names)]
    weights = tuple(None if w is None else (w.matrix.tobytes(), w.classes, w.pairwise) for w in tables)
    return cache(
        ("levels", ready.key, ready.device.name, schedule.levels_key(), weights),
        lambda: align(ready.seen, recipe.weights, schedule, coarse=recipe.coarse, on_step=on_step, device=ready.device),
    )


def refine_field(ready: Prepared, aligned: Alignment, report: ProgressReporter | None = None) -> Refinement:
    """Run the continuous stage from the result of the levels."""
    recipe, start = ready.recipe, aligned.displacement
    if ready.linear:
        return Refinement(start, (), ())
    settings, shown = recipe.settings.refine, report or ProgressReporter()
    return refine(
        ready.seen, start, recipe.weights, recipe.schedule, settings, device=ready.device,
        on_step=lambda s: shown.step(f"refine step {s.step + 1}: cost {s.data + s.smoothness:.1f}"),
    )  # fmt: skip


def check_run(
    ready: Prepared, pair: ImagePair, transform: Transform, image: Volume, warped: LabelMap | None,
    report: ProgressReporter,
) -> tuple[checking.Check, Volume]:  # fmt: skip
    """Repeat a run with slightly other weights and smoothness, and run it the other way; see `regweave.run.check`.

    ``pair`` has the images as they are stored, ``transform``, warped ``image`` and ``warped`` labels are those of the
    result. The other way keeps nothing rigid.
    """
    repeated, recipe = checking.Repetitions(transform, pair.moving.labels, warped), ready.recipe
    with report.stage("check"), notices.unheard():
        for n in range(checking.REPETITIONS):
            report.report(f"repetition {n + 1} of {checking.REPETITIONS}")
            settings, weights = checking.perturbed(
                recipe.settings.for_bank(recipe.schedule.bank_name), recipe.weights, n
            )
            changed = replace(recipe, settings=settings, weights=weights, schedule=recipe.schedule.without_proof())
            again = replace(ready, recipe=changed)
            other = transform_of(again, refine_field(again, align_levels(again, no_cache)))
            repeated.add(other if ready.rigid is None else stiffened(other, ready.rigid)[0])
        report.report("the other way")
        back = prepare(turned_job(ready, pair, warped), no_cache, ProgressReporter())
        if (points := ready.drawing) is not None:
            points = replace(points, fixed=points.moving, moving=points.fixed)
            back = replace(back, drawing=points, seen=points.start(back.seen))
        other = transform_of(back, refine_field(back, align_levels(back, no_cache)))
        return checking.summarise(pair, transform, image, warped, repeated, other)


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
    """Return the transform of a refined displacement with its landmarks, on the stored grid of the fixed image."""
    fixed, moving = ready.data.stored["fixed"], ready.data.stored["moving"]
    voxels = fixed.to_stored(refined.displacement)
    turn = turned if np.may_share_memory(voxels, refined.displacement) else turn_in_place
    field = Field(turn(voxels, ready.pair.fixed.geometry.affine[:3, :3]), fixed.stored)
    ends = Ends("fixed_to_moving", fixed.stored, moving.stored)
    found = Transform(field, ready.pair.initial, ends, refined.knots)
    return found if ready.drawing is None else ready.drawing.draw(found)


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


def provenance_of(ready: Prepared, model: Any, threads: int, command: tuple[str, ...]) -> record.Provenance:
    """Return all that is needed to run the registration again; ``model`` is the given path or object."""
    job, recipe, data = ready.job, ready.recipe, ready.data
    fixed, moving = data.modalities
    match, labels, structures = recipe.match, data.moving.labels, None
    if match is not None and labels is not None:
        names = {v: labels.name(v) for v in (*match.to, *match.unknown)}
        structures = record.StructuresRecord(
            matched_by=match.by, classes=dict(match.to), names=names, unknown=tuple(match.unknown)
        )
    init, pair = ready.start, ready.pair
    file = init if isinstance(init, str | Path) and is_file(init) else None
    in_memory = "matrix" if pair.initial_field is None else record.MEMORY
    requested = "file" if file is not None else str(init) if isinstance(init, str | Path) else in_memory
    start = record.StartRecord(
        requested=requested, used=ready.used or requested, reason=ready.reason, matrix=pair.initial.tolist(),
        file=None if file is None else str(Path(file).absolute()), field=pair.initial_field is not None,
        sha256=None if file is None else image_sha256(file, follow_links=job.follow_links),
    )  # fmt: skip
    return record.Provenance(
        **this_program(), threads=threads, command=command, guides=ready.guides, device=ready.device.name,
        inputs={k: record.InputFile(path=data.sources.get(k), sha256=sha256) for k, sha256 in data.hashes.items()},
        start=start,
        model=record.model_record(model, recipe.model, recipe.model_use(ready.classes_from, ready.used)),
        modality=record.Modalities(fixed=str(fixed), moving=str(moving), bank=recipe.schedule.bank_name),
        structures=structures,
        call=record.Call(
            metrics=metric_weights(job.metrics), predict_classes=job.predict_classes, guide_points=job.guide_points,
            transform=job.transform, guide=job.guided_by or job.guided_by is not None, guide_only=job.guide_only,
            guide_anyway=job.guide_anyway, rigid=None if job.rigid is None else names_of(job.rigid),
            reading=job.reading,
        ),
        classes_from=ready.classes_from, settings=ready.settings, plugins=ready.settings.plugins(),
    )  # fmt: skip
