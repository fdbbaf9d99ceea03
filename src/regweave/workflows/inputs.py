"""From what a user gives to a checked pair: nothing is computed before all of it is known to be good."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from regweave import io
from regweave.errors import RegweaveError, UsageError
from regweave.io.files import exists
from regweave.io.model import Model
from regweave.io.nifti_frame import NiftiFrame
from regweave.io.validate import NonFinite
from regweave.learning.class_predictor import ClassPredictor
from regweave.pyramid.intensity import Modality, modality_of
from regweave.registration import settings as registration_settings
from regweave.registration.initial import METHODS, initial_affine
from regweave.registration.settings import Member, Schedule, Settings
from regweave.types import Anatomies, Field, Geometry, ImagePair, LabelMap, Volume, Weights

ClassesFrom = Literal["labels", "predicted", "none"]
"""What told the classes that choose the weights: the moving labels, the model's class predictor, or nothing."""


@dataclass(frozen=True)
class Reading:
    """How files are read.

    The matrix that places NIfTI files, NaN refused or masked, names of the labels, the labels that are kept where not
    all are (the others become background), and whether a header may name a file of voxels outside of its folder.
    """

    nifti_frame: NiftiFrame = "auto"
    nonfinite: NonFinite = "error"
    label_names: str | Path | None = None
    classes: tuple[int, ...] | None = None
    follow_links: bool = False

    def image(self, source: Any) -> Volume:
        """Read a file under these rules, or take an image in memory."""
        if isinstance(source, str | Path):
            return io.read_image(
                source, nifti_frame=self.nifti_frame, nonfinite=self.nonfinite, follow_links=self.follow_links
            )
        return io.as_volume(source)

    def labels(self, source: Any, geometry: Geometry) -> LabelMap | None:
        """Read labels and put them on the grid of their image."""
        if source is None:
            return None
        if isinstance(source, str | Path):
            labels = io.read_labels(source, nifti_frame=self.nifti_frame, follow_links=self.follow_links)
            subject = str(source)
        else:
            labels, subject = io.as_labels(source), "the label map"
        names = labels.names if self.label_names is None else io.read_names(self.label_names)
        data = labels.data if self.classes is None else np.where(np.isin(labels.data, self.classes), labels.data, 0)
        return LabelMap(data, io.check_same_grid(geometry, labels.geometry, subject), names)


@dataclass(frozen=True)
class Inputs:
    """A pair before its initial alignment, the hash of each thing it was read from, and the names of files."""

    fixed: Volume
    moving: Volume
    fixed_labels: LabelMap | None
    moving_labels: LabelMap | None
    hashes: Mapping[str, str]
    sources: Mapping[str, str]


def read_inputs(
    fixed: Any, moving: Any, fixed_labels: Any = None, moving_labels: Any = None, reading: Reading | None = None
) -> Inputs:
    """Read and check images and label maps; label maps take their image's grid."""
    reading = reading or Reading()
    images = {"fixed": reading.image(fixed), "moving": reading.image(moving)}
    labels = {
        "fixed": reading.labels(fixed_labels, images["fixed"].geometry),
        "moving": reading.labels(moving_labels, images["moving"].geometry),
    }
    sources = {
        "fixed": fixed, "moving": moving, "fixed_labels": fixed_labels, "moving_labels": moving_labels
    }  # fmt: skip
    for name, found in labels.items():
        if found is not None and reading.classes is None and not found.values():
            source = sources[f"{name}_labels"]
            subject = f"'{source}'" if isinstance(source, str | Path) else "the label map"
            message = f"{subject} shows no structure: every voxel of the {name} labels is 0"
            raise RegweaveError("E131", message, "give the right label map, or leave it out")
    values = {**images, **{f"{k}_labels": v for k, v in labels.items()}}
    hashes = {k: _hash(s, values[k]) for k, s in sources.items() if s is not None}
    files = {k: "/".join(Path(s).absolute().parts[1:][-2:]) for k, s in sources.items() if isinstance(s, str | Path)}
    return Inputs(images["fixed"], images["moving"], labels["fixed"], labels["moving"], hashes, files)


def _hash(source: Any, value: Volume | LabelMap | None) -> str:
    if isinstance(source, str | Path):
        return io.sha256(source)
    assert value is not None
    digest = hashlib.sha256(np.ascontiguousarray(value.data).tobytes())
    digest.update(value.geometry.affine.tobytes())
    return digest.hexdigest()


