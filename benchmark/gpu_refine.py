"""Does the refinement on a GPU end where the one on the processor does, from the same start, and how long does it take?

The start is the result of the levels on the GPU; brains at 64³ and at their own resolution, and heads and necks (CT).
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from _common import Claim, parser, write
from _pairs import SETS, Prepared, choose_pairs, choose_set, prepare, settings_of
from accuracy import judge
from regweave.kernels.threads import kernel_threads
from regweave.pipeline.machine import allowed_threads
from regweave.registration import devices
from regweave.registration.align import align
from regweave.registration.refine import refine

CASES = {
    "64³": ("ibsr18_64_affine", "none", 6.0),
    "CT": ("openkbp_head_neck", "none", None),
    "native": ("ibsr18_native", "affine", 27.0),
}
TARGET_P999, TARGET_DICE = 1e-3, 0.002


def measure(p: Prepared, device: Any, labels: list[int], repeats: int) -> dict[str, Any]:
    """One pair: milliseconds of the steps, distance from the processor's result, Dice of both."""
    start = np.array(align(p.pair, p.weights, p.schedule, device=device).displacement)
    arguments = (p.pair, start, p.weights, p.schedule, p.settings.refine)
    found = [refine(*arguments, device=device) for _ in range(repeats)]
    same = {f.displacement.tobytes() for f in found}
    with kernel_threads(allowed_threads()):
        begin = time.perf_counter()
        host = refine(*arguments)
        cpu_ms = 1e3 * (time.perf_counter() - begin)
    far = np.linalg.norm(found[0].displacement - host.displacement, axis=0)
    dice = [float(np.mean(list(judge(p, r.displacement, labels)["dice"].values()))) for r in (found[0], host)]
    return {
        "steps_ms": min(1e3 * sum(s.seconds for s in f.steps) for f in found),
        "cpu_ms": cpu_ms,
        "p99.9": float(np.quantile(far, 0.999)),
        "max": float(far.max()),
        "mean": float(far.mean()),
        "dice": dice[0],
        "cpu_dice": dice[1],
        "results": len(same),
    }


def main() -> None:
    options = parser(__doc__ or "", pairs=2)
    options.add_argument("--preset", default="default")
    options.add_argument("--repeats", type=int, default=4)
    options.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    args = options.parse_args()
    device, rows, claims = devices.get("cuda"), [], []
    for case in args.cases:
        wanted, init, target_ms = CASES[case]
        name, data = choose_set(wanted)
        mine = []
        for pair in choose_pairs(name, args.pairs, args.seed):
            ready = prepare(pair, settings_of(args.preset), init)
            mine.append({"case": case, **measure(ready, device, list(SETS[name].labels), args.repeats)})
            print(mine[-1], flush=True)
        rows += mine
        ms, apart = statistics.mean(r["steps_ms"] for r in mine), [abs(r["dice"] - r["cpu_dice"]) for r in mine]
        claims += [
            Claim(f"{case} ({data}), steps", ms, ".1f", " ms", target_ms, "at most"),
            Claim(f"{case}, 99.9 % within", max(r["p99.9"] for r in mine), ".1e", " voxels", TARGET_P999, "at most"),
            Claim(f"{case}, Dice apart", max(apart), ".5f", "", TARGET_DICE, "at most"),
            Claim(f"{case}, different results of repeats", max(r["results"] for r in mine), ".0f", "", 1, "at most"),
        ]  # fmt: skip
    write(args.output or "gpu_refine", args.seed, {"rows": rows}, claims)


if __name__ == "__main__":
    main()
