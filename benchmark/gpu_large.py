"""Does a CT of 512×512×300 voxels fit a GPU, and how long does it take? Real scans, interpolated to that size."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import ndimage

from _common import Claim, parser, write
from _pairs import Prepared, choose_pairs, choose_set, prepare, settings_of
from gpu import by_verb, registered
from regweave.kernels.threads import kernel_threads
from regweave.pipeline.machine import allowed_threads
from regweave.registration import devices
from regweave.registration.cuda.memory import needed_bytes
from regweave.types import Geometry, Image

SHAPE = (512, 512, 300)


def enlarged(image: Image, shape: tuple[int, ...]) -> Image:
    """Return an image on a finer grid of the same field of view, its values interpolated."""
    factors = np.array(shape) / image.data.shape
    data = np.asarray(image.data, dtype=np.float32)
    data = ndimage.zoom(data, factors, order=1, grid_mode=True, mode="nearest")
    affine = image.geometry.affine.copy()
    affine[:3, :3] = affine[:3, :3] / factors
    affine[:3, 3] += affine[:3, :3] @ ((1 - factors) / 2)
    return Image(data, Geometry(data.shape, affine), image.modality)


def large_pair(seed: int, shape: tuple[int, ...]) -> Prepared:
    """One pair of head-and-neck scans, enlarged."""
    name, _ = choose_set("openkbp_head_neck")
    p = prepare(choose_pairs(name, 1, seed)[0], settings_of("default"), "affine")
    fixed, moving = (enlarged(image, shape) for image in (p.pair.fixed, p.pair.moving))
    return replace(p, pair=replace(p.pair, fixed=fixed, moving=moving))


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--shape", type=int, nargs=3, default=list(SHAPE))
    options.add_argument("--cpu", action="store_true", help="the processor too, for displacements to compare")
    args = options.parse_args()
    p, device = large_pair(args.seed, tuple(args.shape)), devices.get("cuda")
    planned, before = needed_bytes(p.pair, p.schedule), device.queue.memory()[0]
    times: list[float] = []
    field: Any = None
    for _ in range(3):
        field = None  # its memory is used again
        start = time.perf_counter()
        field = registered(p, device)
        times.append(time.perf_counter() - start)
    device.queue.trim()
    row: dict[str, Any] = {"shape": list(args.shape), "seconds": times, "planned_mb": planned / 2**20}
    row["free_mb"] = before / 2**20
    row["by_verb_ms"] = by_verb(p, device)
    if args.cpu:
        with kernel_threads(allowed_threads()):
            start = time.perf_counter()
            far = np.sqrt(((registered(p, devices.get("cpu")) - field) ** 2).sum(axis=0))
        row |= {"cpu_seconds": time.perf_counter() - start, "p99": float(np.quantile(far[::4, ::4, ::4], 0.99))}
    print(row)
    size = "×".join(map(str, args.shape))
    claims = [
        Claim(f"CT of {size} on a GPU", min(times[1:]), ".2f", " s", 1.0, "at most"),
        Claim(f"CT of {size}, the first", times[0], ".2f", " s"),
        Claim(f"CT of {size}, memory that is planned", planned / 2**30, ".1f", " GB"),
    ]
    write(args.output or "gpu-large", args.seed, row, claims)


if __name__ == "__main__":
    main()
