"""Inside doors of the package that the frozen results need: the one file here that follows a move of modules."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.datasets.cohort import cohort_pair
from regweave.datasets.phantom import make_phantom
from regweave.datasets.planted import planted_pair
from regweave.models.model import read_model, shipped_models

__all__ = ["field_of", "model_classes", "phantom", "shipped_models"]

RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
Part = tuple[NDArray[Any], NDArray[np.float64]]
"""Voxels and the RAS affine, as `regweave.register` takes them."""


def phantom(kind: str, seed: int) -> dict[str, Part]:
    """Return the images and labels of a small generated pair."""
    if kind == "head-neck":
        pair = make_phantom(seed=seed, shape=(26, 24, 22), spacing_mm=(8.0, 8.0, 9.0)).pair
    else:
        pair = {"planted": planted_pair, "cohort": cohort_pair}[kind](seed, (28, 26, 24))
    parts = {name: getattr(pair, name) for name in ("fixed", "moving", "fixed_labels", "moving_labels")}
    return {name: (part.data, RAS @ part.geometry.affine) for name, part in parts.items()}


def model_classes(name: str) -> tuple[str, tuple[int, ...]]:
    """Return the modality of a shipped model and the labels that it knows."""
    model = read_model(name)
    return model.modality, model.weights.classes


def field_of(result: Any) -> NDArray[np.float32]:
    """Return the displacements of a result in LPS mm, shape (3, X, Y, Z)."""
    field: NDArray[np.float32] = result.transform.field.data
    return field