def start(inputs: Inputs, init: str | Path) -> ImagePair:
    """Bring the pair to its start: the headers, moments, an affine registration, or a transform file."""
    affine, field = np.eye(4), None
    if str(init) in METHODS:
        affine = initial_affine(inputs.fixed, inputs.moving, str(init))
    elif exists(init):
        transform = io.read_transform(init, inputs.fixed.geometry)
        affine, field = transform.affine, _on_grid(transform.field, inputs.fixed.geometry, init)
    else:
        raise UsageError("E187", f"--init {init}: no such file or method", f"give a file or {', '.join(METHODS)}")
    io.check_overlap(inputs.fixed.geometry, inputs.moving.geometry, affine)
    return ImagePair(
        inputs.fixed, inputs.moving, inputs.fixed_labels, inputs.moving_labels, affine,
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


def choose_modality(settings: Settings, inputs: Inputs) -> Modality:
    """Return the modality that the settings name, or tell it from the images."""
    if settings.modality != "auto":
        return settings.modality
    return modality_of(inputs.fixed, inputs.moving)


def choose_weights(
    settings: Settings, modality: Modality, model: Model | None, members: Mapping[str, float] | None
) -> Weights:
    """W of a run: the model's, those given by hand, or those that the members start with."""
    schedule = settings.schedule(modality)
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
    shape = (len(schedule.levels), len(schedule.discrete))
    if model.scales is None:
        return
    found = [s.shape for s in model.scales]
    if found != [shape[1:]] * shape[0] or not all((s > 0).all() and np.isfinite(s).all() for s in model.scales):
        raise RegweaveError(
            "E170",
            f"the model's scales must be {shape[0]} levels of {shape[1]} positive numbers, found {found}",
            "use the settings stored with the model",
        )


def check_classes(labels: LabelMap | None, model: Model | None) -> None:
    """Refuse labels that a model has no column for."""
    if labels is None or model is None:
        return
    unknown = [v for v in labels.values() if v not in model.weights.classes]
    if unknown:
        raise RegweaveError(
            "E130",
            f"moving labels {unknown} are unknown to the model, which knows {list(model.weights.classes)}",
            "relabel the mask, or train a model with these structures",
        )


def coarse_weights(model: Model | None, schedule: Schedule) -> Weights | None:
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


def check_anatomies(weights: Weights, schedule: Schedule, predictor: ClassPredictor | None) -> None:
    """Refuse weights of members that compare what a predictor makes out where there is none."""
    if predictor is None and schedule.needs_anatomy(weights):
        message = "the model weighs what its class predictor makes out in the images, and has none"
        raise RegweaveError("E170", message, "train it again with `regweave train`")


def heed_mask(weights: Weights, schedule: Schedule, model: Model | None, classes_from: ClassesFrom) -> Weights:
    """Return the weights of a run: members that compare the moving labels may be of no use without them."""
    if classes_from == "labels" or model is None or model.outline_without_mask:
        return weights
    return schedule.without_mask(weights)


def see_anatomies(pair: ImagePair, weights: Weights, schedule: Schedule, predictor: ClassPredictor | None) -> ImagePair:
    """Return the pair with what a predictor makes out in its images, where a member with a weight compares that.

    The moving labels of the pair, given or predicted, are the outline.
    """
    if not schedule.needs_anatomy(weights):
        return pair
    assert predictor is not None  # `check_anatomies` has seen to it
    fixed, moving = predictor.anatomy(pair.fixed), predictor.anatomy(pair.moving)
    outline = moving if pair.moving_labels is None else predictor.outline(pair.moving_labels)
    return replace(pair, anatomies=Anatomies(fixed, moving, outline))


def see_classes(
    pair: ImagePair, weights: Weights, predictor: ClassPredictor | None, *, predict: bool
) -> tuple[ImagePair, ClassesFrom]:
    """Return the pair with the moving labels that choose the weights, and where they come from.

    Parameters
    ----------
    pair : ImagePair
        Images with the labels that were given.
    weights : Weights
        Weights of the run; one column leaves nothing to choose.
    predictor : ClassPredictor, optional
        Used where there are no labels.
    predict : bool
        Use it even where there are.
    """
    if len(weights.classes) == 1:
        return pair, "none"
    if pair.moving_labels is not None and not predict:
        return pair, "labels"
    if predictor is None:
        return replace(pair, moving_labels=None), "none"
    return replace(pair, moving_labels=predictor.predict(pair.moving)), "predicted"
