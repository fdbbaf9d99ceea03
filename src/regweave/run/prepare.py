"""Preparation of a registration: images at their start, resolved settings, classes and structure maps.

What depends on the images alone is kept between runs on the same pair, if the caller keeps anything: the images, the
start, what a predictor makes of them, and the result of the discrete levels where only the refinement changes.
"""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from regweave import io, notices
from regweave.config.settings import Settings
from regweave.errors import UsageError
from regweave.io.disk.files import exists
from regweave.io.transforms.ends import require_direction
from regweave.model.model import Model
from regweave.registration import devices
from regweave.registration.align import Alignment, Step, align
from regweave.registration.devices import Device
from regweave.registration.initial import METHODS, STRUCTURES, initial_affine
from regweave.registration.refine import Refinement, RefineStep, refine, warn_if_left_out
from regweave.registration.structure_start import started_from_structures
from regweave.run.memory import Cache
from regweave.run.read import Inputs, Reading, read_inputs
from regweave.run.resolve import ClassesFrom, Recipe, doubt_volumes, predictor_of, with_stated
from regweave.types import Field, Geometry, ImagePair

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """One registration as it is asked for; see `regweave.run.register.register` for the fields.

    ``cache_key`` names the content of all sources, so that what is computed from them can be cached.
    """

    settings: Settings
    fixed: Any
    moving: Any
    fixed_labels: Any = None
    moving_labels: Any = None
    model: Model | None = None
    metrics: Mapping[str, float] | None = None
    init: Any = None
    predict_classes: bool = False
    reading: Reading = field(default_factory=Reading)
    device: str | None = None
    fixed_mask: Any = None
    moving_mask: Any = None
    cache_key: Hashable = None


@dataclass(frozen=True)
class Prepared:
    """A registration that is ready to run.

    Parameters
    ----------
    recipe : Recipe
        What runs.
    data : Inputs
        Images and labels as they were read.
    pair : ImagePair
        The same at their start, with the labels that were given.
    seen : ImagePair
        The same as the weights look at them: with the classes that choose columns, and with structure maps.
    classes_from
        What told the classes.
    start, reading
        Initial alignment that was asked for, and the rules of reading with what the settings state.
    used, reason
        Method of the alignment that was used, where a method was asked for, and why it is another one.
    device : Device
        What computes the levels and the refinement.
    key : hashable
        Names images, labels and start.
    """

    recipe: Recipe
    data: Inputs
    pair: ImagePair
    seen: ImagePair
    classes_from: ClassesFrom
    start: Any
    used: str
    reason: str
    reading: Reading
    device: Device
    key: Hashable


@dataclass
class Stopwatch:
    """Seconds of the stages of a run; ``on_stage`` is called when one begins.

    What lies between two stages counts for the later one, so that the stages add up to the time of the run.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    on_stage: Callable[[str], None] | None = None
    since: float = field(default_factory=time.perf_counter)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a block."""
        if self.on_stage is not None:
            self.on_stage(name)
        yield
        now = time.perf_counter()
        self.seconds[name], self.since = now - self.since, now


def prepare(request: Request, cache: Cache, watch: Stopwatch) -> Prepared:
    """Read and check everything that a registration needs, and bring the pair to its start."""
    model, settings, device = request.model, request.settings, devices.get(request.device)
    start = settings.initial if request.init is None else request.init
    require_start(start, model)
    with watch.stage("read"):
        reading = with_stated(request.reading, settings, model)
        key: Hashable = (request.cache_key, json.dumps(reading.to_json(), sort_keys=True))
        sources = (request.fixed, request.moving, request.fixed_labels, request.moving_labels)
        masks = {"fixed_mask": request.fixed_mask, "moving_mask": request.moving_mask}
        data = cache(("read", key), lambda: read_inputs(*sources, reading, **masks))
        recipe = Recipe.resolve(settings, data, model, request.metrics)
        data = recipe.name_structures(data)
    with watch.stage("initial"), notices.collected() as rejected:
        named = str(start) if isinstance(start, str | Path) else object()  # an object in memory is kept for nobody
        key = (key, named, tuple(model.class_names.items()) if model is not None and recipe.match is not None else None)
        pair = cache(("start", key), lambda: start_pair(data, start, follow_links=reading.follow_links))
    with watch.stage("classes"):
        told_by = None if recipe.predictor is None else recipe.predictor.save().identity()
        maps = (key, request.predict_classes, recipe.weights.classes, told_by, recipe.compares_maps)

        def seen_by_model() -> tuple[ImagePair, ClassesFrom]:
            seen, told = recipe.attach_labels(pair, predict=request.predict_classes)
            return recipe.attach_structure_maps(seen), told

        seen, classes_from = cache(("seen", maps), seen_by_model)
        if not request.predict_classes:
            doubt_volumes(seen, recipe)
        fitted = _used(start, pair, rejected)
        with notices.collected() as also:
            pair, seen = _from_structures(start, recipe, pair, seen, lambda make: cache(("structures", maps), make))
        laid = isinstance(start, str) and start == STRUCTURES and not _rejections(also)
        used, reason = (
            (STRUCTURES, "") if laid else (fitted[0], "; ".join(filter(None, (fitted[1], *_rejections(also)))))
        )
    if request.device == "auto":  # the images decide too
        device = devices.best_for(pair, recipe.schedule)
    recipe = recipe.drop_label_members(classes_from)
    warn_if_left_out(recipe.schedule, recipe.weights, recipe.settings.refine)
    return Prepared(recipe, data, pair, seen, classes_from, start, used, reason, reading, device, maps)


