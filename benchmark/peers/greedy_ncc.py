"""picsl_greedy: greedy diffeomorphic registration on local correlation, patches of 5×5×5 voxels by default."""

from __future__ import annotations

import time
from typing import Any

import _fields

DISTRIBUTION = "picsl_greedy"
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {"words": "-m NCC 2x2x2 -n 100x50x10"},
    "100x100x100": {"words": "-m NCC 2x2x2 -n 100x100x100"},
    "100x100x100, smooth 1.2 0.5": {"words": "-m NCC 2x2x2 -n 100x100x100 -s 1.2vox 0.5vox"},
    "100x100x100, smooth 3 1": {"words": "-m NCC 2x2x2 -n 100x100x100 -s 3vox 1vox"},
}


def run(fixed_path: str, moving_path: str, out_field_path: str, setting: dict[str, Any], threads: int) -> float:
    """Register, write the field, return the seconds of the deformable stage."""
    import SimpleITK as sitk  # noqa: N813
    from picsl_greedy import Greedy3D

    fixed, moving = _fields.read_image(fixed_path), _fields.read_image(moving_path)
    greedy = Greedy3D()
    start = time.perf_counter()
    greedy.execute(
        f"-d 3 -float -threads {threads} -i fixed moving {setting['words']} -o warp -V 0",
        fixed=fixed,
        moving=moving,
        warp=None,
    )
    seconds = time.perf_counter() - start
    _fields.write(out_field_path, _fields.from_itk(sitk.GetArrayViewFromImage(greedy["warp"])))
    return seconds
