"""Registrations that are compared: one function each, from two files to a field (3, X, Y, Z) in LPS millimetres.

A function imports what it needs when it runs, in the interpreter of the peers. It returns the field and the seconds of
the deformable stage. `PEERS` has the distribution of each, and the few settings that it may choose from.
"""

import tempfile
import time
from typing import Any

import numpy as np

GREEDY = {"default": ([100, 50, 10], ""), "100x100x100": ([100, 100, 100], ""),
          "100x100x100, smooth 1.2 0.5": ([100, 100, 100], "-s 1.2vox 0.5vox"),
          "100x100x100, smooth 0.8 0.3": ([100, 100, 100], "-s 0.8vox 0.3vox")}  # fmt: skip
DEMONS = {"matched, sigma 1": (True, 1.0), "matched, sigma 1.5": (True, 1.5), "matched, sigma 0.7": (True, 0.7),
          "raw, sigma 1": (False, 1.0)}  # fmt: skip
PEERS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "ants_syn": ("antspyx", {
        "default": {},
        "100x70x50": {"reg_iterations": (100, 70, 50)},
        "100x70x50, flow 2": {"reg_iterations": (100, 70, 50), "flow_sigma": 2},
        "100x70x50, total 0.5": {"reg_iterations": (100, 70, 50), "total_sigma": 0.5},
    }),
    "convex_adam": ("convexAdam", {"default": {}}),
    "greedy_ncc": ("picsl_greedy", {name: {"steps": n, "words": words} for name, (n, words) in GREEDY.items()}),
    "sitk_demons": ("SimpleITK", {name: {"match": match, "sigma": s} for name, (match, s) in DEMONS.items()}),
}  # fmt: skip
FEWEST_VOXELS, SHRINK, STEPS = 4, (4, 2, 1), 100
Found = tuple[Any, float]


def ants_syn(fixed_path: str, moving_path: str, setting: dict[str, Any], threads: int) -> Found:
    """The deformable stage of SyN on mutual information; the call also warps both images.

    Threads come by ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS, which is read at import.
    """
    import ants

    del threads
    images = [ants.image_read(path) for path in (fixed_path, moving_path)]
    words = {"type_of_transform": "SyNOnly", "initial_transform": "Identity", **setting}
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        out = ants.registration(*images, outprefix=f"{folder}/peer", **words)
        seconds = time.perf_counter() - start
        # The list ends with the identity that the registration started from.
        warp = next(name for name in out["fwdtransforms"] if name.endswith("Warp.nii.gz"))
        return ants.image_read(warp).numpy().transpose(3, 0, 1, 2), seconds


def convex_adam(fixed_path: str, moving_path: str, setting: dict[str, Any], threads: int) -> Found:
    """Coupled convex optimisation and Adam on MIND features, with its own defaults, on the processor."""
    import SimpleITK as sitk  # noqa: N813
    import torch
    from convexAdam.convex_adam_MIND import convex_adam_pt

    torch.set_num_threads(threads)
    fixed, moving = _images(fixed_path, moving_path)
    arrays = [sitk.GetArrayFromImage(one).T.copy() for one in (fixed, _on_grid_of(fixed, moving))]
    start = time.perf_counter()
    voxels = convex_adam_pt(*arrays, device=torch.device("cpu"), dtype=torch.float32, **setting)
    seconds = time.perf_counter() - start
    axes = np.array(fixed.GetDirection()).reshape(3, 3) * fixed.GetSpacing()
    return np.einsum("ij,xyzj->ixyz", axes, voxels), seconds