def _rejections(warnings: Sequence[str]) -> list[str]:
    """Return why starts were rejected, without the codes."""
    return [text.partition(": ")[2] for text in warnings if text.startswith(("W210", "W216"))]


def _used(start: Any, pair: ImagePair, warnings: Sequence[str]) -> tuple[str, str]:
    """Return the method of a start that was used, and why it is not the one that was asked for."""
    rejected = _rejections(warnings)
    if not isinstance(start, str) or start not in METHODS:
        return "", ""
    if start == "rigid" and np.array_equal(pair.initial, np.eye(4)):
        return "none", rejected[0] if rejected else "the headers already align the images as well as the rigid fit"
    if rejected:
        return "moments", rejected[0]
    return ("affine", "") if start == STRUCTURES else (start, "")


def _from_structures(
    start: Any, recipe: Recipe, pair: ImagePair, seen: ImagePair, kept: Callable[[Callable[[], ImagePair]], ImagePair]
) -> tuple[ImagePair, ImagePair]:
    """Lay the structures of both images on each other where that is asked for, in the pair as given and as seen."""
    if not isinstance(start, str) or start != STRUCTURES:
        return pair, seen
    found = kept(lambda: started_from_structures(recipe.attach_structure_maps(seen, always=True)))
    affine, field = found.initial, found.initial_field
    return replace(pair, initial=affine, initial_field=field), replace(seen, initial=affine, initial_field=field)


def require_start(init: Any, model: Model | None) -> None:
    """Refuse a start that is neither a method nor a file, or that needs a model: E187, before anything is read."""
    if not isinstance(init, str | Path):
        return
    if str(init) == STRUCTURES and predictor_of(model) is None:
        message = f"the start '{STRUCTURES}' needs a model whose predictor segments images"
        raise UsageError("E187", message, "give --model with a predictor, or --init affine")
    _require_known(init)


def _require_known(init: str | Path) -> None:
    if str(init) not in METHODS and not exists(init):
        near = difflib.get_close_matches(str(init)[:100], METHODS, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise UsageError("E187", f"unknown start '{init}'", f"{guess}use {', '.join(METHODS)}, or a transform file")


def start_pair(inputs: Inputs, init: Any, *, follow_links: bool = False) -> ImagePair:
    """Bring the pair to its start: the headers, moments, a rigid or affine fit, or a transform of any source."""
    affine, field = np.eye(4), None
    named = isinstance(init, str | Path)
    if named:
        _require_known(init)
    if named and str(init) in METHODS:
        affine = initial_affine(inputs.fixed, inputs.moving, str(init))
    else:
        transform = io.read_transform(init, inputs.fixed.geometry, follow_links=follow_links)
        subject = str(init) if named else "the start"
        if transform.ends is not None:
            require_direction(transform.ends, "fixed_to_moving", subject)
        affine, field = transform.affine, _on_grid(transform.field, inputs.fixed.geometry, subject)
    io.check_overlap(inputs.fixed.geometry, inputs.moving.geometry, affine)
    return ImagePair(inputs.fixed, inputs.moving, affine, None if field is None or not field.data.any() else field)


def _on_grid(field: Field, geometry: Geometry, path: str | Path) -> Field:
    io.check_same_grid(geometry, field.geometry, path)
    return Field(field.data, geometry)


def align_levels(run: Prepared, cache: Cache, on_step: Callable[[Step], None] | None = None) -> Alignment:
    """Run the discrete levels; weights of the refinement do not change the result."""
    recipe, schedule = run.recipe, run.recipe.schedule
    names = tuple(m.name for m in schedule.discrete)
    tables = [recipe.weights.select(names), None if recipe.coarse is None else recipe.coarse.select(names)]
    weighed = tuple(None if w is None else (w.matrix.tobytes(), w.classes, w.pairwise) for w in tables)
    levels = schedule.levels_key()

    def aligned() -> Alignment:
        return align(run.seen, recipe.weights, schedule, coarse=recipe.coarse, on_step=on_step, device=run.device)

    return cache(("levels", run.key, run.device.name, levels, weighed), aligned)


def refine_field(run: Prepared, aligned: Alignment, on_step: Callable[[RefineStep], None] | None = None) -> Refinement:
    """Run the continuous stage from the result of the levels."""
    recipe, start = run.recipe, aligned.displacement
    settings = recipe.settings.refine
    return refine(run.seen, start, recipe.weights, recipe.schedule, settings, on_step=on_step, device=run.device)
