"""How long does a registration take on a GPU, and is it the one of the processor?

Images are in memory of the host, and so is the field at the end; the first registration, which loads the kernels, is
timed apart. Every pair is registered on the processor too: displacements and Dice are compared.
"""

import hashlib
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import _pairs as sets
from _common import claim, parser, write
from regweave.registration import devices
from regweave.registration.align import align, refine
from regweave.run.memory import allowed_threads
from regweave.spatial.warp import to_field
from regweave.threads import kernel_threads

SIZES = {
    "64³": ("ibsr18_64_affine", "none"),
    "crops": ("msd_hippocampus", "none"),
    "native": ("ibsr18_native", "affine"),
}
TARGET_MS = {"64³": 35.0, "crops": 35.0, "native": 100.0}
SECONDS = 3.0
"""How long pairs a second are counted."""


def registered(p: sets.Prepared, device: Any) -> Any:
    """Field of the levels and the refinement, (3, X, Y, Z), on the host."""
    found = align(p.pair, p.weights, p.schedule, device=device).displacement
    return refine(p.pair, found, p.weights, p.schedule, p.settings.refine, device=device).displacement


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds of a call, and what it gave."""
    start = time.perf_counter()
    out = run()
    return 1e3 * (time.perf_counter() - start), out


def measured(p: sets.Prepared, device: Any, labels: list[int], repeats: int, *, host: bool) -> dict[str, Any]:
    """One pair: times into a fresh and into a reused array, agreement with the processor, sameness over repeats."""

    def digest(field: Any) -> str:
        return hashlib.sha256(np.ascontiguousarray(field).tobytes()).hexdigest()

    def overlap(field: Any) -> float:
        return sets.mean_dice(sets.judge(p.pair, to_field(field, p.pair.fixed.geometry), labels))

    first = registered(p, device)
    fresh_ms, field = timed(lambda: registered(p, device))  # the memory of the one before is still in use
    bits, times, field = {digest(first), digest(field)}, [], field.copy()
    del first
    for _ in range(repeats):
        ms, found = timed(lambda: registered(p, device))
        times.append(ms)
        bits.add(digest(found))
        del found  # its memory is used again
    row: dict[str, Any] = {
        "fresh_ms": fresh_ms, "ms": min(times), "median_ms": statistics.median(times), "bits": len(bits),
        "dice": overlap(field),
    }  # fmt: skip
    if host:
        with kernel_threads(allowed_threads()):
            row["cpu_ms"], expected = timed(lambda: registered(p, devices.get("cpu")))
        far = np.sqrt(((field - expected) ** 2).sum(axis=0))
        row |= {"p99": float(np.quantile(far, 0.99)), "max": float(far.max()), "mean": float(far.mean())}
        row["cpu_dice"] = overlap(expected)
    return row


def throughput(names: list[sets.PairName], preset: str, n_threads: int, ready: Any, rates: Any) -> None:
    """Put the registrations a second of each of several threads into a queue; each has a queue on the GPU."""
    pairs = [sets.prepare(name, sets.settings_of(preset)) for name in names]

    def work(number: int) -> None:
        device, done = devices.get("cuda"), 0
        registered(pairs[number % len(pairs)], device)
        ready.wait()
        start = time.perf_counter()
        while time.perf_counter() < start + SECONDS:
            registered(pairs[(number + done) % len(pairs)], device)
            done += 1
        rates.put(done / (time.perf_counter() - start))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(n_threads)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def pairs_a_second(names: list[sets.PairName], preset: str, processes: int, n_threads: int) -> float:
    """Registrations a second of several processes with some threads each, after one that warms each thread up."""
    context = multiprocessing.get_context("spawn")
    ready, rates = context.Barrier(processes * n_threads), context.Queue()
    work = [context.Process(target=throughput, args=(names, preset, n_threads, ready, rates)) for _ in range(processes)]
    for one in work:
        one.start()
    total = sum(rates.get(timeout=60 + SECONDS) for _ in range(processes * n_threads))
    for one in work:
        one.join()
    return float(total)


def claims_of(size: str, data: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Turn the rows of one size into claims."""
    out = [
        claim(f"{size} ({data}), reused memory", sets.mean_of(r["ms"] for r in rows), ".1f ms", most=TARGET_MS[size]),
        claim(f"{size}, different results of repeats", max(r["bits"] for r in rows), ".0f", most=1),
        claim(f"{size}, Dice", sets.mean_of(r["dice"] for r in rows), ".4f"),
    ]
    if size == "native":
        out.append(claim(f"{size}, fresh memory", max(r["fresh_ms"] for r in rows), ".1f ms", most=200.0))
    if "p99" in rows[0]:
        far, apart = max(r["p99"] for r in rows), max(abs(r["dice"] - r["cpu_dice"]) for r in rows)
        out += [
            claim(f"{size}, 99 % of voxels as on the processor within", far, ".4f voxels", most=0.05),
            claim(f"{size}, Dice apart from the processor's", apart, ".5f", most=0.002),
            claim(f"{size}, processor", sets.mean_of(r["cpu_ms"] for r in rows) / 1e3, ".2f s"),
        ]
    return out


def main() -> None:
    """Measure all sizes, then pairs a second at 64³."""
    options = parser(__doc__, pairs=2, seed=0, preset="default", output="gpu")
    options.add_argument("--repeats", type=int, default=5, help="runs of a pair")
    options.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES), help="sizes to measure")
    options.add_argument("--threads", type=int, nargs="+", default=[1, 4, 8], help="for pairs a second at 64³")
    options.add_argument("--processes", type=int, nargs="+", default=[4, 8], help="the same, one thread each")
    options.add_argument("--native-pairs", type=int, default=2, help="pairs of that size")
    options.add_argument("--no-cpu", action="store_true", help="leave the processor out")
    args = options.parse_args()
    found, why = devices.gpus()
    if not found:
        raise SystemExit(f"no GPU: {why}")
    opening_ms, device = timed(lambda: devices.get("cuda"))
    rows: list[dict[str, Any]] = []
    claims: list[dict[str, Any]] = []
    rates: dict[str, float] = {}
    for size in args.sizes:
        name, data = sets.choose_set(SIZES[size][0])
        chosen = sets.choose_pairs(name, args.native_pairs if size == "native" else args.pairs, args.seed)
        ready = [sets.prepare(p, sets.settings_of(args.preset), SIZES[size][1]) for p in chosen]
        if not rows:
            first_ms = timed(partial(registered, ready[0], device))[0]
        own = [measured(p, device, list(sets.SETS[name].labels), args.repeats, host=not args.no_cpu) for p in ready]
        rows += [{"size": size, **row} for row in own]
        print(*rows[-len(own) :], sep="\n", flush=True)
        claims += claims_of(size, data, own)
        if size == "64³":
            for words, counts in (
                ("threads", [(1, n) for n in args.threads]),
                ("processes", [(n, 1) for n in args.processes]),
            ):
                rates |= {f"{max(n)} {words}": pairs_a_second(chosen, args.preset, *n) for n in counts}
    claims.append(claim("first use: driver and kernels", opening_ms / 1e3, ".2f s", most=0.5))
    if rates:
        claims.append(claim("pairs a second at 64³", max(rates.values()), ".1f", least=100.0))
    content = {"gpu": found[0][0], "rows": rows, "first_ms": first_ms, "pairs_per_second": rates}
    write(args.output, args.seed, content, claims)


if __name__ == "__main__":
    main()
