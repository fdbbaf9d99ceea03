"""How long does training take: ten pairs, three structures, the four metrics of the paper, from files to a model?"""

import resource
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from _common import claim, parser, write
from _pairs import SETS, training_pairs, write_csv
from regweave.progress import TrainProgress
from regweave.training.run import train

METRICS = ("sad", "mi", "ncc", "dwt")


def main() -> None:
    """Train once and write seconds, registrations and inferences of each stage, and the peak of memory."""
    options = parser(__doc__, set="ibsr18_64", pairs=10, seed=0, preset="paper", workers=2, output="training")
    options.add_argument("--method", default="lssvm-joint", help="learner of the weights")
    options.add_argument("--device", default="cpu", help="device of registrations")
    args = options.parse_args()
    stages: dict[str, object] = {}

    def tell(progress: object) -> None:
        if isinstance(progress, TrainProgress):
            print(f"{progress.stage}: {progress.message}", flush=True)
            stages.update(progress.stages or {})

    with TemporaryDirectory() as folder:
        pairs, out = Path(folder, "pairs.csv"), Path(folder, "model.json")
        write_csv(training_pairs(args.set, args.pairs), pairs)
        words = {"method": args.method, "preset": args.preset, "workers": args.workers, "device": args.device}
        start = time.perf_counter()
        model = train(pairs, out, metrics=METRICS, on_progress=tell, **words)
        seconds = time.perf_counter() - start
    # Peak of this process, which learns, and of the largest worker; one thread of registration each.
    own, worker = (resource.getrusage(kind) for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    gb = (own.ru_maxrss + args.workers * worker.ru_maxrss) / 2**20
    spent = {name: u.ru_utime + u.ru_stime for name, u in (("learning", own), ("workers", worker))}
    where = f"{args.pairs} pairs of {args.set}, {len(model.weights.classes) - 1} structures, {len(METRICS)} metrics"
    where += "" if args.device == "cpu" else f", {args.device}"
    what, most = f"seconds of training, {args.method}, {args.preset}, {where}", 45 if args.device == "cpu" else 10
    cpu = "seconds of processor of the same, at most those of two cores"
    claims = [
        claim(what, seconds, ".0f s", most=most),
        claim(cpu, sum(spent.values()), ".0f s", most=90),
        claim(f"peak memory of training and its workers, {where}", gb, ".2f GB", most=2),
    ]
    content = {
        "cpu_seconds": spent, "data": args.set, "credit": SETS[args.set].credit, "stages": stages,
        "method": args.method, "registrations": model.training.registrations, "inferences": model.training.inferences,
    }  # fmt: skip
    write(args.output, args.seed, content, claims)


if __name__ == "__main__":
    main()
