"""Resolved inputs of a registration: start, settings, bank, weights and classes, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from regweave import engines, io
from regweave.config import settings as registration_settings
from regweave.config.settings import Member, Schedule, Settings
from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import exists
from regweave.io.modality import BankName, Stated, bank_of
from regweave.io.structure_names import StructureMatch, match_structures, real_names
from regweave.io.transforms.ends_check import require_direction
from regweave.model.model import Model, read_model, shipped_models
from regweave.pipeline.reading import Inputs, Reading
from regweave.predictors.voxel_mlp import ClassPredictor
from regweave.registration.initial import METHODS, initial_affine
from regweave.types import Field, Geometry, Image, ImagePair, LabelMap, WeightTable

ClassesFrom = Literal["labels", "predicted", "none"]
"""What told the classes that choose the weights: the moving labels, the model's class predictor, or nothing."""


def start(inputs: Inputs, init: Any, *, follow_links: bool = False) -> ImagePair:
    """Bring the pair to its start: the headers, moments, an affine registration, or a transform of any source."""
    affine, field = np.eye(4), None
    named = isinstance(init, str | Path)
    if named and str(init) in METHODS:
        affine = initial_affine(inputs.fixed, inputs.moving, str(init))
    elif named and not exists(init):
        raise UsageError("E187", f"unknown start '{init}'", f"use {', '.join(METHODS)}, or a transform file")
    else:
        transform = io.read_transform(init, inputs.fixed.geometry, follow_links=follow_links)
        subject = str(init) if named else "the start"
        if transform.ends is not None:
            require_direction(transform.ends, "fixed_to_moving", subject)
        affine, field = transform.affine, _on_grid(transform.field, inputs.fixed.geometry, subject)
    io.check_overlap(inputs.fixed.geometry, inputs.moving.geometry, affine)
    return ImagePair(
        Image.of(inputs.fixed, inputs.fixed_labels), Image.of(inputs.moving, inputs.moving_labels), affine,
        None if field is None or not field.data.any() else field,
    )  # fmt: skip


def _on_grid(field: Field, geometry: Geometry, path: str | Path) -> Field:
    io.check_same_grid(geometry, field.geometry, path)
    return Field(field.data, geometry)


def choose_settings(
    preset: str, config: str | Path | Settings | None, engine: str | None, members: Mapping[str, float] | None
) -> Settings:
    """Return a preset or the settings of a file, with the engine or the bank replaced where asked."""
    if isinstance(config, Settings):
        chosen = config
    elif config is not None:
        chosen = registration_settings.load(Path(config))
    else:
        chosen = registration_settings.preset(preset)
    changes: dict[str, Any] = {}
    if engine is not None:
        engines.get(engine)
        changes["engine"] = engine
    if members:
        changes["banks"] = {
            modality: [_member(name, bank).model_dump() for name in members] for modality, bank in chosen.banks.items()
        }
    if not changes:
        return chosen
    return registration_settings.validate({**chosen.model_dump(), **changes}, "the command line")


def _member(name: str, bank: tuple[Member, ...]) -> Member:
    """Return the member of that name in the bank, or the metric of that name with its default options."""
    for member in bank:
        if member.name == name and member.sees_anatomy:
            message = f"--metric {name} compares what a model makes out in the images, and there is none"
            raise UsageError("E188", message, "give --model instead, or another metric")
        if member.name == name:
            return member.model_copy(update={"weight": 1.0})
    return registration_settings.plain_member(name)


def choose_bank(settings: Settings, inputs: Inputs, model: Model | None) -> BankName:
    """Return the bank for the modalities of a pair, or refuse a model that was trained on another.

    Raises
    ------
    RegweaveError
        E172 where images and model differ.
    """
    found = bank_of(*inputs.modalities)
    if model is None or model.modality == found:
        return found
    fixed, moving = inputs.modalities
    fitting = [name for name, path in shipped_models().items() if read_model(path).modality == found]
    others = f"use a model for such images (shipped: {', '.join(fitting)}), or" if fitting else ""
    raise RegweaveError(
        "E172",
        f"the model was trained on {registration_settings.BANKS[model.modality]}; the fixed image is "
        f"{fixed.upper()}, the moving image {moving.upper()}",
        f"leave the model out, {others} state what the images are with --fixed-modality and --moving-modality",
    )


def with_stated(reading: Reading, settings: Settings, model: Model | None) -> Reading:
    """Take the modality that settings name for what a user says of both images, where no model brings them."""
    stated: Stated = "auto" if settings.modality == "multi" else settings.modality
    if stated == "auto" or model is not None:
        return reading
    fixed = stated if reading.fixed_modality == "auto" else reading.fixed_modality
    moving = stated if reading.moving_modality == "auto" else reading.moving_modality
    return replace(reading, fixed_modality=fixed, moving_modality=moving)


def choose_weights(
    settings: Settings, bank: BankName, model: Model | None, members: Mapping[str, float] | None
) -> WeightTable:
    """W of a run: the model's, those given by hand, or those that the members start with."""
    schedule = settings.schedule(bank)
    if model is not None:
        _check_model(model, schedule)
        return model.weights
    start = schedule.start_weights(settings.smoothness)
    if not members:
        return start
    given = np.array([[members[n]] for n in start.members], dtype=np.float64)
    if not (np.isfinite(given).all() and given.min() >= 0 and given.sum() > 0):
        raise UsageError("E188", f"weights of --metric are {given.ravel().tolist()}", "give numbers ≥ 0, not all zero")
    return replace(start, matrix=given / given.sum())


