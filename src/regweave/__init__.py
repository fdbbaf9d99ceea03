"""Deformable registration with a similarity metric learned for each anatomical structure."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from regweave.config.settings import Settings, preset, preset_names
    from regweave.pipeline.register import Progress, register
    from regweave.pipeline.result import Result
    from regweave.pipeline.saved import load
    from regweave.training.estimator import MetricLearner

__all__ = [
    "MetricLearner",
    "Progress",
    "Result",
    "Settings",
    "__version__",
    "load",
    "preset",
    "preset_names",
    "register",
]

_HOMES = {
    "MetricLearner": "training.estimator",
    "Progress": "pipeline.register",
    "Result": "pipeline.result",
    "Settings": "config.settings",
    "load": "pipeline.saved",
    "preset": "config.settings",
    "preset_names": "config.settings",
    "register": "pipeline.register",
}
"""Modules that are loaded when a name is first used: the program can speak before numpy is there."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regweave' has no attribute {name!r}")
    found = getattr(import_module(f"regweave.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
