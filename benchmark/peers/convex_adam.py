"""convexAdam: coupled convex optimisation and Adam on MIND features, with its own defaults, on the processor."""

import time
from typing import Any

import _fields
import numpy as np

DISTRIBUTION = "convexAdam"
SETTINGS: dict[str, dict[str, Any]] = {"default": {}}


def run(fixed_path: str, moving_path: str, out_field_path: str, setting: dict[str, Any], threads: int) -> float:
    """Register, write the field, return the seconds of the deformable stage."""
    import SimpleITK as sitk  # noqa: N813
    import torch
    from convexAdam.convex_adam_MIND import convex_adam_pt

    torch.set_num_threads(threads)
    fixed, moving = _fields.read_image(fixed_path), _fields.read_image(moving_path)
    arrays = [sitk.GetArrayFromImage(one).T.copy() for one in (fixed, _fields.on_grid_of(fixed, moving))]
    start = time.perf_counter()
    voxels = convex_adam_pt(*arrays, device=torch.device("cpu"), dtype=torch.float32, **setting)
    seconds = time.perf_counter() - start
    axes = np.array(fixed.GetDirection()).reshape(3, 3) * fixed.GetSpacing()
    _fields.write(out_field_path, np.einsum("ij,xyzj->ixyz", axes, voxels))
    return seconds
