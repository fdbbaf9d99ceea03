"""Dice of left-out people against the number of people that a model learned from.

The people of one fold are for the test, and of the others the first 4, 8, 16, … by seed train a model each; so a larger
number only adds people. All models are judged on the same pairs, with the moving mask and without it. Models and
registrations are kept in a folder: interrupted, it goes on where it stopped. `--page` draws what the results say.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from _common import RESULTS, ROOT, Claim, parser, write
from _pairs import SETS, subject_of
from _split import covering_pairs, fold_pairs, folds_of, write_csv
from regweave.config import settings as registration_settings
from regweave.config.settings import Settings
from regweave.datasets.manifest import PairFiles, read_pairs
from regweave.jobs.methods import Method
from regweave.jobs.runner import Runner
from regweave.jobs.scoring import pair_score
from regweave.measures.statistics import paired_bootstrap
from regweave.model.model import Model
from regweave.pipeline.reading import Reading
from regweave.report.charts.lines import line_chart
from regweave.training.log import TrainProgress
from regweave.training.options import TrainOptions
from regweave.training.run import fit_model

NUMBERS = (4, 8, 16, 32)
PAIRS_PER_PERSON = 3
CHART = ROOT / "docs" / "images" / "patients.svg"
TEST_FOLD = 0


def sizes(set_name: str, numbers: Iterable[int], seed: int) -> dict[int, list[str]]:
    """Cases of the people that each model learns from, by the number of people; the last model has all."""
    folds = folds_of(set_name, seed)
    people = sorted({subject_of(case) for case, fold in folds.items() if fold != TEST_FOLD})
    order = [people[k] for k in np.random.default_rng([seed, len(people)]).permutation(len(people))]
    wanted = sorted({n for n in numbers if n < len(order)} | {len(order)})
    return {n: [case for case in folds if subject_of(case) in order[:n]] for n in wanted}


def trained(folder: Path, pairs: Sequence[PairFiles], settings: Settings, options: TrainOptions, run: Runner) -> Model:
    """Read the model of a folder, or train it first."""
    path = folder / "model.zip"
    if not path.exists():
        fit_model(pairs, settings, options, run, _tell).save(path)
    return Model.load(path)


def judged(methods: Mapping[str, Method], pairs: Sequence[PairFiles], run: Runner) -> dict[str, Any]:
    """Mean Dice of each method on the test pairs, its interval by patient, and the Dice of each pair."""
    plan = [(f"{name}/{p.id}", method, p) for name, method in methods.items() for p in pairs]
    outcomes = iter(run(plan, dice_only=True))
    out = {}
    for name in methods:
        dice = [pair_score(next(outcomes).value).mean() for _ in pairs]
        interval = paired_bootstrap(dice, [p.group for p in pairs])
        out[name] = {**interval._asdict(), "dice": dict(zip([p.id for p in pairs], dice, strict=True))}
    return out


def methods_of(models: Mapping[int, Model], settings: Settings) -> dict[str, Method]:
    """The settings alone, and each model with the mask and without it."""
    found = {"default": Method("default", settings)}
    for n, model in models.items():
        method = Method(f"{n} people", model.settings, tried=replace(model, training=type(model.training)()))
        found |= {f"{n}/mask": method, f"{n}/no mask": replace(method, predicted=True)}
    return found


def draw(paths: Sequence[Path]) -> str:
    """Write the picture of all results, and return their table."""
    series: dict[str, list[tuple[float, float]]] = {}
    rows = ["| set | people | no mask | mask | `default` |", "|---|---|---|---|---|"]
    for path in paths:
        found = json.loads(path.read_text(encoding="utf-8"))
        scores = found["scores"]
        for n in found["people"]:
            cells = [scores[f"{n}/{way}"] for way in ("no mask", "mask")]
            told = " | ".join(f"{c['mean']:.3f} [{c['low']:.3f}, {c['high']:.3f}]" for c in cells)
            rows.append(f"| {found['data']} | {n} | {told} | {scores['default']['mean']:.3f} |")
            for way, cell in zip(("no mask", "mask"), cells, strict=True):
                series.setdefault(f"{found['data']}, {way}", []).append((n, cell["mean"]))
    words = {"title": "Dice of left-out people", "x_label": "people in training", "y_label": "mean Dice"}
    CHART.write_text(line_chart(series, **words, standalone=True), encoding="utf-8")
    return "\n".join(rows)


def _tell(progress: object) -> None:
    if isinstance(progress, TrainProgress):
        print(f"  {progress.stage}: {progress.message}", flush=True)


def main(words: Sequence[str] | None = None) -> None:
    """Train, judge and write; or draw what has been written."""
    options = parser(__doc__, pairs=12)
    options.add_argument("--set", default="msd_hippocampus", help="set of REGWEAVE_DATA")
    options.add_argument("--preset", default="default", help="settings")
    options.add_argument("--predictor", default="perceptron", help="as in regweave train")
    options.add_argument("--people", default=",".join(map(str, NUMBERS)), help="numbers of people, besides all")
    options.add_argument("--judge-pairs", type=int, default=24, help="as in regweave train; half as many tune")
    options.add_argument("--work", type=Path, default=ROOT / "build" / "curve", help="folder for models and results")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--page", action="store_true", help="draw the results that there are and print their table")
    args = options.parse_args(words)
    if args.page:
        print(draw(sorted(RESULTS.glob("curve-*.json"))))
        return
    settings, reading = registration_settings.preset(args.preset), Reading(classes=tuple(SETS[args.set].labels))
    settings = settings.model_copy(update={"initial": SETS[args.set].init})
    how = TrainOptions(
        predictor=args.predictor, seed=args.seed, judge_pairs=args.judge_pairs, tune_pairs=max(1, args.judge_pairs // 2)
    )
    models = {}
    for n, cases in sizes(args.set, map(int, args.people.split(",")), args.seed).items():
        folder = args.work / f"{args.set}-{args.predictor}" / str(n)
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng([args.seed, n])
        write_csv(covering_pairs(args.set, cases, PAIRS_PER_PERSON * n, rng), folder / "train.csv")
        print(f"{args.set}: {n} people", flush=True)
        with Runner(reading, args.workers, None, folder / "tasks", None) as run:
            models[n] = trained(folder, read_pairs(folder / "train.csv"), settings, how, run)
    write_csv(fold_pairs(args.set, TEST_FOLD, args.pairs, args.seed), args.work / f"{args.set}.csv")
    with Runner(reading, args.workers, None, args.work / "tasks", None) as run:
        scores = judged(methods_of(models, settings), read_pairs(args.work / f"{args.set}.csv"), run)
    content = {
        "data": args.set, "credit": SETS[args.set].credit, "settings": settings.name, "predictor": args.predictor,
        "people": list(models), "scores": scores,
    }  # fmt: skip
    claims = [Claim(f"mean Dice, {name}, {args.set}", found["mean"]) for name, found in scores.items()]
    write(args.output or f"curve-{args.set}-{args.predictor}", args.seed, content, claims)


if __name__ == "__main__":
    sys.exit(main())
