"""Deformable registration with a similarity metric learned for each anatomical structure."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from regweave.clinic.propagate import propagate_contours
    from regweave.config.settings import Settings, preset, preset_names
    from regweave.errors import RegweaveError, RegweaveWarning
    from regweave.io.write import TimeSeries
    from regweave.jobs.atlas import build_atlas, evaluate_atlas, segment
    from regweave.jobs.batch import batch
    from regweave.jobs.regions import measure
    from regweave.jobs.template import build_template
    from regweave.model.model import Model, models
    from regweave.progress import Progress
    from regweave.run.realign import realign
    from regweave.run.register import register
    from regweave.run.result import Result, load
    from regweave.run.warp import warp, warp_labels, warp_points
    from regweave.study import examples
    from regweave.study.bids import bids
    from regweave.study.evaluate import evaluate
    from regweave.training.estimator import MetricLearner
    from regweave.training.run import train
    from regweave.types import Field, Geometry, Image, LabelMap, Transform, Volume, WeightTable

__all__ = [
    "Field", "Geometry", "Image", "LabelMap", "MetricLearner", "Model", "Progress", "RegweaveError",
    "RegweaveWarning", "Result", "Settings", "TimeSeries", "Transform", "Volume", "WeightTable", "__version__",
    "batch", "bids", "build_atlas", "build_template", "evaluate", "evaluate_atlas", "examples", "load", "measure",
    "models", "preset", "preset_names", "propagate_contours", "realign", "register", "segment", "train", "warp",
    "warp_labels", "warp_points",
]  # fmt: skip

_MODULES = {
    "clinic.propagate": "propagate_contours",
    "config.settings": "Settings preset preset_names",
    "errors": "RegweaveError RegweaveWarning",
    "io.write": "TimeSeries",
    "jobs.atlas": "build_atlas evaluate_atlas segment",
    "jobs.batch": "batch",
    "jobs.regions": "measure",
    "jobs.template": "build_template",
    "model.model": "Model models",
    "progress": "Progress",
    "run.realign": "realign",
    "run.register": "register",
    "run.result": "Result load",
    "run.warp": "warp warp_labels warp_points",
    "study": "examples",
    "study.bids": "bids",
    "study.evaluate": "evaluate",
    "training.estimator": "MetricLearner",
    "training.run": "train",
    "types": "Field Geometry Image LabelMap Transform Volume WeightTable",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}
"""Modules that are loaded when a name is first used: the program can print its version without numpy."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regweave' has no attribute {name!r}")
    home = import_module(f"regweave.{_HOMES[name]}")
    found = getattr(home, name) if hasattr(home, name) else import_module(f"{home.__name__}.{name}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
