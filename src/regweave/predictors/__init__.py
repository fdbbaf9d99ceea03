"""Predictors of structures: class probabilities for images that come without a segmentation.

One file each, whose name is the predictor's name everywhere: ``Options``, ``fit(examples, options, like)`` and
``load(parts)``; the contract is in `regweave.predictors.base`.
"""

from __future__ import annotations

from typing import Any, cast

from regweave.predictors.base import Examples, Parts, Predictor, PredictorKind
from regweave.registry import Registry

__all__ = ["Examples", "Parts", "Predictor", "add", "available", "fit", "get", "load", "registry"]

registry = Registry("predictors", "predictor", "E169", ("Options", "fit", "load"))
available, add = registry.available, registry.add


def get(name: str) -> PredictorKind:
    """Return the predictor of that name."""
    return cast("PredictorKind", registry.get(name))


def fit(name: str, examples: Examples, like: Predictor | None = None, **options: Any) -> Predictor:
    """Fit a predictor to segmented images; ``like`` hands on the choices that held-out images made before."""
    return get(name).fit(examples, registry.options(name, options), like)


def load(parts: Parts) -> Predictor:
    """Return the predictor that was saved; KeyError, TypeError or ValueError where something does not fit."""
    return get(parts.kind).load(parts)
