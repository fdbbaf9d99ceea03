"""antspyx: the deformable stage of SyN (``SyNOnly``) on mutual information; the call also warps both images."""

import tempfile
import time
from typing import Any

import _fields

DISTRIBUTION = "antspyx"
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "100x70x50": {"reg_iterations": (100, 70, 50)},
    "100x70x50, flow 2": {"reg_iterations": (100, 70, 50), "flow_sigma": 2},
    "100x70x50, total 0.5": {"reg_iterations": (100, 70, 50), "total_sigma": 0.5},
}


def run(
    fixed_path: str, moving_path: str, out_field_path: str, setting: dict[str, Any], threads: int
) -> float:  # threads come by ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS, read at import
    """Register, write the field, return the seconds of the deformable stage."""
    import ants

    fixed, moving = ants.image_read(fixed_path), ants.image_read(moving_path)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        out = ants.registration(
            fixed,
            moving,
            type_of_transform="SyNOnly",
            initial_transform="Identity",
            outprefix=f"{folder}/peer",
            **setting,
        )
        seconds = time.perf_counter() - start
        # The list ends with the identity that the registration started from.
        warp = next(name for name in out["fwdtransforms"] if name.endswith("Warp.nii.gz"))
        _fields.write(out_field_path, ants.image_read(warp).numpy().transpose(3, 0, 1, 2))
    return seconds
