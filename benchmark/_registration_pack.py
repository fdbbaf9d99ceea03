"""Packs of images, masks, folds and test pairs, for networks that are trained on a machine without regweave.

`python benchmark/_registration_pack.py msd_hippocampus build/packs` writes ``msd_hippocampus.npz`` with the images,
16-bit along L, P and S, and ``msd_hippocampus.json`` with people, folds and the pairs to be judged.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from _pairs import SETS, PairName, cases_of, files, subject_of
from _split import fold_pairs, folds_of
from regweave.io.orientation import Orientation
from regweave.pipeline.reading import Reading

FULL_SCALE = 2000.0
"""Largest number of an image other than CT: its own scale means nothing."""


def images_of(set_name: str) -> dict[str, Any]:
    """Return ``i_CASE`` and ``l_CASE`` (class numbers), ``classes`` and whether it is CT, by name."""
    classes, reading = [0, *SETS[set_name].labels], Reading(classes=tuple(SETS[set_name].labels))
    out: dict[str, Any] = {"classes": np.array(classes)}
    for case in cases_of(set_name):
        found = files(PairName(set_name, case, case, subject_of(case)))
        volume = reading.image(found["fixed"])
        labels = reading.labels(found["fixed_labels"], volume.geometry)
        assert labels is not None
        turn = Orientation.of(volume.geometry).to_canonical
        data = volume.data if volume.modality == "ct" else _full_scale(volume.data)
        out[f"i_{case}"] = turn(np.rint(data).astype(np.int16))
        out[f"l_{case}"] = turn(np.searchsorted(classes, labels.data).astype(np.uint8))
        out["ct"] = np.array(volume.modality == "ct")
    return out


def _full_scale(data: Any) -> Any:
    return (data - data.min()) * (FULL_SCALE / max(float(np.ptp(data)), 1e-6))


def pairs_of(set_name: str, pairs_a_fold: int) -> dict[str, Any]:
    """Return people, folds, structures and test pairs as JSON values."""
    if SETS[set_name].init != "none":
        raise SystemExit(f"pairs of {set_name} need the start {SETS[set_name].init!r}, which a pack does not hold")
    folds = folds_of(set_name)
    pairs = [p for f in range(SETS[set_name].folds) for p in fold_pairs(set_name, f, pairs_a_fold)]
    return {
        "set": set_name,
        "labels": list(SETS[set_name].labels),
        "people": {case: subject_of(case) for case in folds},
        "folds": folds,
        "test_pairs": [[p.fixed, p.moving] for p in pairs],
    }


def main() -> None:
    """Write a pack."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("set", choices=sorted(SETS))
    options.add_argument("folder", type=Path)
    options.add_argument("--pairs", type=int, default=12, help="test pairs of each fold")
    args = options.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    listed = pairs_of(args.set, args.pairs)
    (args.folder / f"{args.set}.json").write_text(json.dumps(listed) + "\n", encoding="utf-8")
    np.savez_compressed(args.folder / f"{args.set}.npz", **images_of(args.set))


if __name__ == "__main__":
    main()
