"""Overlap of structures before any deformable stage: headers, affine start, and the start from structure maps.

Pairs are those of the folds of a cross-validation. With ``--maps`` the maps are what networks told out of fold, without
the moving mask and with it; without ``--maps`` they are the masks of both images: what a perfect predictor would give.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from _common import ROOT, Claim, parser, write
from _intervals import mean_interval
from _map_folder import map_folder
from _pairs import SETS, PairName, read
from _split import fold_pairs
from regweave import predictors
from regweave.measures import dice
from regweave.measures.regularity import regularity
from regweave.pipeline.prepare import start_pair
from regweave.predictors import Examples
from regweave.predictors.base import maps_from_labels
from regweave.registration.starts.structures import started_from_structures
from regweave.spatial.warp import warp_labels
from regweave.types import Field, ImagePair, Transform


def overlap(pair: ImagePair, labels: list[int]) -> float:
    """Mean Dice of the structures that either image shows, moved by the start alone."""
    assert pair.fixed.labels is not None
    assert pair.moving.labels is not None
    begun = Transform(pair.initial_field or Field.zero(pair.fixed.geometry), pair.initial)
    found = dice(warp_labels(pair.moving.labels, begun), pair.fixed.labels, labels)
    return float(np.nanmean(list(found.values())))


def starts_of(name: PairName, predictor: Any, told: bool) -> Mapping[str, float]:
    """Dice of each start of one pair."""
    labels = list(SETS[name.set].labels)
    pair = start_pair(read(name), "affine")
    drawn = [maps_from_labels(labelled, predictor) for labelled in (pair.fixed.labels, pair.moving.labels)]
    fixed, moving = (predictor.maps(pair.fixed), predictor.maps(pair.moving)) if told else drawn
    mapped = pair.with_fixed(maps=fixed).with_moving(maps=moving)
    found = {"headers": replace(pair, initial=np.eye(4)), "affine": pair, "structures": started_from_structures(mapped)}
    if told:
        found["structures, mask"] = started_from_structures(mapped.with_moving(label_maps=drawn[1]))
    out = {start: overlap(begun, labels) for start, begun in found.items()}
    field = found["structures"].initial_field
    folded = 0.0 if field is None else regularity(field)["folding_fraction"]
    print(name, {k: round(v, 3) for k, v in out.items()}, f"folded {folded:g}", flush=True)
    return {**out, "folding_fraction": folded}


def main() -> None:
    """Start every pair in every way, and write the means."""
    options = parser(__doc__, pairs=2)
    options.add_argument("--set", default="btcv_abdomen", choices=sorted(SETS), help="set of REGWEAVE_DATA")
    options.add_argument("--maps", type=Path, default=None, help="archive of out-of-fold maps of a network")
    options.add_argument("--work", type=Path, default=ROOT / "build" / "crossval", help="folder for what is computed")
    args = options.parse_args()
    of = SETS[args.set]
    if args.maps is not None:
        map_folder(args.set, args.maps, args.work / "maps" / args.set)
    names = [name for fold in range(of.folds) for name in fold_pairs(args.set, fold, args.pairs)]
    first, classes = read(names[0]).fixed, (0, *of.labels)
    predictor: Any = SimpleNamespace(classes=classes, voxel_mm=float(first.geometry.spacing_mm.min()))
    if args.maps is not None:
        examples = Examples([first], [first.labels], classes, "ct" if first.modality == "ct" else "mr", 0, ["one"])
        predictor = predictors.fit("stored_maps", examples)
    rows = {str(name): starts_of(name, predictor, args.maps is not None) for name in names}
    ways = list(next(iter(rows.values())))
    means = {w: mean_interval([r[w] for r in rows.values()], [n.subject for n in names], args.seed) for w in ways}
    maps = "networks, out of fold" if args.maps else "masks of both images"
    content = {"data": args.set, "credit": of.credit, "maps": maps, "means": means, "rows": rows}
    where = f"{args.set}, {len(names)} pairs, maps: {maps}"
    claims = [Claim(f"{w}, start alone, {where}", m["mean"]) for w, m in means.items()]
    write(args.output or f"starts-{args.set}{'' if args.maps else '-masks'}", args.seed, content, claims)


if __name__ == "__main__":
    sys.exit(main())
