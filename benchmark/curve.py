"""Dice of left-out people against the number of people that a model learned from.

The people of one fold are for the test, and of the others the first 4, 8, 16, … by seed train a model each; so a larger
number only adds people. All models are judged on the same pairs, with the moving mask and without it. Models and
registrations are kept in a folder: interrupted, it goes on where it stopped. With `--mix shapes=8` only the class
predictor learns, and members of the refinement have these weights against the others: minutes instead of hours, and it
is the predictor that profits by people. `--page` draws what the results say.
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
from regweave.predictors import Choice
from regweave.report.charts.lines import line_chart
from regweave.training.log import TrainProgress
from regweave.training.options import TrainOptions
from regweave.training.predictor_fits import PredictorFits, segmented_images
from regweave.training.run import fit_model
from regweave.training.scan import choose_bank, scan

NUMBERS = (4, 8, 16, 32)
PAIRS_PER_PERSON = 3
WAYS = ("no mask", "mask")
CHART = ROOT / "docs" / "images" / "patients.svg"
TEST_FOLD = 0


def sizes(set_name: str, numbers: Iterable[int], seed: int) -> dict[int, list[str]]:
    """Cases of the people that each model learns from, by the number of people; the last model has all."""
    folds = folds_of(set_name, seed)
    people = sorted({subject_of(case) for case, fold in folds.items() if fold != TEST_FOLD})
    order = [people[k] for k in np.random.default_rng([seed, len(people)]).permutation(len(people))]
    wanted = sorted({n for n in numbers if n < len(order)} | {len(order)})
    return {n: [case for case in folds if subject_of(case) in order[:n]] for n in wanted}


def trained(
    folder: Path, settings: Settings, options: TrainOptions, run: Runner, mix: Mapping[str, float] | None = None
) -> Model:
    """Read the model of a folder, or train it first; with a mix only its predictor."""
    path, pairs = folder / "model.zip", read_pairs(folder / "train.csv")
    if not path.exists():
        how = (pairs, settings, options, run)
        (fit_model(*how, _tell) if mix is None else predictor_alone(*how, mix)).save(path)
    return Model.load(path)


def predictor_alone(
    pairs: Sequence[PairFiles], settings: Settings, options: TrainOptions, run: Runner, mix: Mapping[str, float]
) -> Model:
    """Return a model with given weights of the refinement, whose predictor has learned from the images of pairs."""
    found = scan(pairs, run.reading)
    bank, grids = choose_bank(found), {n: {"fixed": c.fixed, "moving": c.moving} for n, c in found.contents.items()}
    settings = settings.model_copy(update={"modality": bank})
    classes = (0, *(run.reading.classes or ()))
    start = settings.schedule(bank).start_weights(settings.smoothness, classes)
    largest = max(m.weight for m in settings.schedule(bank).continuous)
    shares = {m.name: mix.get(m.name, m.weight / largest) for m in settings.schedule(bank).continuous}
    kind = Choice(options.predictor or "perceptron", {})
    fit = PredictorFits(kind, classes, "ct" if bank == "ct" else "mr", run.reading, options.seed)
    predictor = fit(segmented_images(pairs, run.hashes, lambda p: grids[p.id]), None)
    names = {c: "background" if c == 0 else found.names.get(c, str(c)) for c in classes}
    return Model(start.share_out(shares), settings, bank, names, predictor=predictor)


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


def methods_of(models: Mapping[int, Model], settings: Settings, ways: Sequence[str] = WAYS) -> dict[str, Method]:
    """The settings alone, and each model with the mask and without it, or one of these."""
    found = {"default": Method("default", settings)}
    for n, model in models.items():
        method = Method(f"{n} people", model.settings, tried=replace(model, training=type(model.training)()))
        found |= {f"{n}/{way}": replace(method, predicted=way == "no mask") for way in ways}
    return found


def draw(paths: Sequence[Path]) -> str:
    """Write the picture of all results, and return their table."""
    series: dict[str, list[tuple[float, float]]] = {}
    rows = ["| set | people | no mask | mask | `default` |", "|---|---|---|---|---|"]
    for path in paths:
        found = json.loads(path.read_text(encoding="utf-8"))
        scores = found["scores"]
        for n in found["people"]:
            cells = {way: scores[f"{n}/{way}"] for way in WAYS if f"{n}/{way}" in scores}
            told = " | ".join(_interval(cells.get(way)) for way in WAYS)
            rows.append(f"| {found['data']} | {n} | {told} | {scores['default']['mean']:.3f} |")
            for way, cell in cells.items():
                series.setdefault(f"{found['data']}, {way}", []).append((n, cell["mean"]))
    words = {"title": "Dice of left-out people", "x_label": "people in training", "y_label": "mean Dice"}
    CHART.write_text(line_chart(series, **words, standalone=True), encoding="utf-8")
    return "\n".join(rows)


def _interval(cell: Mapping[str, float] | None) -> str:
    return "–" if cell is None else f"{cell['mean']:.3f} [{cell['low']:.3f}, {cell['high']:.3f}]"


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
    options.add_argument(
        "--mix", default=None, help="weights of refinement members, as shapes=8; only predictors learn"
    )
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
    mix = None if args.mix is None else {k: float(v) for k, v in (w.split("=") for w in args.mix.split(","))}
    models = {}
    for n, cases in sizes(args.set, map(int, args.people.split(",")), args.seed).items():
        folder = args.work / "-".join([args.set, args.predictor, *([args.mix] if args.mix else [])]) / str(n)
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng([args.seed, n])
        write_csv(covering_pairs(args.set, cases, PAIRS_PER_PERSON * n, rng), folder / "train.csv")
        print(f"{args.set}: {n} people", flush=True)
        with Runner(reading, args.workers, None, folder / "tasks", None) as run:
            models[n] = trained(folder, settings, how, run, mix)
    write_csv(fold_pairs(args.set, TEST_FOLD, args.pairs, args.seed), args.work / f"{args.set}.csv")
    with Runner(reading, args.workers, None, args.work / "tasks", None) as run:
        scores = judged(
            methods_of(models, settings, WAYS if mix is None else WAYS[:1]),
            read_pairs(args.work / f"{args.set}.csv"),
            run,
        )
    content = {
        "data": args.set, "credit": SETS[args.set].credit, "settings": settings.name, "predictor": args.predictor,
        "people": list(models), "mix": mix, "scores": scores,
        "segmentation": {n: m.predictor.save().record.get("mean_dice") for n, m in models.items() if m.predictor},
    }  # fmt: skip
    claims = [Claim(f"mean Dice, {name}, {args.set}", found["mean"]) for name, found in scores.items()]
    write(args.output or f"curve-{args.set}-{args.predictor}", args.seed, content, claims)


if __name__ == "__main__":
    sys.exit(main())
