"""Two learners of the refinement's columns: real Dice of registrations, and the latent SVM on the refinement's costs.

Both train on the same pairs of training patients, from one store of registrations, and are judged on pairs of others,
beside the common mix that they start from. What each structure came to trust is printed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from _common import Claim, parser, write
from _pairs import SETS
from _split import test_pairs, training_pairs, write_csv
from regweave.config import settings as registration_settings
from regweave.datasets.manifest import read_pairs
from regweave.jobs.kept import Kept
from regweave.jobs.methods import Method
from regweave.jobs.runner import Runner
from regweave.jobs.scoring import pair_score
from regweave.measures.statistics import paired_bootstrap
from regweave.model.model import Model
from regweave.pipeline.reading import Reading
from regweave.training.log import TrainProgress
from regweave.training.options import TrainOptions
from regweave.training.run import fit_model

LEARNERS = ("dice", "svm")


def _tell(progress: object) -> None:
    if isinstance(progress, TrainProgress):
        print(f"  {progress.stage}: {progress.message}", flush=True)


def method(name: str, model: Model) -> Method:
    """Return a method that uses a model; its training record is no part of what runs."""
    return Method(name, model.settings, tried=replace(model, training=type(model.training)()))


def judge(methods: Sequence[Method], pairs: Sequence[Any], run: Runner) -> dict[str, Any]:
    """Mean Dice of each method on the test pairs, and its difference from the first with an interval by patient."""
    outcomes = iter(run([(f"{m.name}/{p.id}", m, p) for m in methods for p in pairs], dice_only=True))
    dice = {m.name: [pair_score(next(outcomes).value).mean() for _ in pairs] for m in methods}
    first = dice[methods[0].name]
    out = {}
    for name, values in dice.items():
        gain = paired_bootstrap([a - b for a, b in zip(values, first, strict=True)], [p.group for p in pairs])
        pair_dice = dict(zip([p.id for p in pairs], values, strict=True))
        out[name] = {"mean": sum(values) / len(values), "gain": gain._asdict(), "dice": pair_dice}
    return out


def main(words: Sequence[str] | None = None) -> None:
    """Train with each learner, judge and write."""
    options = parser(__doc__, pairs=8)
    options.add_argument("--set", default="openkbp_head_neck", help="set of REGWEAVE_DATA")
    options.add_argument("--test-pairs", type=int, default=6)
    options.add_argument("--preset", default="default")
    options.add_argument("--predictor", default="perceptron", help="as in regweave train; none for a model without")
    options.add_argument("--C", type=float, default=None, help="weight of the slacks")
    options.add_argument("--workers", type=int, default=2)
    args = options.parse_args(words)
    settings = registration_settings.preset(args.preset).model_copy(update={"initial": SETS[args.set].init})
    reading, kept = Reading(classes=tuple(SETS[args.set].labels)), Kept(TrainOptions().max_memory_mb)
    predictor = None if args.predictor == "none" else args.predictor
    with TemporaryDirectory() as name, Runner(reading, args.workers, None, Path(name) / "tasks", None) as run:
        lists = {"train": training_pairs(args.set, args.pairs), "test": test_pairs(args.set, args.test_pairs)}
        for part, pairs in lists.items():
            write_csv(pairs, Path(name) / f"{part}.csv")
        train, test = (read_pairs(Path(name) / f"{part}.csv") for part in lists)
        found, trusted, told, methods = {}, {}, {}, []
        for learner in LEARNERS:
            how = TrainOptions(refinement_learner=learner, predictor=predictor, seed=args.seed, C=args.C)
            print(learner, flush=True)
            model = fit_model(train, settings, how, run, _tell, args.workers, kept)
            trusted[learner] = model.training.to_json()["refinement"].get("columns")
            told[learner] = model.training.to_json().get("predictor")
            methods.append(method(learner, model))
        found = judge([Method("default", settings), *methods], test, run)
    claims = [Claim(f"mean Dice, {name}, {args.set}", row["mean"]) for name, row in found.items()]
    content = {"data": args.set, "credit": SETS[args.set].credit, "settings": settings.name, "scores": found,
               "columns": trusted, "predictor": args.predictor, "predictors": told,
               "train": [p.id for p in train]}  # fmt: skip
    write(args.output or f"learners-{args.set}", args.seed, content, claims)


if __name__ == "__main__":
    sys.exit(main())
