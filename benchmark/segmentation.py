"""What the networks' maps are worth by themselves: Dice of their segmentations, out of fold, over all people of a set.

A registration that compares such maps is to be read beside it: `python benchmark/segmentation.py maps/*.npz`. Sets
that are not given stay as they are in the file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from _common import RESULTS, parser, write
from _intervals import mean_interval
from _map_folder import check
from _pairs import SETS, PairName, cases_of, files, subject_of
from _split import folds_of
from regweave.measures import dice
from regweave.pipeline.reading import Reading


def segmented(maps: Any, told: list[int], labels: list[int]) -> Any:
    """Likeliest label of each voxel from 8-bit maps (structures, X, Y, Z); what does not count is background."""
    shares = np.stack([maps[told.index(label)] for label in labels]).astype(np.int32)
    likely = np.concatenate([255 - shares.sum(axis=0, keepdims=True), shares]).argmax(axis=0)
    return np.array([0, *labels])[likely]


def scores_of(set_name: str, archive: Any) -> dict[str, dict[str, float]]:
    """Dice by case and structure, for the structures that a case shows."""
    check(set_name, archive, folds_of(set_name))
    labels = list(SETS[set_name].labels)
    told = [int(c) for c in archive["classes"] if c != 0]
    reading = Reading(classes=tuple(labels))
    out = {}
    for case in cases_of(set_name):
        found = files(PairName(set_name, case, case, subject_of(case)))
        truth = reading.labels(found["fixed_labels"], reading.image(found["fixed"]).geometry)
        assert truth is not None
        shown = [label for label in labels if (truth.data == label).any()]
        scores = dice(segmented(archive[case], told, labels), truth.data, shown)
        out[case] = {str(label): d for label, d in scores.items()}
    return out


def main() -> None:
    """Score every archive and write one file for all of them."""
    options = parser(__doc__)
    options.add_argument("archives", nargs="+", type=Path, help="maps of sets, SET.npz")
    args = options.parse_args()
    sets = {}
    for path in args.archives:
        with np.load(path, allow_pickle=False) as archive:
            scores = scores_of(path.stem, archive)
        means = [float(np.mean(list(of.values()))) for of in scores.values()]
        labels = SETS[path.stem].labels
        sets[path.stem] = {
            **mean_interval(means, [subject_of(case) for case in scores], args.seed),
            "dice": {
                name: float(np.mean([of[str(v)] for of in scores.values() if str(v) in of]))
                for v, name in labels.items()
            },
        }
        print(f"{path.stem}: {sets[path.stem]['mean']:.3f}", flush=True)
    sets, kept = with_earlier(sets, RESULTS / f"{args.output or 'segmentation'}.json")
    credit = "; ".join(dict.fromkeys(SETS[name].credit for name in sets))
    write(args.output or "segmentation", args.seed, {"sets": sets, "credit": credit, "kept": kept}, [])


def with_earlier(sets: dict[str, Any], path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Add sets that a file has and that were not scored now; of each of them, when and by what it was scored."""
    if not path.exists():
        return sets, {}
    found = json.loads(path.read_text(encoding="utf-8"))
    made = {"date": found["date"], "commit": found["commit"]}
    kept = {name: found.get("kept", {}).get(name, made) for name in found["sets"] if name not in sets}
    return {name: sets.get(name, of) for name, of in {**found["sets"], **sets}.items()}, kept


if __name__ == "__main__":
    sys.exit(main())
