"""itk-elastix: B-splines on mutual information, from the default parameter map of the toolbox.

In a setting, keys of the parameter map replace its values; ``grid_voxels`` is the final spacing of the B-splines in
voxels of the fixed image.
"""

from __future__ import annotations

import time
from typing import Any

import _fields

DISTRIBUTION = "itk-elastix"
_LONG = {"MaximumNumberOfIterations": ["500"], "NumberOfSpatialSamples": ["4096"]}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "grid 5 voxels, 500 steps": {**_LONG, "grid_voxels": 5},
    "grid 4 voxels, 500 steps, no bending": {**_LONG, "grid_voxels": 4, "Metric1Weight": ["0"]},
    "grid 5 voxels, 500 steps, bending 10": {**_LONG, "grid_voxels": 5, "Metric1Weight": ["10"]},
}


def run(
    fixed_path: str, moving_path: str, out_field_path: str, setting: dict[str, Any], threads: int
) -> float:  # threads come by ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS: elastix 0.25.4 crashes where they are given
    """Register, write the field, return the seconds of the deformable stage."""
    import itk
    from itk.support import helpers

    # torch is there for another peer; itk would load it, and its memory would count.
    helpers._HAVE_TORCH = False
    fixed, moving = (itk.imread(path, itk.F) for path in (fixed_path, moving_path))
    options = itk.ParameterObject.New()
    chosen = dict(options.GetDefaultParameterMap("bspline"))
    changes = dict(setting)
    grid = changes.pop("grid_voxels", None)
    if grid is not None:
        changes["FinalGridSpacingInPhysicalUnits"] = [str(grid * float(s)) for s in fixed.GetSpacing()]
    options.AddParameterMap({**chosen, **changes, "WriteResultImage": ["false"]})
    start = time.perf_counter()
    _, found = itk.elastix_registration_method(fixed, moving, parameter_object=options, log_to_console=False)
    seconds = time.perf_counter() - start
    field = itk.transformix_deformation_field(moving, found)
    _fields.write(out_field_path, _fields.from_itk(itk.array_view_from_image(field)))
    return seconds