def _check_model(model: Model, schedule: Schedule) -> None:
    """Refuse a model that belongs to another bank or other levels, or holds numbers that no training gives."""
    names = tuple(m.name for m in schedule.bank)
    if model.weights.members != names:
        raise RegweaveError(
            "E170",
            f"the model is for members {', '.join(model.weights.members)}, the bank has {', '.join(names)}",
            "use the settings stored with the model",
        )
    if not 0 <= model.weights.pairwise < np.inf:
        raise RegweaveError(
            "E170", f"the model's pairwise weight is {model.weights.pairwise}, allowed is 0 or more", "train it again"
        )


def match_classes(labels: LabelMap | None, model: Model | None) -> StructureMatch | None:
    """Match moving labels with the classes of a model; None where one of them is not there, or nothing is chosen."""
    if labels is None or model is None or len(model.weights.classes) == 1:
        return None
    known = {c: model.class_names.get(c, str(c)) for c in model.weights.classes if c != 0}
    return match_structures(labels, known, "the moving labels", "the model")


def with_model_names(inputs: Inputs, model: Model | None, match: StructureMatch | None) -> Inputs:
    """Name structures as the model does where the label maps have no names and go by number."""
    if model is None or match is None or match.by == "name":
        return inputs
    names = real_names(model.class_names)

    def named(labels: LabelMap | None) -> LabelMap | None:
        return labels and replace(labels, names={**names, **labels.names})

    return replace(inputs, fixed_labels=named(inputs.fixed_labels), moving_labels=named(inputs.moving_labels))


def coarse_weights(model: Model | None, schedule: Schedule) -> WeightTable | None:
    """Weights of all levels but the last: those of the uniform bank where a model acts at the finest level only."""
    if model is None or model.levels == "all":
        return None
    return schedule.start_weights(model.weights.pairwise)


def class_predictor(model: Model | None) -> ClassPredictor | None:
    """Return what tells the classes of an image without labels, where a model brings it and has columns to choose."""
    if model is None or model.class_predictor is None or len(model.weights.classes) == 1:
        return None
    try:
        found = ClassPredictor.from_dict(model.class_predictor)
        unknown = [c for c in found.classes if c not in model.weights.classes]
        if unknown or found.modality != model.modality:
            raise ValueError(f"it tells {list(found.classes)} in {found.modality} images")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        message = f"the model's class predictor is malformed or does not fit its weights ({error})"
        raise RegweaveError("E170", message, "train it again with `regweave train`") from error
    return found


def check_anatomies(weights: WeightTable, schedule: Schedule, predictor: ClassPredictor | None) -> None:
    """Refuse weights of members that compare what a predictor makes out where there is none."""
    if predictor is None and schedule.needs_anatomy(weights):
        message = "the model weighs what its class predictor makes out in the images, and has none"
        raise RegweaveError("E170", message, "train it again with `regweave train`")


def heed_mask(weights: WeightTable, schedule: Schedule, model: Model | None, classes_from: ClassesFrom) -> WeightTable:
    """Return the weights without label-based members where labels are predicted and training found no gain."""
    if classes_from == "labels" or model is None or model.outline_without_mask:
        return weights
    return schedule.without_mask(weights)


def see_anatomies(
    pair: ImagePair, weights: WeightTable, schedule: Schedule, predictor: ClassPredictor | None
) -> ImagePair:
    """Return the pair with what a predictor makes out in its images, where a member with a weight compares that.

    The moving labels of the pair, given or predicted, are the outline.
    """
    if not schedule.needs_anatomy(weights):
        return pair
    assert predictor is not None  # `check_anatomies` has seen to it
    fixed, moving = predictor.anatomy(pair.fixed), predictor.anatomy(pair.moving)
    outline = moving if pair.moving_labels is None else predictor.outline(pair.moving_labels)
    return pair.with_fixed(maps=fixed).with_moving(maps=moving, label_maps=outline)


def see_classes(
    pair: ImagePair,
    weights: WeightTable,
    predictor: ClassPredictor | None,
    match: StructureMatch | None = None,
    *,
    predict: bool,
) -> tuple[ImagePair, ClassesFrom]:
    """Return the pair with the moving labels that choose the weights, and where they come from.

    Parameters
    ----------
    pair : ImagePair
        Images with the labels that were given.
    weights : WeightTable
        Weights of the run; one column leaves nothing to choose.
    predictor : ClassPredictor, optional
        Used where there are no labels.
    match : StructureMatch, optional
        Which of the labels is which class of the model; what the model does not know is background to it.
    predict : bool
        Use it even where there are.
    """
    if len(weights.classes) == 1:
        return pair, "none"
    if pair.moving_labels is not None and not predict:
        return (pair if match is None else pair.with_moving(labels=match.apply(pair.moving_labels))), "labels"
    if predictor is None:
        return pair.with_moving(labels=None), "none"
    return pair.with_moving(labels=predictor.predict(pair.moving)), "predicted"
