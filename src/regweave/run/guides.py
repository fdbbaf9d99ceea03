"""Guides of one registration: structures chosen by name, those that may guide, their maps and their record."""

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from regweave import notices
from regweave.config.settings import metric_weights
from regweave.errors import RegweaveError, UsageError
from regweave.io.labels import normalised
from regweave.measures.scores import dice
from regweave.registration.guides import choose, guides_of
from regweave.run.record import GuidesRecord
from regweave.run.resolve import Recipe
from regweave.spatial.warp import warp_labels
from regweave.types import Field, Guides, ImagePair, LabelMap, Transform

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
    pair: ImagePair, recipe: Recipe, asked: Mapping[str, float], *, only: bool, anyway: bool
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
    stage = recipe.settings.refine.stages(pair.fixed.geometry, recipe.bank)[-1]
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
