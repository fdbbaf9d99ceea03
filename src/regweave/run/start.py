"""Start and guides of a pair: the headers, a method or a transform of any source; landmarks, structures by name."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from regweave import io, notices
from regweave.config.settings import metric_weights
from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import exists
from regweave.io.labels import normalised
from regweave.io.points import read_guides
from regweave.io.transforms.files import require_direction
from regweave.measures.landmarks import LandmarkPairs
from regweave.measures.scores import dice
from regweave.model.model import Model
from regweave.registration.guides import choose, guides_of
from regweave.registration.initial import METHODS, STRUCTURES, initial_affine
from regweave.registration.landmarks import PointGuides
from regweave.run import read, resolve
from regweave.run.record import GuidesRecord
from regweave.spatial.warp import warp_labels
from regweave.types import Field, Guides, ImagePair, LabelMap, Transform

REJECTED = ("W210", "W216")  # warnings that a start was rejected
MOST_MM = 1000.0  # largest accuracy of landmarks


def require_start(init: Any, model: Model | None, *, guided: bool = False) -> None:
    """Refuse a start that is neither a method nor a file, or that needs structures: E187, before anything is read."""
    if not isinstance(init, str | Path):
        return
    if str(init) == STRUCTURES and resolve.predictor_of(model) is None and not guided:
        message = f"the start '{STRUCTURES}' needs a model whose predictor segments images, or labels that guide"
        raise UsageError("E187", message, "give --model with a predictor, --guide, or --init affine")
    if str(init) not in METHODS and not exists(init):
        near = difflib.get_close_matches(str(init)[:100], METHODS, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise UsageError("E187", f"unknown start '{init}'", f"{guess}use {', '.join(METHODS)}, or a transform file")


def start_pair(inputs: read.Inputs, init: Any, *, follow_links: bool = False, alone: bool = False) -> ImagePair:
    """Bring the pair to its start: the headers, moments, a rigid or affine fit, or a transform of any source.

    With ``alone`` the fit is the whole result.
    """
    require_start(init, None, guided=True)
    affine, field, fixed = np.eye(4), None, inputs.fixed.geometry
    named = isinstance(init, str | Path)
    if named and str(init) in METHODS:
        affine = initial_affine(inputs.fixed, inputs.moving, str(init), alone=alone)
    else:
        transform = io.read_transform(init, fixed, follow_links=follow_links)
        subject = str(init) if named else "the start"
        if transform.ends is not None:
            require_direction(transform.ends, "fixed_to_moving", subject)
        io.check_same_grid(fixed, transform.field.geometry, subject)
        affine, field = transform.affine, Field(transform.field.data, fixed)
        if np.linalg.det(affine[:3, :3]) < 0:
            message = f"{subject} mirrors the patient, left to right or along another axis"
            raise RegweaveError("E115", message, "give a start without a mirror, in the axes of ITK")
    io.check_overlap(fixed, inputs.moving.geometry, affine)
    return ImagePair(inputs.fixed, inputs.moving, affine, None if field is None or not field.data.any() else field)


def read_landmarks(fixed: Any, moving: Any, accuracy_mm: Any) -> LandmarkPairs | None:
    """Read the landmarks of a job, where there are any; E116 for an accuracy that is no length up to `MOST_MM`."""
    if all(given is None for given in (fixed, moving, accuracy_mm)):
        return None
    landmarks = LandmarkPairs.read(fixed, moving)
    number = isinstance(accuracy_mm, int | float) and not isinstance(accuracy_mm, bool)
    if accuracy_mm is not None and not (number and 0 < accuracy_mm <= MOST_MM):
        message = f"guide_points is {accuracy_mm!r}, needed is an accuracy in mm above 0 and up to {MOST_MM:g}"
        raise UsageError("E116", message, "give the standard deviation of their places, such as 1")
    return landmarks


def point_guides(
    landmarks: LandmarkPairs, source: Any, accuracy_mm: float, pair: ImagePair
) -> tuple[PointGuides, LandmarkPairs]:
    """Return the landmarks that guide a pair, and all of them with their parts; a .csv ``source`` may name these.

    Raises E116 where no landmark can guide, or the file does not name them as it should.
    """
    asked = read_guides(source) if isinstance(source, str | Path) else None
    at = np.flatnonzero([True] * len(landmarks.fixed) if asked is None else asked)
    names = [landmarks.named[n] for n in at]
    guides, used = PointGuides.of(landmarks.fixed[at], landmarks.moving[at], names, accuracy_mm, pair)
    parts = np.isin(np.arange(len(landmarks.fixed)), at[used])
    return guides, replace(landmarks, guides=parts.tolist())


def used_start(init: Any, pair: ImagePair, warned: Sequence[str], warned_later: Sequence[str]) -> tuple[str, str]:
    """Return the method that aligned a pair, empty for a transform, and why it is not the requested one.

    ``pair`` is as the images alone were aligned; ``warned`` are the warnings of that, ``warned_later`` those of the
    alignment of structures.
    """
    if not isinstance(init, str) or init not in METHODS:
        return "", ""
    rejected, later = (
        [text.partition(": ")[2] for text in texts if text.startswith(REJECTED)] for texts in (warned, warned_later)
    )
    if init == "rigid" and np.array_equal(pair.initial, np.eye(4)):
        return "none", rejected[0] if rejected else "the headers already align the images as well as the rigid fit"
    if init == STRUCTURES and not later:
        return STRUCTURES, ""
    used = "moments" if rejected else "affine" if init == STRUCTURES else init
    return used, "; ".join([*rejected[:1], *later])


Guide: TypeAlias = "bool | str | Sequence[str] | Mapping[str, float]"
"""All structures or none, names of some (in one text with commas or semicolons between), or weights by name."""
WORDS = {"all": True, "yes": True, "no": False}  # words of a cell of a list
MOST_WEIGHT = 100.0  # largest weight of a structure, against the usual one
HINT = f"give names of structures, or by name weights above 0 and up to {MOST_WEIGHT:g}"
FAR_APART = 0.4  # where the mean Dice of the guides at the start is below this, they guide the start and the levels too


def asked_guides(guide: Guide, *, only: bool = False) -> dict[str, float] | None:
    """Return weights of the structures that are to guide by name; empty for all structures, None for no guides.

    Raises E128 for what is neither a name nor a weight above 0.
    """
    if isinstance(guide, str) and guide.strip().lower() in WORDS:
        guide = WORDS[guide.strip().lower()]
    if isinstance(guide, bool):
        return {} if guide or only else None
    if not isinstance(guide, str | Mapping | Sequence):
        raise UsageError("E128", f"structures to guide: found a {type(guide).__name__}", HINT)
    listed = re.split("[,;]", guide) if isinstance(guide, str) else guide
    found = metric_weights(listed, "E128", "structure") or {}
    asked = {name.strip() if isinstance(name, str) else "": weight for name, weight in found.items()}
    wrong = [f"{name}={weight:g}" for name, weight in asked.items() if not 0 < weight <= MOST_WEIGHT]
    if wrong or not asked or "" in asked:
        raise UsageError("E128", f"structures to guide: {', '.join(wrong) or 'a name is missing'}", HINT)
    return asked


def require_labels(asked: Mapping[str, float] | None, fixed_labels: object, moving_labels: object) -> None:
    """Raise E128 where structures are to guide and a label map is missing."""
    missing = [f"--{w}-labels" for w, one in (("fixed", fixed_labels), ("moving", moving_labels)) if one is None]
    if asked is not None and missing:
        message = f"structures of both images are to guide, and {' and '.join(missing)} are missing"
        raise UsageError("E128", message, "give the label maps of both images, or leave --guide out")


def guiding(
    pair: ImagePair, recipe: resolve.Recipe, asked: Mapping[str, float], *, only: bool, anyway: bool
) -> tuple[Guides, GuidesRecord]:
    """Choose the structures that guide among those ``asked`` for by name, and make their maps and their record.

    With ``only`` nothing else guides; with ``anyway`` structures that seem exchanged guide too. Raises E128 where the
    settings have no refinement, neither label map has a structure of a name, or none may guide. Warns with W252 of
    structures that do not guide, with W253 of those that seem exchanged.
    """
    fixed, moving = pair.fixed.labels, pair.moving.labels
    assert fixed is not None
    assert moving is not None
    if not recipe.settings.refine.steps or not (only or recipe.schedule.continuous):
        message = f"the settings {recipe.schedule.name!r} have no refinement with members, where structures guide"
        raise UsageError("E128", message, "use --preset default, or leave --guide out")
    learned, to = recipe.learned_guides or {}, {} if recipe.match is None else recipe.match.to
    weights = {v: weight * learned.get(to.get(v, 0), 1.0) for v, weight in _values(fixed, moving, asked).items()}
    found = choose(pair.fixed, pair.moving, weights, anyway=anyway)
    for a, b in found.exchanged:
        what = "they guide all the same" if anyway else "neither guides; to guide by them, give --guide-anyway"
        notices.warn(
            f"W253: {moving.name(a)} and {moving.name(b)} seem to be exchanged in one of the label maps, by their "
            f"places and volumes: {what}"
        )
    if not found.weights:
        reasons = _listed(found.left_out)
        raise RegweaveError("E128", f"no structure can guide ({reasons})", "give other labels, or leave --guide out")
    named = {moving.name(value) for two in found.exchanged for value in two}
    if reasons := _listed({name: reason for name, reason in found.left_out.items() if name not in named}):
        notices.warn(f"W252: structures do not guide ({reasons})")
    stage = recipe.settings.refine.stages(pair.fixed.geometry, recipe.schedule.bank_name)[-1]
    grids = stage.factors(pair.fixed.geometry), stage.factors(pair.moving.geometry)
    start = Transform(pair.initial_field or Field.zero(pair.fixed.geometry), pair.initial)
    scores = dice(warp_labels(moving, start).data, fixed.data, list(found.weights))
    levels = sum(scores.values()) / len(found.weights) < FAR_APART
    names = {value: moving.name(value) for value in found.weights}
    record = GuidesRecord(
        weights=found.weights, names=names, left_out=found.left_out, levels=levels, only=only,
        learned=bool(learned),
    )  # fmt: skip
    return guides_of(pair.fixed, pair.moving, found, grids), record


def _listed(left_out: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in left_out.items())


def _values(fixed: LabelMap, moving: LabelMap, asked: Mapping[str, float]) -> dict[int, float]:
    """Return weights by label; the names of either label map count, in any spelling."""
    every = sorted({*fixed.values(), *moving.values()})
    if not asked:
        return dict.fromkeys(every, 1.0)
    known = {normalised(labels.name(value)): value for labels in (fixed, moving) for value in every}
    unknown = [name for name in asked if normalised(name) not in known]
    values = {known[normalised(name)]: weight for name, weight in asked.items() if not unknown}
    if unknown or len(values) < len(asked):
        what = f"no label map has {', '.join(map(repr, unknown))}" if unknown else "names of one structure twice"
        there = ", ".join(moving.names.get(value, fixed.name(value)) for value in every)
        raise UsageError("E128", f"structures to guide: {what}", f"give each once; there are {there}")
    return values
