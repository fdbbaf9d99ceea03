"""Packs of images, masks, folds and test pairs, for networks that are trained on a machine without regweave.

`python benchmark/_registration_pack.py msd_hippocampus build/packs/msd_hippocampus.npz`. Intensities are mapped to
[0, 1] by the window of the modality, as the product maps them, and kept in 8 bits; axes are those of the files.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from _pairs import SETS, PairName, cases_of, files, subject_of
from _split import fold_pairs, folds_of
from regweave.pipeline.reading import Reading
from regweave.spatial.intensity import apply_window, default_window


def packed(set_name: str, pairs_a_fold: int) -> dict[str, Any]:
    """Return the arrays of a pack by name."""
    if SETS[set_name].init != "none":
        raise SystemExit(f"pairs of {set_name} need the start {SETS[set_name].init!r}, which a pack does not hold")
    classes, folds = [0, *SETS[set_name].labels], folds_of(set_name)
    cases, shapes = cases_of(set_name), []
    reading = Reading(classes=tuple(classes[1:]))
    out: dict[str, Any] = {}
    for case in cases:
        found = files(PairName(set_name, case, case, subject_of(case)))
        volume = reading.image(found["fixed"])
        labels = reading.labels(found["fixed_labels"], volume.geometry)
        assert labels is not None
        seen = apply_window(volume.data, default_window(volume.data, volume.modality))
        out[f"image_{case}"] = np.rint(255 * seen).astype(np.uint8)
        out[f"labels_{case}"] = np.searchsorted(classes, labels.data).astype(np.uint8)
        shapes.append(volume.data.shape)
    pairs = [(p.fixed, p.moving) for f in sorted(set(folds.values())) for p in fold_pairs(set_name, f, pairs_a_fold)]
    meta = {
        "set": set_name, "cases": cases, "people": [subject_of(c) for c in cases], "folds": [folds[c] for c in cases],
        "shapes": shapes, "classes": classes, "test_pairs": pairs,
    }  # fmt: skip
    return {**out, "meta": np.array(json.dumps(meta))}


def main() -> None:
    """Write a pack."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("set", choices=sorted(SETS))
    options.add_argument("output", type=Path)
    options.add_argument("--pairs", type=int, default=12, help="test pairs of each fold")
    args = options.parse_args()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.output, **packed(args.set, args.pairs))
    print(f"wrote {args.output.name}, {args.output.stat().st_size / 2**20:.1f} MB")


if __name__ == "__main__":
    main()
