"""SimpleITK: diffeomorphic demons over three resolutions, with the histogram of the moving image matched or not.

``sigma`` smooths the displacement after each step, in voxels of the resolution at hand.
"""

import time
from typing import Any

import _fields

DISTRIBUTION = "SimpleITK"
SHRINK = (4, 2, 1)
STEPS = 100
SETTINGS: dict[str, dict[str, Any]] = {
    "matched, sigma 1": {"match": True, "sigma": 1.0},
    "matched, sigma 1.5": {"match": True, "sigma": 1.5},
    "matched, sigma 0.7": {"match": True, "sigma": 0.7},
    "raw, sigma 1": {"match": False, "sigma": 1.0},
}


def run(fixed_path: str, moving_path: str, out_field_path: str, setting: dict[str, Any], threads: int) -> float:
    """Register, write the field, return the seconds of the deformable stage."""
    import SimpleITK as sitk  # noqa: N813

    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(threads)
    fixed, moving = _fields.read_image(fixed_path), _fields.read_image(moving_path)
    start = time.perf_counter()
    field = _register(fixed, moving, setting)
    seconds = time.perf_counter() - start
    _fields.write(out_field_path, _fields.from_itk(sitk.GetArrayViewFromImage(field)))
    return seconds


def _register(fixed: Any, moving: Any, setting: dict[str, Any]) -> Any:
    import SimpleITK as sitk  # noqa: N813

    moving = _fields.on_grid_of(fixed, moving)
    if setting["match"]:
        moving = sitk.HistogramMatching(moving, fixed, 256, 10, True)
    demons = sitk.DiffeomorphicDemonsRegistrationFilter()
    demons.SetNumberOfIterations(STEPS)
    demons.SetSmoothDisplacementField(True)
    demons.SetStandardDeviations(setting["sigma"])
    field = None
    for shrink in SHRINK:
        small_fixed, small_moving = _shrunk(fixed, shrink), _shrunk(moving, shrink)
        if field is None:
            field = demons.Execute(small_fixed, small_moving)
        else:
            field = sitk.Resample(field, small_fixed, sitk.Transform(), sitk.sitkLinear, 0.0, field.GetPixelID())
            field = demons.Execute(small_fixed, small_moving, field)
    return field


def _shrunk(image: Any, shrink: int) -> Any:
    """Smooth and take every n-th voxel, along axes that keep at least eight of them."""
    import SimpleITK as sitk  # noqa: N813

    factors = [shrink if n // shrink >= 8 else 1 for n in image.GetSize()]
    if max(factors) == 1:
        return image
    sigmas = [0.5 * f * s if f > 1 else 1e-6 for f, s in zip(factors, image.GetSpacing(), strict=True)]
    smooth = sitk.DiscreteGaussian(image, [s * s for s in sigmas])
    return sitk.Shrink(smooth, factors)
