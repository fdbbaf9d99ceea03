"""Does message passing on the GPU give what its plain twin gives, and what the processor gives?

Its fast kernel has blocks that wait for each other and cannot run as a loop on the host, so no test sees it; this
script does, on a machine with a GPU.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from _common import Claim, parser, write
from regweave.engines import trws
from regweave.kernels import gpu
from regweave.registration import devices
from regweave.types import Energy

GRIDS = [((6, 5, 6), 3), ((11, 9, 11), 3), ((20, 17, 20), 3), ((22, 17, 22), 3), ((12, 9, 12), 5), ((6, 6, 6), 7)]
WEIGHTS = (0.02, 0.1, 0.4)


def energies(seed: int) -> list[tuple[str, Energy]]:
    """Energies of the sizes of the levels, fluid and elastic, smooth unaries with noise."""
    rng, out = np.random.default_rng(seed), []
    for shape, k in GRIDS:
        for number, weight in enumerate(WEIGHTS):
            n, line = int(np.prod(shape)), np.linspace(-1, 1, k)
            centre = np.cumsum(rng.normal(0, 0.2, (n, 3)), axis=0) % 2 - 1
            labels = np.stack(np.meshgrid(line, line, line, indexing="ij"), axis=-1).reshape(-1, 3)
            unary = np.abs(labels[None] - centre[:, None]).sum(axis=-1) + 0.3 * rng.random((n, k**3))
            base = rng.normal(0, 0.2, (n, 3)) if number == 1 else None
            out.append((f"{shape} {k}³ {weight}", Energy(unary, shape, (line, line, line), weight, base)))
    return out


def solved(device: Any, e: Energy, *, plain: bool) -> tuple[Any, float, float, int, float]:
    """Labels, energy, bound, iterations and milliseconds."""
    unary, base = device.upload(e.unary), None if e.base is None else device.upload(e.base)
    device.queue.wait()
    start = time.perf_counter()
    labels, *rest = device.kernels.trws(unary, e.shape, e.offsets, e.weight, base, 30, 1e-4, plain)
    return (labels.numpy(), *rest, 1e3 * (time.perf_counter() - start))


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    found, why = gpu.gpus()
    if not found:
        raise SystemExit(f"no GPU: {why}")
    device: Any = devices.get("cuda")
    rows = []
    for name, e in energies(args.seed):
        fast, again = solved(device, e, plain=False), solved(device, e, plain=False)
        plain = solved(device, e, plain=True) if e.unary.size < 100_000 else None
        start = time.perf_counter()
        host = trws.minimize(e)
        rows.append({
            "energy": name, "iterations": fast[3], "host_iterations": host.iterations,
            "labels_apart": int((fast[0] != host.labels).sum()),
            "bound_apart": abs(fast[2] - host.lower_bound) / abs(host.lower_bound),
            "plain_apart": None if plain is None else int((fast[0] != plain[0]).sum()),
            "same": bool(np.array_equal(fast[0], again[0]) and fast[1:4] == again[1:4]),
            "ms": again[4], "host_ms": 1e3 * (time.perf_counter() - start), "gap": (fast[1] - fast[2]) / abs(fast[1]),
        })  # fmt: skip
        print(rows[-1], flush=True)
    wanted = {
        "energies with labels other than the processor's": sum(r["labels_apart"] > 0 for r in rows),
        "energies with labels other than the plain kernel's": sum(bool(r["plain_apart"]) for r in rows),
        "energies that differ from run to run": sum(not r["same"] for r in rows),
    }
    claims = [Claim(what, n, ".0f", "", 0, "at most") for what, n in wanted.items()]
    apart = max(r["bound_apart"] for r in rows)
    claims.append(Claim("largest relative difference of a bound", apart, ".1e", "", 1e-9, "at most"))
    write(args.output or "gpu-trws", args.seed, {"gpu": found[0].name, "rows": rows}, claims)


if __name__ == "__main__":
    main()
