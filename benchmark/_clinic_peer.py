"""elastix or ANTs on two NIfTI images, then masks warped: ``_clinic_peer.py NAME TODAY PLAN MASKS OUT``.

Runs in an environment that has itk-elastix or antspyx. Masks are warped with linear interpolation and cut at one half,
which keeps small structures better than the nearest voxel does.
"""

import sys
from pathlib import Path


def elastix(today: Path, plan: Path, masks: list[Path], out: Path) -> None:
    """Rigid, then B-splines of 16 mm with mutual information, four resolutions: elastix's own default maps."""
    import itk

    fixed, moving = (itk.imread(str(path), itk.F) for path in (today, plan))
    maps = itk.ParameterObject.New()
    maps.AddParameterMap(maps.GetDefaultParameterMap("rigid", 4))
    maps.AddParameterMap(maps.GetDefaultParameterMap("bspline", 4, 16.0))
    _, found = itk.elastix_registration_method(fixed, moving, parameter_object=maps, log_to_console=False)
    for number in range(found.GetNumberOfParameterMaps()):
        found.SetParameter(number, "FinalBSplineInterpolationOrder", "1")
        found.SetParameter(number, "DefaultPixelValue", "0")
    for path in masks:
        warped = itk.transformix_filter(itk.imread(str(path), itk.F), found, log_to_console=False)
        itk.imwrite(
            itk.binary_threshold_image_filter(warped, lower_threshold=0.5, inside_value=1), str(out / path.name)
        )


def ants(today: Path, plan: Path, masks: list[Path], out: Path) -> None:
    """Affine, then SyN with mutual information: antspyx's own defaults."""
    import ants as library

    fixed, moving = (library.image_read(str(path)) for path in (today, plan))
    found = library.registration(fixed, moving, type_of_transform="SyN")["fwdtransforms"]
    for path in masks:
        warped = library.apply_transforms(fixed, library.image_read(str(path)), found, interpolator="linear")
        library.image_write(warped.threshold_image(0.5, None), str(out / path.name))


if __name__ == "__main__":
    name, today, plan, folder, out = sys.argv[1], *map(Path, sys.argv[2:])
    {"elastix": elastix, "ants": ants}[name](today, plan, sorted(folder.glob("*.nii.gz")), out)
