"""Deformable registration with a similarity metric learned for each anatomical structure."""

from __future__ import annotations

__version__ = "0.1.0"

from regweave.registration.settings import Settings, preset, preset_names
from regweave.workflows.learner import MetricLearner
from regweave.workflows.register import Progress, register
from regweave.workflows.result import Result

__all__ = ["MetricLearner", "Progress", "Result", "Settings", "__version__", "preset", "preset_names", "register"]
