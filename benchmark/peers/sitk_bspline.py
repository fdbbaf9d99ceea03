"""SimpleITK: B-splines on mutual information with L-BFGS, the mesh refined over three resolutions."""

from __future__ import annotations

import time
from typing import Any

import _fields

DISTRIBUTION = "SimpleITK"
SETTINGS: dict[str, dict[str, Any]] = {
    "MI, grid 8 voxels": {"metric": "mi", "grid_voxels": 8},
    "MI, grid 5 voxels": {"metric": "mi", "grid_voxels": 5},
    "correlation, grid 8 voxels": {"metric": "correlation", "grid_voxels": 8},
    "correlation, grid 5 voxels": {"metric": "correlation", "grid_voxels": 5},
}


def run(fixed_path: str, moving_path: str, out_field_path: str, setting: dict[str, Any], threads: int) -> float:
    """Register, write the field, return the seconds of the deformable stage."""
    import SimpleITK as sitk  # noqa: N813

    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(threads)
    fixed, moving = _fields.read_image(fixed_path), _fields.read_image(moving_path)
    start = time.perf_counter()
    transform = _method(fixed, setting).Execute(fixed, moving)
    seconds = time.perf_counter() - start
    field = sitk.TransformToDisplacementField(
        transform, sitk.sitkVectorFloat64, fixed.GetSize(), fixed.GetOrigin(), fixed.GetSpacing(), fixed.GetDirection()
    )
    _fields.write(out_field_path, _fields.from_itk(sitk.GetArrayViewFromImage(field)))
    return seconds


def _method(fixed: Any, setting: dict[str, Any]) -> Any:
    import SimpleITK as sitk  # noqa: N813

    method = sitk.ImageRegistrationMethod()
    metrics = {
        "mi": lambda: method.SetMetricAsMattesMutualInformation(32),
        "correlation": method.SetMetricAsCorrelation,
    }
    metrics[setting["metric"]]()
    # The mesh of the first resolution is a quarter of the last; a B-spline needs one cell at least.
    cells = [max(1, round(n / setting["grid_voxels"] / 4)) for n in fixed.GetSize()]
    start = sitk.BSplineTransformInitializer(fixed, cells, order=3)
    method.SetInitialTransformAsBSpline(start, inPlace=True, scaleFactors=[1, 2, 4])
    # L-BFGS-B refuses the finer mesh of the second resolution.
    method.SetOptimizerAsLBFGS2(solutionAccuracy=1e-5, numberOfIterations=60, deltaConvergenceTolerance=1e-5)
    method.SetShrinkFactorsPerLevel([4, 2, 1] if min(fixed.GetSize()) >= 32 else [1, 1, 1])
    method.SetSmoothingSigmasPerLevel([2, 1, 0])
    method.SmoothingSigmasAreSpecifiedInPhysicalUnitsOff()
    method.SetInterpolator(sitk.sitkLinear)
    return method
