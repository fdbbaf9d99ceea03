"""Predictors of structures: class probabilities for images that come without a segmentation.

One file each, whose name is the predictor's name everywhere: ``Options``, ``fit(examples, options, like)`` and
``load(parts)``; the contract is in `regweave.predictors.base`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from regweave.predictors.base import Examples, Parts, Predictor, PredictorKind
from regweave.registry import Registry

__all__ = ["Choice", "Examples", "Parts", "Predictor", "add", "available", "fit", "get", "load", "needs", "registry"]

registry = Registry("predictors", "predictor", "E169", ("Options", "fit", "load"))
available, add = registry.available, registry.add


def get(name: str) -> PredictorKind:
    """Return the predictor of that name."""
    return cast("PredictorKind", registry.get(name))


@dataclass(frozen=True)
class Choice:
    """A kind of predictor with its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)  # options that are not the default

    @property
    def costly(self) -> bool:
        """True if a fit takes so long that few should be made."""
        return bool(getattr(get(self.name), "COSTLY", False))

    def fit(self, examples: Examples, like: Predictor | None = None) -> Predictor:
        """Fit it to segmented images."""
        return fit(self.name, examples, like, **self.options)


def needs(name: str) -> tuple[str, str, str] | None:
    """Return what fitting a predictor needs: package, extra that brings it, and what for; None for nothing."""
    found: tuple[str, str, str] | None = getattr(get(name), "NEEDS", None)
    return found


def fit(name: str, examples: Examples, like: Predictor | None = None, **options: Any) -> Predictor:
    """Fit a predictor to segmented images; ``like`` hands on the choices that held-out images made before."""
    return get(name).fit(examples, registry.options(name, options), like)


def load(parts: Parts) -> Predictor:
    """Return the predictor that was saved; KeyError, TypeError or ValueError where something does not fit."""
    return get(parts.kind).load(parts)
