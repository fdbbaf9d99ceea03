"""picsl_greedy: greedy diffeomorphic registration on local correlation, patches of 5×5×5 voxels by default."""

import time
from typing import Any

import _fields
import numpy as np

DISTRIBUTION = "picsl_greedy"
FEWEST_VOXELS = 4
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {"steps": [100, 50, 10], "words": ""},
    "100x100x100": {"steps": [100, 100, 100], "words": ""},
    "100x100x100, smooth 1.2 0.5": {"steps": [100, 100, 100], "words": "-s 1.2vox 0.5vox"},
    "100x100x100, smooth 0.8 0.3": {"steps": [100, 100, 100], "words": "-s 0.8vox 0.3vox"},
}


def run(fixed_path: str, moving_path: str, out_field_path: str, setting: dict[str, Any], threads: int) -> float:
    """Register, write the field, return the seconds of the deformable stage."""
    import SimpleITK as sitk  # noqa: N813
    from picsl_greedy import Greedy3D

    fixed, moving = _fields.read_image(fixed_path), _fields.read_image(moving_path)
    # Each level halves the image, and greedy's smoothing refuses fewer than four slices.
    levels = max(1, int(np.log2(min(*fixed.GetSize(), *moving.GetSize()) / FEWEST_VOXELS)) + 1)
    steps = "x".join(map(str, setting["steps"][:levels]))
    greedy = Greedy3D()
    start = time.perf_counter()
    greedy.execute(
        f"-d 3 -float -threads {threads} -i fixed moving -m NCC 2x2x2 -n {steps} {setting['words']} -o warp -V 0",
        fixed=fixed,
        moving=moving,
        warp=None,
    )
    seconds = time.perf_counter() - start
    warp = greedy["warp"]  # a view does not keep its image: one of a temporary image reads memory that was given back
    _fields.write(out_field_path, _fields.from_itk(sitk.GetArrayViewFromImage(warp)))
    return seconds
