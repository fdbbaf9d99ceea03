"""How a training grows with its list: processor time, wall time and memory of 20, 50, 100 and 200 pairs of phantoms.

Each training is a process of its own, from a list of files to a model, with one worker; the system says what it used.
Of a long list some pairs tune the smoothness and judge weights, 24 and 40 unless told otherwise, so that beyond these
only reading and the class predictor grow. An exponent of 1 is proportional growth. With `--stop` the longest list is
trained once more, killed when half of its registrations are done, continued, and the two models are compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from _common import Claim, parser, write
from _pairs import SETS
from regweave.config import settings as registration_settings
from regweave.config.settings import Settings
from regweave.datasets.manifest import PairFiles, write_pairs
from regweave.datasets.phantom import make_phantom
from regweave.io import write_image, write_labels
from regweave.training.log import TrainProgress
from regweave.training.options import TrainOptions
from regweave.training.run import train

SHAPE, SPACING_MM = (32, 32, 28), (7.0, 7.0, 7.0)
LONGEST = 200
"""Pairs from which on the targets are judged."""
MOST_GROWTH = 1.5
"""Peak of the longest list against that of the shortest, at most."""


def write_phantoms(folder: Path, n: int) -> list[PairFiles]:
    """Write pairs of phantoms, each of a patient of its own."""
    out = []
    for seed in range(n):
        pair, files = make_phantom(seed, SHAPE, SPACING_MM).pair, {}
        for name in ("fixed", "moving"):
            files[name] = folder / f"{seed}_{name}.nii.gz"
            files[f"{name}_labels"] = folder / f"{seed}_{name}_labels.nii.gz"
            write_image(files[name], getattr(pair, name))
            write_labels(files[f"{name}_labels"], getattr(pair, f"{name}_labels"))
        out.append(PairFiles(id=f"{seed:03}", group=f"p{seed:03}", **files))
    return out


def brief(preset: str) -> Settings:
    """Return a preset without its finest level and its refinement: a registration of a tenth of the time."""
    content = registration_settings.preset(preset).model_dump(mode="json")
    content["levels"], content["refine"]["steps"] = content["levels"][:-1], 0
    return registration_settings.validate(content, "the benchmark")


def train_once(folder: Path, settings: Settings, options: TrainOptions) -> None:
    """Train on the list of a folder; the work of each stage is left beside the model."""
    told: dict[str, Any] = {}

    def tell(progress: object) -> None:
        if isinstance(progress, TrainProgress) and progress.stages is not None:
            told.update(progress.stages)

    model = train(
        folder / "pairs.csv", folder / "model.json", options=options, config=settings, workers=1, resume=True,
        on_progress=tell,
    )  # fmt: skip
    work = {"registrations": model.training.registrations, "inferences": model.training.inferences, "stages": told}
    (folder / "work.json").write_text(json.dumps(work), encoding="utf-8")


def command_for(folder: Path, args: Any) -> list[str]:
    """Return the command that trains on the list of a folder."""
    command = [sys.executable, str(Path(__file__).resolve()), "--train", str(folder), "--preset", args.preset]
    command += ["--brief"] if args.brief else []
    return [*command, "--tune-pairs", str(args.tune_pairs), "--judge-pairs", str(args.judge_pairs)]


def stopped(folder: Path, args: Any, whole: Path, registrations: int) -> dict[str, Any]:
    """Kill a training when half of its registrations are done, go on, and say whether the model is the same."""
    tasks = folder / "model.json.work" / "tasks"
    first = subprocess.Popen(command_for(folder, args))
    while first.poll() is None and len(list(tasks.glob("*.json"))) < registrations // 2:
        time.sleep(0.5)
    if first.poll() is not None:
        raise SystemExit("the training ended before it could be stopped")
    first.kill()
    first.wait()
    kept = len(list(tasks.glob("*.json")))
    went_on = measured(folder, args)
    same = (folder / "model.json").read_bytes() == (whole / "model.json").read_bytes()
    return {"registrations_kept": kept, "same_model": same, "cpu_seconds_after": went_on["cpu_seconds"]}


def measured(folder: Path, args: Any) -> dict[str, Any]:
    """Train in a fresh process and return what it and its worker used."""
    start = time.perf_counter()
    pid = os.posix_spawn(sys.executable, command_for(folder, args), dict(os.environ))
    _, status, used = os.wait4(pid, 0)
    if status != 0:
        raise SystemExit(f"the training ended with status {os.waitstatus_to_exitcode(status)}")
    return {
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "seconds": time.perf_counter() - start,
        "peak_mb": used.ru_maxrss / 2**10,
        **json.loads((folder / "work.json").read_text(encoding="utf-8")),
    }


def exponent(values: dict[int, float]) -> float:
    """Slope of the line through the logarithms."""
    return float(np.polyfit(np.log(list(values)), np.log(list(values.values())), 1)[0])


def table(rows: dict[int, dict[str, Any]]) -> str:
    """Return the measurements as a table."""
    lines = ["| pairs | registrations | inferences | CPU s | s | peak of a process, MB |", "|---|---|---|---|---|---|"]
    for n, row in rows.items():
        numbers = f"{row['cpu_seconds']:.1f} | {row['seconds']:.1f} | {row['peak_mb']:.0f}"
        lines.append(f"| {n} | {row['registrations']} | {row['inferences']} | {numbers} |")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> None:
    """Train with each number of pairs and write what it took."""
    options = parser(__doc__, output="many_pairs")
    options.add_argument("--numbers", default="20,50,100,200", help="pairs of each training")
    options.add_argument("--preset", default="default")
    options.add_argument("--brief", action="store_true", help="without the finest level and the refinement")
    options.add_argument("--tune-pairs", type=int, default=TrainOptions.tune_pairs, help="as in regweave train")
    options.add_argument("--judge-pairs", type=int, default=TrainOptions.judge_pairs, help="as in regweave train")
    options.add_argument("--stop", action="store_true", help="also kill the longest training halfway and go on")
    options.add_argument("--train", type=Path, default=None, help="train once on the list of a folder, and end")
    args = options.parse_args(words)
    if args.train is not None:
        how = TrainOptions(tune_pairs=args.tune_pairs, judge_pairs=args.judge_pairs)
        settings = brief(args.preset) if args.brief else registration_settings.preset(args.preset)
        train_once(args.train, settings, how)
        return
    numbers, rows = sorted(int(n) for n in args.numbers.split(",")), {}
    with TemporaryDirectory() as name:
        images = Path(name)
        pairs = write_phantoms(images, numbers[-1])
        for n in numbers:
            folder = images / str(n)
            folder.mkdir()
            write_pairs(folder / "pairs.csv", pairs[:n])
            rows[n] = measured(folder, args)
            print(table({n: rows[n]}).splitlines()[-1], flush=True)
            if len(rows) > 1:  # an hour of work is not lost with the last training
                _write(args, rows)
        if args.stop:
            again = images / "again"
            again.mkdir()
            write_pairs(again / "pairs.csv", pairs)
            _write(args, rows, stopped(again, args, folder, rows[numbers[-1]]["registrations"]))
    print(table(rows))


def _write(args: Any, rows: dict[int, dict[str, Any]], after_a_stop: dict[str, Any] | None = None) -> None:
    numbers = list(rows)
    growth = rows[numbers[-1]]["peak_mb"] / rows[numbers[0]]["peak_mb"]
    far = numbers[-1] >= LONGEST  # a short list proves nothing of a long one
    times = exponent({n: row["cpu_seconds"] for n, row in rows.items()})
    wanted = (1.05, MOST_GROWTH) if far else (None, None)
    larger = f"peak memory with {numbers[-1]} pairs against {numbers[0]}"
    claims = [
        Claim("exponent of the processor time of training over pairs", times, ".2f", "", wanted[0], "at most"),
        Claim(larger, growth, ".2f", "×", wanted[1], "at most"),
    ]
    if after_a_stop is not None:
        same = float(after_a_stop["same_model"])
        claims.append(Claim(f"same model after a stop, {numbers[-1]} pairs", same, ".0f", "", 1.0))
    content = {
        "data": "phantoms", "credit": SETS["phantom"].credit, "preset": args.preset, "shape": list(SHAPE),
        "brief": args.brief, "tune_pairs": args.tune_pairs, "judge_pairs": args.judge_pairs,
        "rows": {str(n): row for n, row in rows.items()}, "stopped": after_a_stop,
    }  # fmt: skip
    write(args.output, args.seed, content, claims)


if __name__ == "__main__":
    sys.exit(main())
