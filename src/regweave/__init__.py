"""Deformable registration with a similarity metric learned for each anatomical structure."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from regweave.clinic.propagate import propagate_contours
    from regweave.config.presets import preset, preset_names
    from regweave.config.settings import Settings
    from regweave.errors import RegweaveError, RegweaveWarning
    from regweave.io.time_series import TimeSeries
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
    "Field",
    "Geometry",
    "Image",
    "LabelMap",
    "MetricLearner",
    "Model",
    "Progress",
    "RegweaveError",
    "RegweaveWarning",
    "Result",
    "Settings",
    "TimeSeries",
    "Transform",
    "Volume",
    "WeightTable",
    "__version__",
    "batch",
    "bids",
    "build_atlas",
    "build_template",
    "evaluate",
    "evaluate_atlas",
    "examples",
    "load",
    "measure",
    "models",
    "preset",
    "preset_names",
    "propagate_contours",
    "realign",
    "register",
    "segment",
    "train",
    "warp",
    "warp_labels",
    "warp_points",
]

_HOMES = {
    "Field": "types",
    "Geometry": "types",
    "Image": "types",
    "LabelMap": "types",
    "MetricLearner": "training.estimator",
    "Model": "model.model",
    "Progress": "progress",
    "RegweaveError": "errors",
    "RegweaveWarning": "errors",
    "Result": "run.result",
    "Settings": "config.settings",
    "TimeSeries": "io.time_series",
    "Transform": "types",
    "Volume": "types",
    "WeightTable": "types",
    "batch": "jobs.batch",
    "bids": "study.bids",
    "build_atlas": "jobs.atlas",
    "build_template": "jobs.template",
    "evaluate": "study.evaluate",
    "evaluate_atlas": "jobs.atlas",
    "examples": "study",
    "load": "run.result",
    "measure": "jobs.regions",
    "models": "model.model",
    "preset": "config.presets",
    "preset_names": "config.presets",
    "propagate_contours": "clinic.propagate",
    "realign": "run.realign",
    "register": "run.register",
    "segment": "jobs.atlas",
    "train": "training.run",
    "warp": "run.warp",
    "warp_labels": "run.warp",
    "warp_points": "run.warp",
}
"""Modules that are loaded when a name is first used: the program can speak before numpy is there."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regweave' has no attribute {name!r}")
    home = import_module(f"regweave.{_HOMES[name]}")
    found = getattr(home, name) if hasattr(home, name) else import_module(f"{home.__name__}.{name}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
