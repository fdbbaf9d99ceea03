"""What maps of predictors that learned from 4, 8, 16, 32 and all people are worth to people they have not met.

`python benchmark/curve_maps.py --set openkbp_head_neck --maps hn-curve.npz` takes what `_curve_networks.py` wrote; with
``--predictor perceptron`` instead the classifiers are fitted here. Two numbers for each size: the Dice of the
segmentations of all people of two folds, and that of registrations without a moving mask of pairs inside these folds.
Pairs of one fold choose the weight of the maps, or none, for the other; with ``--pairs 0`` only segmentations are
scored. Interrupted, it goes on where it stopped.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from _common import ROOT, Claim, parser, write
from _crossval_grid import Candidate, Learning, Table, fixed_candidates, mean_over
from _crossval_mixes import LEARNED
from _curve_networks import NUMBERS, TEST_FOLDS, dice_of, groups_of
from _intervals import mean_interval
from _map_folder import PLUGINS
from _pairs import SETS, PairName, files, subject_of
from _split import fold_pairs, folds_of, write_csv
from crossval import register
from regweave import predictors
from regweave.config import settings as registration_settings
from regweave.datasets.manifest import PairFiles, read_pairs
from regweave.io import sha256
from regweave.io.orientation import Orientation
from regweave.jobs.methods import bank_of_list
from regweave.jobs.runner import Runner
from regweave.pipeline.reading import Reading
from regweave.predictors import Examples
from regweave.registry import FOLDERS

ALL = 0
"""Stands for all people outside a fold, whose number differs from fold to fold."""


def fitted(set_name: str, kind: str, path: Path, seed: int) -> None:
    """Write the archive of `_curve_networks.py` with predictors that are fitted here."""
    reading, folds = Reading(classes=tuple(SETS[set_name].labels)), folds_of(set_name)
    classes, people = (0, *SETS[set_name].labels), {case: subject_of(case) for case in folds}
    seen = {case: files(PairName(set_name, case, case, people[case])) for case in folds}
    images = {case: reading.image(f["fixed"]) for case, f in seen.items()}
    labels = {case: reading.labels(f["fixed_labels"], images[case].geometry) for case, f in seen.items()}
    out: dict[str, Any] = {}
    scores: list[dict[str, Any]] = []
    for fold in TEST_FOLDS:
        for n, cases in groups_of(people, folds, fold, seed).items():
            modality = "ct" if images[cases[0]].modality == "ct" else "mr"
            given = [images[c] for c in cases], [found for c in cases if (found := labels[c]) is not None]
            predictor = predictors.fit(kind, Examples(*given, classes, modality, seed, [people[c] for c in cases]))
            size = n if n in NUMBERS else ALL
            for case in (c for c, of in folds.items() if of == fold):
                truth, turn = labels[case], Orientation.of(images[case].geometry).to_canonical
                assert truth is not None
                maps = np.rint(255 * turn(predictor.maps(images[case]).shares)).astype(np.uint8)
                out[f"{size}/{case}"] = maps
                dice = dice_of(maps, turn(np.searchsorted(classes, truth.data)))
                scores.append(
                    {"people": size, "n": n, "case": case, "person": people[case], "fold": fold, "dice": dice}
                )
            print(f"{set_name}, fold {fold}: {n} people", flush=True)
    about = {"set": set_name, "classes": list(classes), "steps": None, "seed": seed, "scores": scores}
    np.savez_compressed(path, about=np.array(json.dumps(about)), **out)


def folders(archive: Any, about: Mapping[str, Any], source: str, folder: Path) -> dict[int, Path]:
    """Write a folder for the plug-in `stored_maps` for each number of people, unless it is there."""
    key: Any = vars(predictors.get("stored_maps"))["image_key"]
    reading, out = Reading(), {}
    for size in sorted({row["people"] for row in about["scores"]}):
        out[size] = folder / str(size)
        told = out[size] / "about.json"
        if told.exists() and json.loads(told.read_text(encoding="utf-8"))["source"] == f"{source} {size}":
            continue
        out[size].mkdir(parents=True, exist_ok=True)
        for case in (row["case"] for row in about["scores"] if row["people"] == size):
            volume = reading.image(files(PairName(about["set"], case, case, subject_of(case)))["fixed"])
            np.save(out[size] / f"{key(volume)}.npy", archive[f"{size}/{case}"])
        content = {"set": about["set"], "source": f"{source} {size}", "classes": about["classes"]}
        told.write_text(json.dumps(content) + "\n", encoding="utf-8")
    return out


def candidates_of(args: Any, pairs: Mapping[int, list[PairFiles]], found: Mapping[int, Path]) -> list[Candidate]:
    """Return the settings alone, and for each number of people the weights of its maps, as rungs."""
    settings = registration_settings.preset(args.preset).model_copy(update={"initial": SETS[args.set].init})
    reading = Reading(classes=tuple(SETS[args.set].labels))
    modality = bank_of_list(settings, pairs[TEST_FOLDS[0]], reading)
    default = next(c for c in fixed_candidates(settings, modality, ("none",)) if c.name == "uniform × 1")
    models = args.work / args.set / "models"
    models.mkdir(parents=True, exist_ok=True)
    image = reading.image(pairs[TEST_FOLDS[0]][0].fixed)
    blank = reading.labels(pairs[TEST_FOLDS[0]][0].fixed_labels, image.geometry)
    out = [default]
    for size, folder in found.items():
        os.environ["REGWEAVE_STORED_MAPS"] = str(folder.absolute())
        classes = (0, *SETS[args.set].labels)
        told = predictors.fit("stored_maps", Examples([image], [blank] if blank else [], classes, modality, 0, ["-"]))
        learning = Learning(settings, modality, classes, dict.fromkeys(TEST_FOLDS, told), models)
        out += [Candidate(str(size), c.name, c.method) for c in learning.candidates() if c.rung == LEARNED]
    return out


def chosen(table: Table, size: int, fold: int, labels: Sequence[str]) -> tuple[str, str]:
    """Weight of the maps that is best on the pairs of the other fold, or the settings alone."""
    keys = [("uniform", "uniform × 1"), *(key for key in table.dice if key[0] == str(size))]
    others = [p.id for f, of in table.pairs.items() if f != fold for p in of]
    return max(keys, key=lambda key: float(np.mean([mean_over(table.dice[key][p], labels) for p in others])))


def judged(table: Table, sizes: Sequence[int], labels: Sequence[str], seed: int) -> dict[str, Any]:
    """Mean Dice and interval by person for the settings alone and each number of people; what the folds chose."""
    plan = [(fold, p) for fold, of in table.pairs.items() for p in of]
    people = [p.group.split("+")[0] for _, p in plan]
    default = [mean_over(table.dice["uniform", "uniform × 1"][p.id], labels) for _, p in plan]
    out: dict[str, Any] = {"default": mean_interval(default, people, seed)}
    for size in sizes:
        taken = {fold: chosen(table, size, fold, labels) for fold in table.pairs}
        dice = [mean_over(table.dice[taken[fold]][p.id], labels) for fold, p in plan]
        gain = mean_interval([a - b for a, b in zip(dice, default, strict=True)], people, seed)
        name = "all" if size == ALL else str(size)
        out[f"{name}/no mask"] = {
            **mean_interval(dice, people, seed),
            "gain": gain,
            "chosen": [taken[f][1] for f in taken],
        }
    return out


def segmentation(about: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Mean Dice of the segmentations for each number of people, with its interval by person."""
    out = {}
    for size in _order({row["people"] for row in about["scores"]}):
        rows = [row for row in about["scores"] if row["people"] == size]
        means = [float(np.mean(list(row["dice"].values()))) for row in rows]
        numbers = sorted({row["n"] for row in rows})
        out["all" if size == ALL else str(size)] = {
            **mean_interval(means, [row["person"] for row in rows], seed), "people": numbers
        }  # fmt: skip
    return out


