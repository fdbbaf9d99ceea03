"""Inside doors of the package that the frozen results need: the one file here that follows a move of modules."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cohort import cohort_pair
from phantoms import make_phantom
from planted import planted_pair
from regweave.io.disk import records
from regweave.jobs import workers
from regweave.model import shipped_models
from regweave.model.model import Model
from regweave.report.demo import write_page
from regweave.study import demo
from regweave.training.run import train

__all__ = ["field_of", "learn_demo", "little_work", "model_classes", "phantom", "shipped_models"]

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
        patch.setattr(workers, "on_processes", here)
        patch.setattr(demo, "OPTIONS", replace(demo.OPTIONS, alpha=1.0, epsilon=0.1, predictor_options=QUICK))
        patch.setattr(demo, "SETTINGS", demo.SETTINGS.model_copy(update={"levels": demo.SETTINGS.levels[:1]}))
        yield


def learn_demo(folder: Path, train_list: Path, test_list: Path) -> None:
    """Do what the demo does with its two lists of phantoms."""
    folder.mkdir()
    options = vars(demo.OPTIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = train(train_list, folder / records.DEMO_MODEL, config=demo.SETTINGS, workers=1, **options)
        demo.assess(folder, train_list, test_list, model, workers=1, on_progress=None)
        write_page(folder, all_pages=True)
