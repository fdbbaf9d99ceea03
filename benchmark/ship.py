"""Turn a model that benchmark/ladder.py trained into one that comes with the package.

The structures get the names of the set, and the overlays, which show patients, are dropped:
`python benchmark/ship.py build/ladder/msd_hippocampus-default/joint.json msd_hippocampus hippocampus-t1`.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from _common import ROOT
from _pairs import SETS
from regweave.io.model import Model, read_model, write_model

MODELS = ROOT / "src" / "regweave" / "models"


def shippable(model: Model, set_name: str) -> Model:
    """Return the model with names of structures and without pictures."""
    names = {0: "background", **SETS[set_name].labels}
    predictor = None if model.class_predictor is None else dict(model.class_predictor)
    if predictor is not None and "names" in predictor:
        predictor["names"] = {str(value): names[int(value)] for value in predictor["names"]}
    evidence = {key: value for key, value in model.evidence.items() if key != "overlays"}
    return replace(model, class_names=names, class_predictor=predictor, evidence=evidence)


def main() -> None:
    """Read, name and write."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", type=Path, help="model of the ladder")
    options.add_argument("set", choices=sorted(SETS), help="set that it was trained on")
    options.add_argument("name", help="name of the shipped model")
    options.add_argument("--folder", type=Path, default=MODELS, help="where to write it")
    args = options.parse_args()
    path = args.folder / f"{args.name}.json"
    write_model(path, shippable(read_model(args.model), args.set))
    print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
