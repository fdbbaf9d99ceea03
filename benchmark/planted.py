"""Learning on phantoms with a planted answer: train on eight, test on eight others, against every tuned baseline."""

from __future__ import annotations

import argparse
from pathlib import Path

from _common import ROOT
from regweave.io import write_image, write_labels
from regweave.io.manifest import PairFiles, write_pairs
from regweave.workflows.evaluate import evaluate
from regweave.workflows.planted import planted_pair
from regweave.workflows.train import TrainOptions, train

SETTINGS = ROOT / "benchmark" / "cases" / "planted.toml"
SEEDS = {"train": range(8), "test": range(100, 108)}


def write_phantoms(folder: Path) -> dict[str, Path]:
    """Write images, labels and the two lists."""
    lists = {}
    for name, seeds in SEEDS.items():
        pairs = []
        for seed in seeds:
            pair, place = planted_pair(seed), folder / f"p{seed}"
            place.mkdir(parents=True, exist_ok=True)
            files = {n: place / f"{n}.nii.gz" for n in ("fixed", "moving", "fixed_labels", "moving_labels")}
            write_image(files["fixed"], pair.fixed)
            write_image(files["moving"], pair.moving)
            write_labels(files["fixed_labels"], pair.fixed_labels)
            write_labels(files["moving_labels"], pair.moving_labels)
            pairs.append(PairFiles(id=f"p{seed}", group=f"p{seed}", **files))
        lists[name] = folder / f"{name}.csv"
        write_pairs(lists[name], pairs)
    return lists


def main() -> None:
    """Make the phantoms, train, evaluate, and say where the summary is."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("output", type=Path, help="new folder")
    options.add_argument("--method", default="lssvm-joint")
    for name, value in (("--eta", 10.0), ("--alpha", 0.05), ("--C", 300.0)):
        options.add_argument(name, type=float, default=value)
    options.add_argument("--workers", type=int, default=2)
    args = options.parse_args()
    args.output.mkdir(parents=True)
    lists = write_phantoms(args.output)
    model = args.output / f"{args.method}.json"
    chosen = TrainOptions(method=args.method, C=args.C, alpha=args.alpha, eta=args.eta)
    train(lists["train"], model, options=chosen, config=SETTINGS, workers=args.workers)
    evaluate(
        lists["test"],
        args.output / "evaluation",
        models=[model],
        baselines=True,
        train_pairs=lists["train"],
        workers=args.workers,
    )
    print(f"wrote {args.output / 'evaluation' / 'summary.md'}")


if __name__ == "__main__":
    main()
