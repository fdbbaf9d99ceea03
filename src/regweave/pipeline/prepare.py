"""Preparation of a registration: images at their start, resolved settings, classes and structure maps.

What depends on the images alone is kept between runs on the same pair, if the caller keeps anything: the images, the
start, what a predictor makes of them, and the result of the discrete levels where only the refinement changes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from regweave.config.settings import Schedule, Settings
from regweave.io.modality import BankName
from regweave.io.structure_names import StructureMatch
from regweave.model.model import Model
from regweave.pipeline import inputs as given
from regweave.pipeline.memory import check_memory
from regweave.pipeline.reading import Inputs, Reading, read_inputs
from regweave.predictors.voxel_mlp import ClassPredictor
from regweave.registration import devices
from regweave.registration.align import Alignment, Step, align
from regweave.registration.devices import Device
from regweave.registration.refine import Refinement, RefineStep, refine
from regweave.types import ImagePair, WeightTable

T = TypeVar("T")


class Keep(Protocol):
    """Memory between runs: the value of a key, made now if it is not there."""

    def __call__(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value."""


def afresh(key: Hashable, make: Callable[[], T]) -> T:
    """Make a value, whatever its key: keep nothing."""
    return make()


@dataclass(frozen=True)
class Request:
    """One registration as it is asked for; see `regweave.pipeline.register.register` for the fields.

    ``identity`` names the content of the four sources, so that what is made of them can be kept; None keeps nothing.
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
    identity: Hashable = None


@dataclass(frozen=True)
class Prepared:
    """A registration that is ready to run.

    Parameters
    ----------
    data : Inputs
        Images and labels as they were read.
    pair : ImagePair
        The same at their start, with the labels that were given.
    seen : ImagePair
        The same as the weights look at them: with the classes that choose columns, and with structure maps.
    settings, schedule, bank, model, weights
        What runs.
    match, classes_from
        How the labels met the classes of the model, and what told the classes.
    start, reading
        Initial alignment, and the rules of reading with what the settings state.
    device : Device
        What computes the levels and the refinement.
    key : hashable
        Names images, labels and start.
    """

    data: Inputs
    pair: ImagePair
    seen: ImagePair
    settings: Settings
    schedule: Schedule
    bank: BankName
    model: Model | None
    weights: WeightTable
    match: StructureMatch | None
    classes_from: given.ClassesFrom
    start: Any
    reading: Reading
    device: Device
    key: Hashable


@dataclass
class Stopwatch:
    """Seconds of the stages of a run."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a block."""
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


def prepare(request: Request, keep: Keep, watch: Stopwatch) -> Prepared:
    """Read and check everything that a registration needs, and bring the pair to its start."""
    model, settings, device = request.model, request.settings, devices.get(request.device)
    with watch.stage("read"):
        reading = given.with_stated(request.reading, settings, model)
        key: Hashable = (request.identity, json.dumps(reading.to_json(), sort_keys=True))
        sources = (request.fixed, request.moving, request.fixed_labels, request.moving_labels)
        data = keep(("read", key), lambda: read_inputs(*sources, reading))
        bank = given.choose_bank(settings, data, model)
        match = given.match_classes(data.moving_labels, model)
        data = given.with_model_names(data, model, match)
        weights = given.choose_weights(settings, bank, model, request.metrics)
        predictor = _predictor(model, keep)
        schedule = settings.schedule(bank)
        _check(data, settings, weights, schedule, predictor)
    start = settings.initial if request.init is None else request.init
    with watch.stage("initial"):
        named = str(start) if isinstance(start, str | Path) else object()  # an object in memory is kept for nobody
        key = (key, named, tuple(model.class_names.items()) if model is not None and match is not None else None)
        pair = keep(("start", key), lambda: given.start(data, start, follow_links=reading.follow_links))
    with watch.stage("classes"):
        maps = (key, request.predict_classes, weights.classes, _predictor_key(model), schedule.needs_anatomy(weights))

        def seen_by_model() -> tuple[ImagePair, given.ClassesFrom]:
            seen, told = given.see_classes(pair, weights, predictor, match, predict=request.predict_classes)
            return given.see_anatomies(seen, weights, schedule, predictor), told

        seen, classes_from = keep(("seen", maps), seen_by_model)
        weights = given.heed_mask(weights, schedule, model, classes_from)
    return Prepared(
        data, pair, seen, settings, schedule, bank, model, weights, match, classes_from, start, reading, device, maps
    )


def _predictor(model: Model | None, keep: Keep) -> ClassPredictor | None:
    """Class predictor of a model, parsed once."""
    return keep(("predictor", _predictor_key(model)), lambda: given.class_predictor(model))


def _predictor_key(model: Model | None) -> str | None:
    if model is None or model.class_predictor is None:
        return None
    return json.dumps([model.class_predictor, model.weights.classes, model.modality], sort_keys=True)


def _check(
    data: Inputs, settings: Settings, weights: WeightTable, schedule: Schedule, predictor: ClassPredictor | None
) -> None:
    """Refuse what cannot run, before anything is computed."""
    given.check_anatomies(weights, schedule, predictor)
    structures = len(weights.classes) - 1 if schedule.needs_anatomy(weights) else 0
    asked = predictor if structures or data.moving_labels is None else None
    voxel_mm = None if asked is None else asked.voxel_mm
    check_memory(data.fixed.geometry, data.moving.geometry, settings, schedule.modality, structures, voxel_mm)


def align_levels(run: Prepared, keep: Keep, on_step: Callable[[Step], None] | None = None) -> Alignment:
    """Run the discrete levels; weights of the refinement do not change the result."""
    coarse = given.coarse_weights(run.model, run.schedule)
    names = tuple(m.name for m in run.schedule.discrete)
    tables = [run.weights.select(names), None if coarse is None else coarse.select(names)]
    weighed = tuple(None if w is None else (w.matrix.tobytes(), w.classes, w.pairwise) for w in tables)
    levels = run.schedule.model_copy(update={"bank": run.schedule.discrete}).model_dump_json()

    def aligned() -> Alignment:
        return align(run.seen, run.weights, run.schedule, coarse=coarse, on_step=on_step, device=run.device)

    return keep(("levels", run.key, run.device.name, levels, weighed), aligned)


def refine_field(run: Prepared, aligned: Alignment, on_step: Callable[[RefineStep], None] | None = None) -> Refinement:
    """Run the continuous stage from the result of the levels."""
    start, settings = aligned.displacement, run.settings.refine
    return refine(run.seen, start, run.weights, run.schedule, settings, on_step=on_step, device=run.device)
