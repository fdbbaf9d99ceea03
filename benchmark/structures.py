"""How much longer does a registration take when a model compares the maps of many structures?

Maps are the label maps of both images, blurred, so that the time of a predictor does not count. The same pair is
registered with none, the first one and all of them, in the refinement and in the levels, in processor seconds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import ndimage

from _common import Claim, parser, write
from _pairs import SETS, Prepared, choose_pairs, choose_set, prepare, settings_of
from regweave.kernels.threads import kernel_threads
from regweave.registration.align import align
from regweave.registration.refine import refine
from regweave.registration.scene import Scene
from regweave.types import Image, ImagePair, StructureMaps, WeightTable

BLUR_VOXELS = 0.7
FACTOR = 8.0
"""Weight of the maps in the refinement, against one member of it."""
TARGET_RATIO = 3.0


def with_maps(image: Image, classes: tuple[int, ...]) -> Image:
    """Return an image with its labels as structure maps."""
    assert image.labels is not None
    masks = [(image.labels.data == c).astype(np.float32) for c in classes]
    shares = np.stack([ndimage.gaussian_filter(m, BLUR_VOXELS, truncate=3.0) for m in masks])
    return replace(image, maps=StructureMaps(shares, image.geometry, classes))


def measure(p: Prepared, classes: tuple[int, ...], threads: int) -> dict[str, Any]:
    """Register with the maps of some structures; none where there are no classes."""
    pair, schedule, weights = p.pair, p.schedule, {m.name: m.weight for m in p.schedule.bank}
    if classes:
        pair = ImagePair(with_maps(pair.fixed, classes), with_maps(pair.moving, classes), pair.initial)
        discrete = sum(1 for m in schedule.discrete if m.weight)
        weights |= {"shapes": FACTOR, "shapes-coarse": float(discrete)}
    table = WeightTable.constant(weights, p.settings.smoothness, (0, *classes))
    with kernel_threads(threads):
        start = time.process_time()
        found = align(pair, table, schedule).displacement
        levels = time.process_time()
        refine(pair, found, table, schedule, p.settings.refine)
        end = time.process_time()
    scene = Scene.whole(pair, schedule).at(p.settings.refine)
    u = np.zeros((3, *scene.geometry.shape), dtype=np.float32)
    channels = len(scene.maps("structures", u).fixed) if classes else 0
    return {"structures": len(classes), "channels": channels, "levels": levels - start, "refine": end - levels}


def claims(rows: Mapping[int, Mapping[str, Any]], data: str) -> list[Claim]:
    """Say what many structures cost against one and against none."""
    many = max(rows)
    total = {n: row["levels"] + row["refine"] for n, row in rows.items()}
    return [
        *(Claim(f"processor seconds with {n} structures, a pair of {data}", t, ".1f", " s") for n, t in total.items()),
        Claim(f"channels of {many} structures in the refinement, {data}", rows[many]["channels"], ".0f"),
        Claim(f"time with {many} structures over one, {data}", total[many] / total[1], ".2f", "×", TARGET_RATIO,
              "at most"),
    ]  # fmt: skip


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__ or "", pairs=1)
    options.add_argument("--set", default="lpba40_80", choices=SETS, help="images to register")
    options.add_argument("--threads", type=int, default=1, help="threads of the kernels")
    args = options.parse_args()
    chosen, data = choose_set(args.set)
    name = choose_pairs(chosen, 1, args.seed)[0]
    p = prepare(name, settings_of("default"), args.init)
    labels = tuple(SETS[chosen].labels)
    rows = {len(c): measure(p, c, args.threads) for c in ((), labels[:1], labels)}
    for row in rows.values():
        print(row, flush=True)
    write(args.output or "structures", args.seed, {"data": data, "rows": list(rows.values())}, claims(rows, data))


if __name__ == "__main__":
    main()
