"""convexAdam: discrete search on MIND features, then Adam; on the processor.

``grid_sp`` is the spacing of the search in voxels, ``disp_hw`` its half width in steps of that spacing.
"""

from __future__ import annotations

import time
from typing import Any

import _fields

DISTRIBUTION = "convexAdam"
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "grid 4": {"grid_sp": 4, "disp_hw": 4},
    "grid 3, smooth 3": {"grid_sp": 3, "disp_hw": 4, "selected_smooth": 3},
    "grid 2, weight 0.75": {"grid_sp": 2, "disp_hw": 5, "lambda_weight": 0.75},
}


def run(fixed_path: str, moving_path: str, out_field_path: str, setting: dict[str, Any], threads: int) -> float:
    """Register, write the field, return the seconds of the deformable stage."""
    import SimpleITK as sitk  # noqa: N813
    import torch
    from convexAdam.convex_adam_MIND import convex_adam_pt

    torch.set_num_threads(threads)
    fixed, moving = _fields.read_image(fixed_path), _fields.read_image(moving_path)
    start = time.perf_counter()
    arrays = [
        torch.from_numpy(sitk.GetArrayFromImage(image).transpose(2, 1, 0).copy())
        for image in (fixed, _fields.on_grid_of(fixed, moving))
    ]
    displacement = convex_adam_pt(*arrays, dtype=torch.float32, device=torch.device("cpu"), **setting)
    seconds = time.perf_counter() - start
    _fields.write(out_field_path, _fields.from_voxels(displacement, fixed))
    return seconds
