"""How do registrations on a GPU compare: Dice and time of ours, FireANTs and convexAdam, on the same pairs in one run?

Images are in memory of the host, and so is the field at the end; each method is warmed up, then timed twice a pair, and
the shorter time counts. Peers get the moving image on the grid of the fixed one, through the same start. Each has
several settings, so that its fastest and its best can be told.
"""

from __future__ import annotations

import statistics
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from _common import Claim, parser, write
from _pairs import SETS, Prepared, choose_pairs, choose_set, prepare, settings_of
from accuracy import judge
from gpu import registered
from regweave.kernels import fields
from regweave.registration import devices
from regweave.spatial.warp import voxel_matrix

RUNS = {
    "64³": ("ibsr18_64_affine", "none"),
    "hippocampus": ("msd_hippocampus", "none"),
    "native": ("ibsr18_native", "affine"),
}
FIREANTS = {
    "cc 5, 100/50/20": {"cc_kernel_size": 5, "iterations": [100, 50, 20]},
    "cc 5, 200/100/50": {"cc_kernel_size": 5, "iterations": [200, 100, 50]},
    "cc 7, 200/100/50": {"cc_kernel_size": 7, "iterations": [200, 100, 50]},
}
CONVEX_ADAM: dict[str, dict[str, Any]] = {
    "default": {},
    "grid 4": {"grid_sp": 4, "disp_hw": 4},
    "grid 3, smooth 3": {"grid_sp": 3, "disp_hw": 4, "selected_smooth": 3},
}


class PlainImage:
    """What FireANTs asks of an image of SimpleITK."""

    def __init__(self, array: Any, spacing: Any) -> None:
        self.array, self._spacing = array, tuple(float(s) for s in spacing[::-1])

    def __getattr__(self, name: str) -> Any:
        answers = {
            "GetSize": tuple(self.array.shape[::-1]),
            "GetSpacing": self._spacing,
            "GetOrigin": (0.0, 0.0, 0.0),
            "GetDirection": tuple(np.eye(3).ravel()),
            "GetDimension": 3,
            "GetNumberOfComponentsPerPixel": 1,
        }
        if name not in answers:
            raise AttributeError(name)
        return lambda: answers[name]


def stand_in() -> None:
    """Put a module in the place of SimpleITK, which both peers read files with: the images here are in memory."""
    module = types.ModuleType("SimpleITK")
    module.Image = PlainImage  # type: ignore[attr-defined]
    module.SimpleITK = module  # type: ignore[attr-defined]
    module.GetArrayFromImage = lambda image: image.array  # type: ignore[attr-defined]
    sys.modules["SimpleITK"] = module


def moved_to_start(p: Prepared) -> Any:
    """Moving image on the grid of the fixed one."""
    geometry = p.pair.fixed.geometry
    matrix = voxel_matrix(geometry, p.pair.moving.geometry, p.pair.initial)
    nothing = np.zeros((3, *geometry.shape), dtype=np.float32)
    image = np.ascontiguousarray(p.pair.moving.data, dtype=np.float32)
    return fields.warp(image, matrix, nothing, float(image.min()), clamp=False)


def fireants(fixed: Any, moved: Any, spacing: Any, where: str, setting: dict[str, Any]) -> Any:
    """Displacement (3, X, Y, Z) in voxels by greedy registration."""
    import torch
    from fireants.io import BatchedImages, Image
    from fireants.registration.greedy import GreedyRegistration

    images = []
    for array in (fixed, moved):
        low, high = array.min(), array.max()
        images.append(BatchedImages(Image(PlainImage((array - low) / (high - low), spacing), device=where)))
    found = GreedyRegistration(
        scales=[4, 2, 1], fixed_images=images[0], moving_images=images[1], loss_type="cc", progress_bar=False, **setting
    )
    found.optimize()
    with torch.no_grad():
        grid = found.get_warped_coordinates(*images)[0].cpu().numpy()
    half = (np.array(fixed.shape, dtype=np.float32) - 1) / 2
    places = np.moveaxis(grid[..., ::-1], -1, 0)
    out = (places + 1) * half[:, None, None, None] - np.indices(fixed.shape, dtype=np.float32)
    return np.ascontiguousarray(out, dtype=np.float32)


