"""Train a model that comes with the package, on pairs of all patients of a set: there are few enough of them.

`benchmark/ladder.py` shows on held-out patients what this training brings; a shipped model is trained in the same way
on the patients of both halves, so it must not be judged by pairs of that set. The structures get the names of the set,
and the overlays, which show patients, are dropped. Interrupted, it goes on where it stopped:
`python benchmark/ship.py msd_hippocampus hippocampus-t1 --pairs 20`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from _common import ROOT, parser
from _pairs import SETS
from _split import all_pairs, write_csv
from ladder import models_of, settings_of
from regweave.io.model import Model, read_model, write_model
from regweave.workflows.inputs import Reading

MODELS = ROOT / "src" / "regweave" / "models"


def shippable(model: Model, set_name: str) -> Model:
    """Return the model with names of structures and without pictures."""
    names = {0: "background", **SETS[set_name].labels}
    predictor = None if model.class_predictor is None else dict(model.class_predictor)
    if predictor is not None and "names" in predictor:
        predictor["names"] = {str(value): names[int(value)] for value in predictor["names"]}
    evidence = {key: value for key, value in model.evidence.items() if key != "overlays"}
    return replace(model, class_names=names, class_predictor=predictor, evidence=evidence)


def main(words: Sequence[str] | None = None) -> None:
    """Train, name and write."""
    options = parser(__doc__, pairs=16)
    options.add_argument("set", choices=sorted(SETS), help="set of REGWEAVE_DATA")
    options.add_argument("name", help="name of the shipped model")
    options.add_argument("--folder", type=Path, default=MODELS, help="where to write it")
    options.add_argument("--work", type=Path, default=ROOT / "build" / "ship", help="folder for what is tried")
    options.add_argument("--workers", type=int, default=2)
    args = options.parse_args(words)
    work = args.work / args.set
    work.mkdir(parents=True, exist_ok=True)
    write_csv(all_pairs(args.set, args.pairs), work / "train.csv")
    reading = Reading(classes=tuple(SETS[args.set].labels))
    (trained,) = models_of(work, settings_of("default"), ["joint"], reading, args.workers)
    path = args.folder / f"{args.name}.json"
    write_model(path, shippable(read_model(trained), args.set))
    print(f"wrote {path.name}")


if __name__ == "__main__":
    sys.exit(main())
