"""dipy: symmetric diffeomorphic registration on local cross-correlation."""

from __future__ import annotations

import time
from typing import Any

import _fields
import numpy as np

DISTRIBUTION = "dipy"
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {"steps": [100, 100, 25], "radius": 4, "sigma": 2.0},
    "radius 2": {"steps": [100, 100, 25], "radius": 2, "sigma": 2.0},
    "100x100x100, radius 2": {"steps": [100, 100, 100], "radius": 2, "sigma": 2.0},
    "100x100x25, sigma 1.5": {"steps": [100, 100, 25], "radius": 2, "sigma": 1.5},
}


def run(
    fixed_path: str, moving_path: str, out_field_path: str, setting: dict[str, Any], threads: int
) -> float:  # threads come by OMP_NUM_THREADS
    """Register, write the field, return the seconds of the deformable stage."""
    import nibabel
    from dipy.align.imwarp import SymmetricDiffeomorphicRegistration
    from dipy.align.metrics import CCMetric

    fixed, moving = nibabel.load(fixed_path), nibabel.load(moving_path)
    arrays = [np.asarray(image.dataobj, dtype=np.float32) for image in (fixed, moving)]
    start = time.perf_counter()
    metric = CCMetric(3, sigma_diff=setting["sigma"], radius=setting["radius"])
    method = SymmetricDiffeomorphicRegistration(metric, level_iters=setting["steps"])
    method.verbosity = 0
    mapping = method.optimize(*arrays, static_grid2world=fixed.affine, moving_grid2world=moving.affine)
    seconds = time.perf_counter() - start
    _fields.write(out_field_path, _fields.from_ras(mapping.get_forward_field()))
    return seconds
