"""antspyx: the deformable stage of SyN on local cross-correlation, with the radius and steps of its ``SyNCC``."""

from __future__ import annotations

from typing import Any

from ants_syn import DISTRIBUTION, run

_CC = {"syn_metric": "CC", "syn_sampling": 4}
_LONG = {**_CC, "reg_iterations": (100, 70, 50)}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": _CC,
    "100x70x50": _LONG,
    "100x70x50, radius 2": {**_LONG, "syn_sampling": 2},
    "100x70x50, flow 2": {**_LONG, "flow_sigma": 2},
}

__all__ = ["DISTRIBUTION", "SETTINGS", "run"]
