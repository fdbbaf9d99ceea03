"""Choice of a class predictor by segmentation Dice of left-out patients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from regweave import predictors
from regweave.predictors import Predictor
from regweave.training.log import TrainingLog
from regweave.training.predictors_by_fold import Predictors


def choose_predictors(kinds: Sequence[Predictors], log: TrainingLog) -> tuple[Predictors, Mapping[str, Any] | None]:
    """Take the kind that segments left-out patients best.

    Parameters
    ----------
    kinds : sequence of Predictors
        Kinds to choose from; of equals the first is taken.
    log : TrainingLog
        Is told what each kind has reached.

    Returns
    -------
    Predictors
        Of the kind that was taken.
    mapping or None
        Its name, ``kind``, and what left-out patients said of each, ``left_out``; None where there is no choice and a
        predictor that is cheap judges itself as it is fitted.
    """
    if len(kinds) == 1 and not kinds[0].kind.costly:
        return kinds[0], None
    found: dict[str, Mapping[str, Any]] = {}
    for predictor in kinds:
        name = predictor.kind.name
        log.tell("predictor", f"{name}: fitted, each time without some patients")
        found[name] = predictor.left_out()
        log.tell("predictor", f"{name}: {in_words(found[name])}")
    best = max(kinds, key=lambda predictor: found[predictor.kind.name].get("mean_dice", 0.0))
    return best, {"kind": best.kind.name, "left_out": found}


def with_record(predictor: Predictor, choice: Mapping[str, Any] | None) -> Predictor:
    """Return a predictor with what left-out patients said of its kind, where it does not say so itself."""
    parts = predictor.save()
    if choice is None or "mean_dice" in parts.record:
        return predictor
    return predictors.load(replace(parts, record={**parts.record, **choice["left_out"][choice["kind"]]}))


def in_words(left_out: Mapping[str, Any]) -> str:
    """Say what left-out patients said of a predictor.

    Examples
    --------
    >>> in_words({"mean_dice": 0.8123, "n_images": 12})
    'mean Dice 0.812 on 12 images of left-out patients'
    """
    if "mean_dice" not in left_out:
        return "too few patients to judge it"
    return f"mean Dice {left_out['mean_dice']:.3f} on {left_out['n_images']} images of left-out patients"
