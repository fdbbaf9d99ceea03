"""The three problems of the paper: one minimisation, three coefficients of the loss."""

from __future__ import annotations

from typing import Any

from regweave.config.settings import Schedule
from regweave.registration.align import Alignment, align
from regweave.types import ImagePair, WeightTable


def register(pair: ImagePair, weights: WeightTable, schedule: Schedule, **options: Any) -> Alignment:
    """Predict the deformation: minimise w·Ψ(x, D), eq. (2)."""
    return align(pair, weights, schedule, 0.0, **options)


def impute(pair: ImagePair, weights: WeightTable, schedule: Schedule, eta: float, **options: Any) -> Alignment:
    """Find the deformation that explains the masks: minimise w·Ψ(x, D) + η·Δ, eq. (9)."""
    return align(pair, weights, schedule, eta, **options)


def violate(pair: ImagePair, weights: WeightTable, schedule: Schedule, **options: Any) -> Alignment:
    """Find the most violated constraint: minimise w·Ψ(x, D) − Δ, eq. (11)."""
    return align(pair, weights, schedule, -1.0, **options)