def registered(args: Any, pairs: Mapping[int, list[PairFiles]], found: Mapping[int, Path]) -> dict[str, Any]:
    """Register all pairs with the maps of every number of people, and judge them."""
    with Runner(Reading(classes=tuple(SETS[args.set].labels)), args.workers, None, args.work / "tasks", None) as run:
        table = register(candidates_of(args, pairs, found), pairs, run)
    return judged(table, _order(set(found)), [str(c) for c in SETS[args.set].labels], args.seed)


def _order(sizes: set[int]) -> list[int]:
    return sorted(sizes, key=lambda n: (n == ALL, n))


def main(words: Sequence[str] | None = None) -> None:
    """Fit or read, register, judge, write."""
    options = parser(__doc__, pairs=12)
    options.add_argument("--set", default="msd_hippocampus", help="set of REGWEAVE_DATA")
    options.add_argument("--preset", default="default", help="settings")
    options.add_argument("--maps", type=Path, default=None, help="archive of _curve_networks.py")
    options.add_argument("--predictor", default="unet", help="what told the maps; without --maps it is fitted here")
    options.add_argument("--work", type=Path, default=ROOT / "build" / "curve_maps", help="folder for what is computed")
    options.add_argument("--workers", type=int, default=1)
    args = options.parse_args(words)
    os.environ[FOLDERS] = str(PLUGINS)
    (args.work / args.set).mkdir(parents=True, exist_ok=True)
    path = args.maps or args.work / args.set / f"{args.predictor}.npz"
    if not path.exists():
        fitted(args.set, args.predictor, path, args.seed)
    pairs = {}
    for fold in TEST_FOLDS if args.pairs else ():
        listed = args.work / args.set / f"pairs-{fold}.csv"
        write_csv(fold_pairs(args.set, fold, args.pairs), listed)
        pairs[fold] = read_pairs(listed)
    with np.load(path, allow_pickle=False) as archive:
        about = json.loads(str(archive["about"]))
        found = folders(archive, about, sha256(path), args.work / args.set / args.predictor)
    scores, alone = registered(args, pairs, found) if args.pairs else {}, segmentation(about, args.seed)
    claims = [Claim(f"mean Dice, {name}, {args.set}", of["mean"]) for name, of in scores.items()]
    claims += [Claim(f"mean Dice, segmentation, {name} people, {args.set}", of["mean"]) for name, of in alone.items()]
    content = {
        "data": args.set, "credit": SETS[args.set].credit, "settings": args.preset, "predictor": args.predictor,
        "steps": about["steps"], "n_pairs": sum(map(len, pairs.values())), "scores": scores, "segmentation": alone,
    }  # fmt: skip
    write(args.output or f"curve_maps-{args.set}-{args.predictor}", args.seed, content, claims)


if __name__ == "__main__":
    sys.exit(main())
