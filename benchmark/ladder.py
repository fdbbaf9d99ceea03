"""The ladder on a real set, on held-out patients: before, each metric alone, the uniform bank, every way of learning.

Training and test patients are those of `_split.py`. Everything that is tuned or learned sees training pairs alone. The
uniform bank and the best single metrics have their own smoothness of the levels and of the refinement. Interrupted, it
goes on where it stopped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from _common import ROOT, Claim, parser, write
from _pairs import SETS
from _split import patients, test_pairs, training_pairs, write_csv
from regweave.config import settings as registration_settings
from regweave.config.settings import Settings
from regweave.datasets.manifest import PairFiles, read_pairs
from regweave.jobs.methods import REFINE, Method, bank_of_list, baseline_methods, model_methods, tune
from regweave.jobs.runner import Runner
from regweave.jobs.scoring import pair_score
from regweave.measures.statistics import count_better, paired_bootstrap
from regweave.pipeline.reading import Reading
from regweave.study.comparison import Scores
from regweave.training.log import TrainProgress
from regweave.training.options import TrainOptions
from regweave.training.run import fit_model

METHODS = {
    "global": TrainOptions(method="global"),
    "lssvm": TrainOptions(method="lssvm"),
    "joint": TrainOptions(method="lssvm-joint"),
    "search": TrainOptions(method="search", budget=60, max_pairs=4),  # in all about as many registrations as the others
}
DEFAULT = "model:joint"
GAINS = {"best single metric": 0.02, "uniform": -0.002}
LEAST_CLASS = -0.005


def settings_of(stage: str, preset: str = "default") -> Settings:
    """Return a preset, or its discrete levels alone."""
    whole = registration_settings.preset(preset)
    if stage == "default":
        return whole
    content = whole.model_dump(mode="json")
    content["name"], content["refine"]["steps"] = f"{whole.name.replace('@', '-')}-levels", 0
    content["banks"] = {k: [m for m in bank if m["stage"] != "refine"] for k, bank in content["banks"].items()}
    return registration_settings.validate(content, "the ladder")


def difference(scores: Scores, a: Method, b: Method, label: str | None = None) -> dict[str, Any]:
    """Mean paired difference a − b with its interval by patient and counts."""
    d = scores.dice(a, label) - scores.dice(b, label)
    interval = paired_bootstrap(d, [pair.group for pair in scores.pairs])
    n = int((~np.isnan(d)).sum())
    return {"mean": interval.mean, "low": interval.low, "high": interval.high, "n": n, **count_better(d)._asdict()}


def condense(scores: Scores) -> dict[str, Any]:
    """Means by method and structure, and differences of the default learner to the rungs below it."""
    by_name = {m.name: m for m in scores.methods}
    learned = by_name[DEFAULT]
    singles = [m for m in scores.methods if m.name.startswith("single:")]
    best = max(singles, key=lambda m: float(np.nanmean(scores.dice(m))))
    rivals = {"best single metric": best, **{name: m for name, m in by_name.items() if m is not learned}}
    return {
        "n_pairs": len(scores.pairs),
        "before": float(np.nanmean(scores.dice(learned, None, "dice_before"))),
        "methods": {
            m.name: {
                "mean_dice": float(np.nanmean(scores.dice(m))),
                "dice": {label: float(np.nanmean(scores.dice(m, label))) for label in scores.labels()},
                "folding_fraction": float(np.max(scores.numbers(m, "folding_fraction"))),
                "sdlogj": float(np.mean(scores.numbers(m, "sdlogj"))),
                "seconds": float(np.mean(scores.numbers(m, "seconds"))),
                "tuned": bool(m.tuning) or m.model is not None,
                "smoothness": m.settings.smoothness,
                "refine_smoothness": REFINE.get(m.settings) if m.settings.refine.steps else None,
            }
            for m in scores.methods
        },
        "best_single": best.name,
        "differences": {name: difference(scores, learned, m) for name, m in rivals.items()},
        "by_class": {label: difference(scores, learned, by_name["uniform"], label) for label in scores.labels()},
    }


def claims_of(found: Mapping[str, Any], where: str) -> list[Claim]:
    """What the ladder is held against."""
    claims = [
        Claim(f"learned − {rival}, mean Dice, {where}", found["differences"][rival]["mean"], "+.4f", target=least)
        for rival, least in GAINS.items()
    ]
    worst = min(found["by_class"].values(), key=lambda d: d["mean"])["mean"]
    return [*claims, Claim(f"learned − uniform, worst structure, {where}", worst, "+.4f", target=LEAST_CLASS)]


def baselines_of(base: Settings, pairs: Sequence[PairFiles], run: Runner, finalists: int) -> list[Method]:
    """Tune the uniform bank and the best single metrics; the other metrics keep the smoothness of the settings.

    Which ones are best is told by the training pairs, with the smoothness of the settings.
    """
    print("tuning the baselines", flush=True)
    uniform, *singles = baseline_methods(base, bank_of_list(base, pairs, run.reading))
    plan = [(f"first/{m.name}/{p.id}", m, p) for m in singles for p in pairs]
    dice: dict[str, list[float]] = {}
    for (_, method, _), outcome in zip(plan, run(plan, dice_only=True), strict=True):
        dice.setdefault(method.name, []).append(float("nan") if outcome.error else pair_score(outcome.value).mean())
    ranked = sorted(singles, key=lambda m: -float(np.nanmean(dice[m.name])))
    tuned = tune([uniform, *ranked[:finalists]], pairs, lambda work: run(work, dice_only=True))
    return [*tuned, *ranked[finalists:]]


def scores_of(methods: Sequence[Method], pairs: Sequence[PairFiles], run: Runner) -> Scores:
    """Register every test pair with every method."""
    plan = [(f"{m.name}/{p.id}", m, p) for m in methods for p in pairs]
    outcomes = {(m.name, p.id): o for (_, m, p), o in zip(plan, run(plan), strict=True)}
    return Scores(tuple(pairs), tuple(methods), outcomes)


def _trained(paths: Sequence[Path]) -> list[Method]:
    return [method for method, _ in model_methods(paths)]


def models_of(folder: Path, base: Settings, names: Sequence[str], reading: Reading, workers: int) -> list[Path]:
    """Train every model that is not there yet; all take the tuning of the uniform bank from one store."""
    out = []
    for name in names:
        path = folder / f"{name}.json"
        if not path.exists():
            print(f"training {name}", flush=True)
            run = Runner(reading, workers, None, folder / "tasks", None)
            listed = read_pairs(folder / "train.csv")
            fit_model(listed, base, METHODS[name], run, _tell, workers).save(path)
        out.append(path)
    return out


def _tell(progress: object) -> None:
    if isinstance(progress, TrainProgress):
        print(f"  {progress.stage}: {progress.message}", flush=True)


def main(words: Sequence[str] | None = None) -> None:
    """Train, evaluate, condense and write."""
    options = parser(__doc__, pairs=12)
    options.add_argument("--set", default="openkbp_head_neck", help="set of REGWEAVE_DATA")
    options.add_argument("--stage", choices=("default", "levels"), default="default", help="with refinement or without")
    options.add_argument(
        "--preset", default="default", help="settings; those of older rows are kept under their version"
    )
    options.add_argument("--train-pairs", type=int, default=8, help="training pairs")
    options.add_argument("--finalists", type=int, default=4, help="single metrics that are tuned")
    options.add_argument("--methods", default=",".join(METHODS), help="ways of learning, separated by commas")
    options.add_argument("--work", type=Path, default=ROOT / "build" / "ladder", help="folder for models and results")
    options.add_argument("--workers", type=int, default=2)
    args = options.parse_args(words)
    folder = args.work / f"{args.set}-{args.stage}"
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(training_pairs(args.set, args.train_pairs), folder / "train.csv")
    write_csv(test_pairs(args.set, args.pairs), folder / "test.csv")
    base, reading = settings_of(args.stage, args.preset), Reading(classes=tuple(SETS[args.set].labels))
    models = models_of(folder, base, args.methods.split(","), reading, args.workers)
    run = Runner(reading, args.workers, None, folder / "tasks", None)
    methods = [*baselines_of(base, read_pairs(folder / "train.csv"), run, args.finalists), *_trained(models)]
    print("evaluating", flush=True)
    condensed = condense(scores_of(methods, read_pairs(folder / "test.csv"), run))
    train_people, test_people = patients(args.set)
    content = {
        "data": args.set, "credit": SETS[args.set].credit, "stage": args.stage, "settings": base.name,
        "n_training_pairs": args.train_pairs, "training_patients": len(train_people), "test_patients": len(test_people),
        **condensed,
        "training": {p.stem: _cost(p) for p in models},
    }  # fmt: skip
    where = f"{args.set}, {base.name}, {args.stage}, {condensed['n_pairs']} pairs"
    write(args.output or f"ladder-{args.set}-{args.stage}", args.seed, content, claims_of(condensed, where))


def _cost(path: Path) -> dict[str, Any]:
    evidence = json.loads(path.read_text(encoding="utf-8"))["evidence"]
    keys = ("registrations", "inferences", "left_out_gain", "gates", "strengths", "balance", "share")
    return {key: evidence[key] for key in keys}


if __name__ == "__main__":
    sys.exit(main())
