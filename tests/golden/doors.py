"""Inside doors of the package that the frozen results need: the one file here that follows a move of modules."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cohort import cohort_pair
from phantoms import make_phantom
from planted import planted_pair
from regweave.jobs import store, workers
from regweave.model import shipped_models
from regweave.model.model import Model
from regweave.study import demo

__all__ = ["field_of", "little_work", "model_classes", "phantom", "shipped_models"]

QUICK = {"samples": 1000, "steps": 5}
RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
Part = tuple[NDArray[Any], NDArray[np.float64]]
"""Voxels and the RAS affine, as `regweave.register` takes them."""


def phantom(kind: str, seed: int) -> dict[str, Part]:
    """Return the images and labels of a small generated pair."""
    if kind == "head-neck":
        pair = make_phantom(seed=seed, shape=(26, 24, 22), spacing_mm=(8.0, 8.0, 9.0)).pair
    elif kind == "tiny":
        pair = make_phantom(seed=seed, shape=(18, 18, 16), spacing_mm=(11.0, 11.0, 12.0)).pair
    else:
        pair = {"planted": planted_pair, "cohort": cohort_pair}[kind](seed, (28, 26, 24))
    parts = {name: getattr(pair, name) for name in ("fixed", "moving", "fixed_labels", "moving_labels")}
    return {name: (part.data, RAS @ part.geometry.affine) for name, part in parts.items()}


def model_classes(name: str) -> tuple[str, tuple[int, ...]]:
    """Return the modality of a shipped model and the labels that it knows."""
    model = Model.load(name)
    return model.modality, model.weights.classes


def field_of(result: Any) -> NDArray[np.float32]:
    """Return the displacements of a result in LPS mm, shape (3, X, Y, Z)."""
    field: NDArray[np.float32] = result.transform.field.data
    return field


@contextmanager
def little_work() -> Iterator[None]:
    """Run batches in this process, and a short demo."""

    def here(function: Any, arguments: Any, _n: int) -> Iterator[Any]:
        for index, argument in enumerate(arguments):
            yield index, workers.attempt(function, argument)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "on_processes", here)
        patch.setattr(demo, "OPTIONS", replace(demo.OPTIONS, alpha=1.0, epsilon=0.1, predictor_options=QUICK))
        patch.setattr(demo, "SETTINGS", demo.SETTINGS.model_copy(update={"levels": demo.SETTINGS.levels[:1]}))
        yield