def convex_adam(fixed: Any, moved: Any, spacing: Any, where: str, setting: dict[str, Any]) -> Any:
    """Displacement (3, X, Y, Z) in voxels by convexAdam in single precision."""
    import torch
    from convexAdam.convex_adam_MIND import convex_adam_pt

    arrays = [torch.from_numpy(np.ascontiguousarray(a, dtype=np.float32)) for a in (fixed, moved)]
    found = convex_adam_pt(*arrays, dtype=torch.float32, device=torch.device(where), **setting)
    return np.ascontiguousarray(np.moveaxis(found, -1, 0), dtype=np.float32)


def methods(where: str) -> dict[str, Callable[[Prepared, Any], Any]]:
    """Every method with every setting, as functions of a pair and its moved image."""
    device = devices.get("cuda" if where == "cuda" else "cpu")
    found: dict[str, Callable[[Prepared, Any], Any]] = {"regweave": lambda p, _: registered(p, device)}
    for peer, run, settings in (("FireANTs", fireants, FIREANTS), ("convexAdam", convex_adam, CONVEX_ADAM)):
        for name, setting in settings.items():
            found[f"{peer}, {name}"] = lambda p, moved, run=run, setting=setting: run(
                p.pair.fixed.data, moved, p.pair.fixed.geometry.spacing_mm, where, setting
            )
    return found


def measured(run: Callable[[Prepared, Any], Any], ready: list[Prepared], labels: list[int]) -> dict[str, Any]:
    """Seconds and Dice over pairs."""
    seconds, dice = [], []
    for number, p in enumerate(ready):
        moved, times = moved_to_start(p), []
        for _ in range(3 if number == 0 else 2):
            start = time.perf_counter()
            field = run(p, moved)
            times.append(time.perf_counter() - start)
        seconds.append(min(times))
        dice.append(float(np.mean(list(judge(p, np.asarray(field), labels)["dice"].values()))))
    return {"seconds": statistics.mean(seconds), "dice": statistics.mean(dice), "of_pairs": dice}


def main() -> None:
    options = parser(__doc__ or "", pairs=4)
    options.add_argument("--runs", nargs="+", default=list(RUNS), choices=list(RUNS))
    options.add_argument("--native-pairs", type=int, default=2)
    options.add_argument("--where", default="cuda", choices=["cuda", "cpu"])
    options.add_argument("--only", help="methods whose names hold this word")
    args = options.parse_args()
    stand_in()
    rows: list[dict[str, Any]] = []
    claims: list[Claim] = []
    for size in args.runs:
        name, _ = choose_set(RUNS[size][0])
        n = args.native_pairs if size == "native" else args.pairs
        ready = [prepare(p, settings_of("default"), RUNS[size][1]) for p in choose_pairs(name, n, args.seed)]
        for method, run in methods(args.where).items():
            if args.only and args.only not in method:
                continue
            try:
                row = measured(run, ready, list(SETS[name].labels))
            except Exception as error:  # a peer that fails is a row too
                row = {"error": f"{type(error).__name__}: {error}"[:200]}
            rows.append({"size": size, "set": name, "pairs": n, "method": method, **row})
            print(rows[-1], flush=True)
        claims += _claims(size, [r for r in rows if r["size"] == size and "error" not in r])
    write(args.output or "gpu-peers", args.seed, {"rows": rows}, claims)


def _claims(size: str, rows: list[dict[str, Any]]) -> list[Claim]:
    own = [r for r in rows if r["method"] == "regweave"]
    peers = [r for r in rows if r["method"] != "regweave"]
    if not own or not peers:
        return []
    best, quick = max(r["dice"] for r in peers), min(r["seconds"] for r in peers)
    return [
        Claim(f"{size}, Dice above the best peer's", own[0]["dice"] - best, "+.4f", "", 0.0),
        Claim(f"{size}, times faster than the fastest peer", quick / own[0]["seconds"], ".1f", "", 1.0),
    ]


if __name__ == "__main__":
    main()