def greedy_ncc(fixed_path: str, moving_path: str, setting: dict[str, Any], threads: int) -> Found:
    """Greedy diffeomorphic registration on local correlation, patches of 5×5×5 voxels."""
    import SimpleITK as sitk  # noqa: N813
    from picsl_greedy import Greedy3D

    fixed, moving = _images(fixed_path, moving_path)
    # Each level halves the image, and greedy's smoothing refuses fewer than four slices.
    levels = max(1, int(np.log2(min(*fixed.GetSize(), *moving.GetSize()) / FEWEST_VOXELS)) + 1)
    steps = "x".join(map(str, setting["steps"][:levels]))
    words = f"-d 3 -float -threads {threads} -i fixed moving -m NCC 2x2x2 -n {steps} {setting['words']} -o warp -V 0"
    greedy, start = Greedy3D(), time.perf_counter()
    greedy.execute(words, fixed=fixed, moving=moving, warp=None)
    seconds = time.perf_counter() - start
    warp = greedy["warp"]  # a view does not keep its image: one of a temporary image reads memory that was given back
    return _from_itk(sitk.GetArrayFromImage(warp)), seconds


def sitk_demons(fixed_path: str, moving_path: str, setting: dict[str, Any], threads: int) -> Found:
    """Diffeomorphic demons over three resolutions, with the histogram of the moving image matched or not.

    ``sigma`` smooths the displacement after each step, in voxels of the resolution at hand.
    """
    import SimpleITK as sitk  # noqa: N813

    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(threads)
    fixed, moving = _images(fixed_path, moving_path)
    start = time.perf_counter()
    moving = _on_grid_of(fixed, moving)
    if setting["match"]:
        moving = sitk.HistogramMatching(moving, fixed, 256, 10, True)
    demons, field = sitk.DiffeomorphicDemonsRegistrationFilter(), None
    demons.SetNumberOfIterations(STEPS)
    demons.SetSmoothDisplacementField(True)
    demons.SetStandardDeviations(setting["sigma"])
    for shrink in SHRINK:
        small = [_shrunk(image, shrink) for image in (fixed, moving)]
        if field is not None:
            field = sitk.Resample(field, small[0], sitk.Transform(), sitk.sitkLinear, 0.0, field.GetPixelID())
        field = demons.Execute(*small, *([] if field is None else [field]))
    seconds = time.perf_counter() - start
    return _from_itk(sitk.GetArrayFromImage(field)), seconds


def regweave_own(fixed_path: str, moving_path: str, setting: dict[str, Any], threads: int) -> Found:
    """regweave itself, with the interpreter that has it: the seconds of the levels and the refinement.

    A model chooses its weights by the moving labels, which its user has; a preset is given none.
    """
    from regweave import register
    from regweave.io import total_displacement

    words = {name: tuple(value) if isinstance(value, list) else value for name, value in setting.items()}
    result = register(fixed_path, moving_path, init="none", threads=threads, **words)
    seconds = sum(result.seconds[stage] for stage in ("classes", "levels", "refine"))
    return total_displacement(result.transform).data, float(seconds)


def _images(*paths: str) -> list[Any]:
    """Read files as SimpleITK images of 32-bit floats."""
    import SimpleITK as sitk  # noqa: N813

    return [sitk.ReadImage(path, sitk.sitkFloat32) for path in paths]


def _on_grid_of(fixed: Any, moving: Any) -> Any:
    """Resample the moving image on the fixed grid by the headers alone; outside it has its smallest value."""
    import SimpleITK as sitk  # noqa: N813

    lowest = float(sitk.GetArrayViewFromImage(moving).min())
    return sitk.Resample(moving, fixed, sitk.Transform(), sitk.sitkLinear, lowest)


def _shrunk(image: Any, shrink: int) -> Any:
    """Smooth and take every n-th voxel, along axes that keep at least eight of them."""
    import SimpleITK as sitk  # noqa: N813

    factors = [shrink if n // shrink >= 8 else 1 for n in image.GetSize()]
    if max(factors) == 1:
        return image
    sigmas = [0.5 * f * s if f > 1 else 1e-6 for f, s in zip(factors, image.GetSpacing(), strict=True)]
    return sitk.Shrink(sitk.DiscreteGaussian(image, [s * s for s in sigmas]), factors)


def _from_itk(vectors: Any) -> Any:
    """Turn ITK's (Z, Y, X, 3) in LPS millimetres into (3, X, Y, Z)."""
    return np.asarray(vectors).transpose(3, 2, 1, 0)
