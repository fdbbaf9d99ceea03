"""antspyx: the deformable stage of SyN on local cross-correlation, with the radius and steps of its ``SyNCC``."""

from __future__ import annotations

from typing import Any

from ants_syn import DISTRIBUTION, run

_CC = {"syn_metric": "CC", "syn_sampling": 4}
# Longer schedules take minutes for a small image.
SETTINGS: dict[str, dict[str, Any]] = {"default": _CC, "radius 2": {**_CC, "syn_sampling": 2}}

__all__ = ["DISTRIBUTION", "SETTINGS", "run"]
