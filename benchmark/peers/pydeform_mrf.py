"""pydeform: dense discrete registration by graph cuts, its metrics weighted by hand.

``step_voxels`` is the step of the solver, ``regularization_weight`` between 0 and 1 the share of the smoothness.
"""

from __future__ import annotations

import time
from typing import Any

import _fields
import numpy as np

DISTRIBUTION = "pydeform"
_NCC = [{"function": "ncc", "weight": 1.0, "radius": 2}]
_BOTH = [{"function": "ssd", "weight": 0.3}, {"function": "ncc", "weight": 0.7, "radius": 2}]
SETTINGS: dict[str, dict[str, Any]] = {
    "ssd 0.3, ncc 0.7, weight 0.1": {"cost_function": _BOTH, "regularization_weight": 0.1, "step_voxels": 0.5},
    "ncc, weight 0.1": {"cost_function": _NCC, "regularization_weight": 0.1, "step_voxels": 0.5},
    "ncc, weight 0.25": {"cost_function": _NCC, "regularization_weight": 0.25, "step_voxels": 0.5},
    "ssd 0.3, ncc 0.7, weight 0.25": {"cost_function": _BOTH, "regularization_weight": 0.25, "step_voxels": 0.5},
}


def run(fixed_path: str, moving_path: str, out_field_path: str, setting: dict[str, Any], threads: int) -> float:
    """Register, write the field, return the seconds of the deformable stage."""
    import SimpleITK as sitk  # noqa: N813
    from pydeform import sitk_api

    fixed, moving = _fields.read_image(fixed_path), _fields.read_image(moving_path)
    # Levels halve the image; below eight voxels there is nothing left to match.
    levels = max(1, int(np.log2(min(fixed.GetSize()) / 8)) + 1)
    settings = {
        "pyramid_levels": levels,
        "pyramid_stop_level": 0,
        "block_size": [16, 16, 16],
        "block_energy_epsilon": 1e-6,
        "step_size": setting["step_voxels"] * min(fixed.GetSpacing()),
        "regularization_weight": setting["regularization_weight"],
        "image_slots": [
            {"resampler": "gaussian", "normalize": True, "cost_function": setting["cost_function"]},
        ],
    }
    start = time.perf_counter()
    field = sitk_api.register(fixed, moving, settings=settings, num_threads=threads)
    seconds = time.perf_counter() - start
    _fields.write(out_field_path, _fields.from_itk(sitk.GetArrayViewFromImage(field)))
    return seconds
