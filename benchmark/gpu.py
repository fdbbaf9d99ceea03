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

from _common import Claim, parser, write
from _pairs import SETS, Prepared, choose_pairs, choose_set, prepare, settings_of
from accuracy import judge
from regweave.registration import devices
from regweave.registration.align import align
from regweave.registration.refine import refine
from regweave.run.memory import allowed_threads
from regweave.threads import kernel_threads

SIZES = {
    "64³": ("ibsr18_64_affine", "none"),
    "crops": ("msd_hippocampus", "none"),
    "native": ("ibsr18_native", "affine"),
}
TARGET_MS = {"64³": 35.0, "crops": 35.0, "native": 100.0}
TARGET_P99, TARGET_DICE, TARGET_PAIRS, TARGET_FIRST = 0.05, 0.002, 100.0, 0.5
SECONDS = 3.0
"""How long pairs a second are counted."""
VERBS = (
    "upload", "download", "scene", "change_level", "measure", "minimize", "compose", "smoothed", "data_terms", "forces",
    "held_back", "unfolded",
)  # fmt: skip


def registered(p: Prepared, device: Any) -> Any:
    """Field of the levels and the refinement, (3, X, Y, Z), on the host."""
    aligned = align(p.pair, p.weights, p.schedule, device=device)
    return refine(p.pair, aligned.displacement, p.weights, p.schedule, p.settings.refine, device=device).displacement


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds of a call, and what it gave."""
    start = time.perf_counter()
    out = run()
    return 1e3 * (time.perf_counter() - start), out


def by_verb(p: Prepared, device: Any) -> dict[str, float]:
    """Milliseconds of each verb of one registration, the GPU waited for after each."""
    spent: dict[str, float] = dict.fromkeys(VERBS, 0.0)

    class Watched:
        def __getattr__(self, name: str) -> Any:
            found = getattr(device, name)
            if name not in VERBS:
                return found

            def call(*args: Any, **options: Any) -> Any:
                ms, out = timed(lambda: _waited(found(*args, **options)))
                spent[name] += ms
                return out

            return call

    def _waited(out: Any) -> Any:
        device.queue.wait()
        return out

    registered(p, Watched())
    return spent


def digest(field: Any) -> str:
    """Short hash of the bits of a field."""
    return hashlib.sha256(np.ascontiguousarray(field).tobytes()).hexdigest()[:16]


def measure(p: Prepared, device: Any, labels: list[int], repeats: int, *, host: bool) -> dict[str, Any]:
    """One pair: times into a fresh and into a reused array, agreement with the processor, sameness over repeats."""
    warm = registered(p, device)
    fresh_ms, first = timed(lambda: registered(p, device))  # the memory of the one before is still in use
    bits, times = {digest(warm), digest(first)}, []
    field = first.copy()
    del warm, first
    for _ in range(repeats):
        ms, found = timed(lambda: registered(p, device))
        times.append(ms)
        bits.add(digest(found))
        del found  # its memory is used again
    row: dict[str, Any] = {
        "fresh_ms": fresh_ms, "ms": min(times), "median_ms": statistics.median(times), "bits": len(bits),
        "dice": _mean(judge(p, field, labels)), "by_verb_ms": by_verb(p, device),
    }  # fmt: skip
    if host:
        with kernel_threads(allowed_threads()):
            row["cpu_ms"], expected = timed(lambda: registered(p, devices.get("cpu")))
        far = np.sqrt(((field - expected) ** 2).sum(axis=0))
        row |= {"p99": float(np.quantile(far, 0.99)), "max": float(far.max()), "mean": float(far.mean())}
        row["cpu_dice"] = _mean(judge(p, expected, labels))
    return row


def _mean(scores: dict[str, Any]) -> float:
    return float(np.mean(list(scores["dice"].values())))


def throughput(pairs: list[Prepared], n_threads: int, seconds: float, ready: Any = None) -> float:
    """Registrations a second of several threads, each with a queue of its own, after one that warms it up."""
    done, ready = [0] * n_threads, ready or threading.Barrier(n_threads)
    rates = [0.0] * n_threads

    def work(number: int) -> None:
        device = devices.get("cuda")
        registered(pairs[number % len(pairs)], device)
        ready.wait()
        start = time.perf_counter()
        while time.perf_counter() < start + seconds:
            registered(pairs[(number + done[number]) % len(pairs)], device)
            done[number] += 1
        rates[number] = done[number] / (time.perf_counter() - start)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(n_threads)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return sum(rates)


def _process(names: list[Any], preset: str, n_threads: int, seconds: float, ready: Any, rates: Any) -> None:
    pairs = [prepare(name, settings_of(preset)) for name in names]
    rates.put(throughput(pairs, n_threads, seconds, ready))


def process_throughput(names: list[Any], preset: str, n: int, n_threads: int, seconds: float) -> float:
    """Registrations a second of several processes with some threads each."""
    context = multiprocessing.get_context("spawn")
    ready, rates = context.Barrier(n * n_threads), context.Queue()
    workers = [
        context.Process(target=_process, args=(names, preset, n_threads, seconds, ready, rates)) for _ in range(n)
    ]
    for worker in workers:
        worker.start()
    total = sum(rates.get(timeout=60 + seconds) for _ in workers)
    for worker in workers:
        worker.join()
    return float(total)


def main() -> None:
    options = parser(__doc__ or "", pairs=2)
    options.add_argument("--preset", default="default")
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    options.add_argument("--threads", type=int, nargs="+", default=[1, 4, 8], help="for pairs a second at 64³")
    options.add_argument("--processes", type=int, nargs="+", default=[4, 8], help="the same, one thread each")
    options.add_argument("--native-pairs", type=int, default=2)
    options.add_argument("--no-cpu", action="store_true", help="leave the processor out")
    args = options.parse_args()
    found, why = devices.gpus()
    if not found:
        raise SystemExit(f"no GPU: {why}")
    opening_ms, device = timed(lambda: devices.get("cuda"))
    rows: list[dict[str, Any]] = []
    claims: list[Claim] = []
    small: list[Prepared] = []
    names: list[Any] = []
    for size in args.sizes:
        name, data = choose_set(SIZES[size][0])
        chosen = choose_pairs(name, args.native_pairs if size == "native" else args.pairs, args.seed)
        ready = [prepare(p, settings_of(args.preset), SIZES[size][1]) for p in chosen]
        if not rows:
            first_ms = timed(partial(registered, ready[0], device))[0]
        small, names = (ready, chosen) if size == "64³" else (small, names)
        for p in ready:
            rows.append(
                {"size": size, **measure(p, device, list(SETS[name].labels), args.repeats, host=not args.no_cpu)}
            )
            print(rows[-1], flush=True)
        claims += _claims(size, data, [r for r in rows if r["size"] == size])
    claims.append(Claim("first use: driver and kernels", opening_ms / 1e3, ".2f", " s", TARGET_FIRST, "at most"))
    rates = {f"{n} threads": throughput(small, n, SECONDS) for n in args.threads} if small else {}
    for n in args.processes if small else ():
        rates[f"{n} processes"] = process_throughput(names, args.preset, n, 1, SECONDS)
    print(rates)
    if rates:
        claims.append(Claim("pairs a second at 64³", max(rates.values()), ".1f", "", TARGET_PAIRS))
    content = {"gpu": found[0][0], "rows": rows, "first_ms": first_ms, "pairs_per_second": rates}
    write(args.output or "gpu", args.seed, content, claims)


def _claims(size: str, data: str, rows: list[dict[str, Any]]) -> list[Claim]:
    """Turn the rows of one size into claims."""
    ms = statistics.mean(r["ms"] for r in rows)
    out = [
        Claim(f"{size} ({data}), reused memory", ms, ".1f", " ms", TARGET_MS[size], "at most"),
        Claim(f"{size}, different results of repeats", max(r["bits"] for r in rows), ".0f", "", 1, "at most"),
        Claim(f"{size}, Dice", statistics.mean(r["dice"] for r in rows), ".4f"),
    ]
    if size == "native":
        out.append(Claim(f"{size}, fresh memory", max(r["fresh_ms"] for r in rows), ".1f", " ms", 200.0, "at most"))
    if "p99" in rows[0]:
        far, apart = max(r["p99"] for r in rows), max(abs(r["dice"] - r["cpu_dice"]) for r in rows)
        out += [
            Claim(f"{size}, 99 % of voxels as on the processor within", far, ".4f", " voxels", TARGET_P99, "at most"),
            Claim(f"{size}, Dice apart from the processor's", apart, ".5f", "", TARGET_DICE, "at most"),
            Claim(f"{size}, processor", statistics.mean(r["cpu_ms"] for r in rows) / 1e3, ".2f", " s"),
        ]
    return out


if __name__ == "__main__":
    main()
