"""Models that come with the package, with their cards: purpose, training data, gain and licences."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from regweave.measures.statistics import patients_of
from regweave.model import shipped_models
from regweave.model.model import Model
from regweave.model.record import ModelCard, TrainingRecord
from regweave.predictors import Predictor

WIDTH = 80
"""Columns of a card."""


class Models(dict[str, Model]):
    """Models by name; printed, their cards."""

    def __repr__(self) -> str:
        return "\n\n".join(card_text(name, model) for name, model in self.items())


def models() -> Models:
    """Models that come with the package, by name; ``register(…, model=NAME)`` uses one.

    Examples
    --------
    >>> print(str(models()).splitlines()[0])
    head-neck-ct  ct
    """
    return Models((name, Model.load(path)) for name, path in shipped_models().items())


def card_text(name: str, model: Model) -> str:
    """Lay out the card of a model: images, structures, patients, gain, licence, and when not to use it."""
    record, card = model.training, ModelCard(images="") if model.card is None else model.card
    structures = ", ".join(model.class_name(c) for c in model.weights.classes[1:])
    counted = {"patients": len(patients(record.groups)), "pairs": len(record.pairs)}
    facts = {
        "images": card.images,
        "body part": card.body_part,
        "shows": card.field_of_view,
        "voxels": card.voxels,
        "structures": structures,
        "trained on": ", ".join(f"{n} {what}" for what, n in counted.items() if n),
        "data": card.data,
        "predictor": predictor_text(model),
        "gain": card.gain or "; ".join(_gains(record)),
        "licence": f"weights {card.licence or 'not named'}, training data {card.data_licence or 'not named'}",
        "made": card.made,
        "not for": card.avoid,
    }
    lines = [
        textwrap.fill(f"  {key:<12}{value}", WIDTH, subsequent_indent=" " * 14, break_long_words=False)
        for key, value in facts.items()
        if value
    ]
    return "\n".join([f"{name}  {model.modality}", *lines])


def predictor_text(model: Model) -> str | None:
    """Kind of the predictor, its size, and what left-out images said of it."""
    if model.predictor is None:
        return None
    facts = predictor_facts(model.predictor)
    dice, n = (facts["record"].get(key) for key in ("mean_dice", "n_images"))
    judged = "" if dice is None else f", mean Dice {dice:.3f} on {n} left-out images"
    return f"{facts['kind']} of {facts['numbers']:,} numbers{judged}"


def _gains(record: TrainingRecord) -> list[str]:
    """Gains in Dice on left-out patients, of the refinement's weights and of the learned columns."""
    refined = None if record.refinement is None else record.refinement.gain
    found = {"weights of the refinement": refined, "columns by structure": record.left_out_gain}
    told = {name: signed([g.mean, g.low, g.high]) for name, g in found.items() if g is not None}
    return [f"{name} {mean} Dice on left-out patients [{low}, {high}]" for name, (mean, low, high) in told.items()]


def predictor_facts(predictor: Predictor) -> dict[str, Any]:
    """Return kind, size and record of a predictor."""
    parts = predictor.save()
    return {"kind": parts.kind, "numbers": sum(a.size for a in parts.arrays.values()), "record": dict(parts.record)}


def patients(groups: Sequence[str]) -> set[str]:
    """Return the patients of groups of patients."""
    return {patient for group in groups for patient in patients_of(group)}


def signed(values: Sequence[float | None]) -> list[str]:
    """Return numbers with their sign and four decimals, a dash for None."""
    return ["-" if v is None else f"{v:+.4f}" for v in values]
