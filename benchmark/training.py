"""How long training takes: ten pairs, three structures, the four metrics of the paper, from files to a model."""

import resource
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from _common import Claim, parser, write
from _pairs import SETS, choose_set, training_pairs, write_csv
from regweave.progress import TrainProgress
from regweave.training.run import train

TARGET_S = {True: 45, False: 10}
"""On the processor, and with a GPU."""
METRICS = ("sad", "mi", "ncc", "dwt")


def main() -> None:
    """Train once and write seconds, registrations and inferences of each stage, and the peak of memory."""
    options = parser(__doc__, pairs=10, output="training")
    options.add_argument("--set", default="ibsr18_64", help="set of REGWEAVE_DATA")
    options.add_argument("--preset", default="paper")
    options.add_argument("--method", default="lssvm-joint")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--device", default="cpu", help="what registers")
    args = options.parse_args()
    name, what = choose_set(args.set)
    stages: dict[str, object] = {}

    def tell(progress: object) -> None:
        if isinstance(progress, TrainProgress):
            print(f"{progress.stage}: {progress.message}", flush=True)
            stages.update(progress.stages or {})

    with TemporaryDirectory() as folder:
        write_csv(training_pairs(name, args.pairs), Path(folder) / "pairs.csv")
        start = time.perf_counter()
        model = train(
            Path(folder) / "pairs.csv", Path(folder) / "model.json", method=args.method,
            preset=args.preset, metrics=METRICS, workers=args.workers, device=args.device,
            on_progress=tell,
        )  # fmt: skip
        seconds = time.perf_counter() - start
    # Peak of this process, which learns, and of the largest worker; one thread of registration each.
    used = [resource.getrusage(kind) for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own, worker = (u.ru_maxrss / 2**20 for u in used)
    processor = {name: u.ru_utime + u.ru_stime for name, u in zip(("learning", "workers"), used, strict=True)}
    on = "" if args.device == "cpu" else f", {args.device}"
    where = f"{args.pairs} pairs of {name}, {len(model.weights.classes) - 1} structures, {len(METRICS)} metrics{on}"
    claims = [
        Claim(
            f"seconds of training, {args.method}, {args.preset}, {where}",
            seconds,
            ".0f",
            " s",
            TARGET_S[args.device == "cpu"],
            "at most",
        ),
        Claim(
            "seconds of processor of the same, at most those of two cores",
            sum(processor.values()),
            ".0f",
            " s",
            90,
            "at most",
        ),
        Claim(
            f"peak memory of training and its workers, {where}", own + args.workers * worker, ".2f", " GB", 2, "at most"
        ),
    ]
    content = {
        "cpu_seconds": processor, "data": what, "credit": SETS[name].credit, "stages": stages, "method": args.method,
        "registrations": model.training.registrations, "inferences": model.training.inferences,
    }  # fmt: skip
    write(args.output, args.seed, content, claims)


if __name__ == "__main__":
    sys.exit(main())
