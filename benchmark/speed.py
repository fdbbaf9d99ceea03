"""How long do the stages of the discrete levels take, in memory?

Pairs of 64³ with the paper's bank, run in turn, so that a busy machine disturbs them alike; medians over pairs and
repetitions. Whole registrations are measured by `quiet.py`, other programs beside ours by `peers.py`.
"""

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from _common import Claim, parser, write
from _pairs import SETS, Prepared, choose_pairs, choose_set, prepare, settings_hash, settings_of
from accuracy import judge, mean_dice
from regweave.registration.align import align
from regweave.threads import kernel_threads

STAGES = ("costs", "inference", "compose")


def aligned(p: Prepared, labels: list[int]) -> dict[str, Any]:
    """Align one pair: seconds in all and by stage, of the wall and of the processor."""
    start, busy = time.perf_counter(), time.process_time()
    found = align(p.pair, p.weights, p.schedule)
    seconds, used = time.perf_counter() - start, time.process_time() - busy
    stages = {s: sum(step.seconds[s] for step in found.steps) for s in STAGES}
    dice = mean_dice(judge(p, found.displacement, labels))
    return {"seconds": seconds, "cpu_seconds": used, "stages": stages, "dice": dice}


def main(words: Sequence[str] | None = None) -> None:
    """Align the pairs, print and write the numbers."""
    options = parser(__doc__ or "", pairs=3)
    options.add_argument("--set", default="ibsr18_64", help=f"one of {', '.join(SETS)}")
    options.add_argument("--preset", default="paper")
    options.add_argument("--repetitions", type=int, default=3)
    options.add_argument("--threads", type=int, default=2)
    args = options.parse_args(words)
    (chosen, data), settings = choose_set(args.set), settings_of(args.preset)
    ready = [prepare(name, settings, args.init) for name in choose_pairs(chosen, args.pairs, args.seed)]
    rows = []
    with kernel_threads(args.threads):
        for _ in range(args.repetitions):
            rows += [aligned(p, list(SETS[chosen].labels)) for p in ready]
            print(f"{rows[-1]['seconds']:.2f} s", flush=True)
    where = f"{settings.name}, {args.pairs} pairs of {data}, {args.threads} threads"
    claims = [
        Claim(f"median {what} of the levels, {where}", statistics.median(row[key] for row in rows), ".2f", " s")
        for what, key in (("wall seconds", "seconds"), ("processor seconds", "cpu_seconds"))
    ]
    content = {
        "data": data, "credit": SETS[chosen].credit, "threads": args.threads, "settings": settings_hash(settings),
        "stages": {s: statistics.median(row["stages"][s] for row in rows) for s in STAGES}, "runs": rows,
    }  # fmt: skip
    write(args.output or "speed", args.seed, content, claims)


if __name__ == "__main__":
    sys.exit(main())
