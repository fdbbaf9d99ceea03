"""convexAdam on the same structure maps: a rival that sees what a model with a network sees.

The published search and instance optimisation run on the out-of-fold maps of both images, or of the fixed image and the
moving mask, instead of image features, with the background as a channel and rarer structures weighed more, as its
authors do with segmentations. Pairs are the first of each fold of `crossval.py`; the setting is chosen for each fold
on the pairs of the others. Interrupted, it goes on where it stopped. It needs the packages of the group `peers`:
`python benchmark/convex_maps.py --set msd_hippocampus --maps maps/msd_hippocampus.npz`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import SimpleITK as sitk  # noqa: N813

from _common import ROOT, parser, write
from _map_folder import check
from _pairs import SETS, PairName
from _peer_methods import FOLDER
from _peer_run import Case, case_of, judge
from _split import fold_pairs, folds_of

sys.path.insert(0, str(FOLDER))
import _fields

SETTINGS: dict[str, dict[str, Any]] = {
    "grid 4, weight 1.25": {"grid_sp": 4, "disp_hw": 4, "lambda_weight": 1.25},
    "grid 3, weight 0.75": {"grid_sp": 3, "disp_hw": 4, "lambda_weight": 0.75},
}
Rows = Mapping[tuple[str, str], Mapping[str, Any]]
"""Scores by setting and pair."""
RARER = 0.3
"""Power of the inverse size of a structure that weighs its channel."""


def displacement(fixed: Any, moving: Any, setting: Mapping[str, Any], threads: int) -> Any:
    """Run convexAdam on channels (C, X, Y, Z) of two images; return voxels, (X, Y, Z, 3)."""
    import torch
    from convexAdam import convex_adam_MIND as method

    torch.set_num_threads(threads)
    sizes = (fixed + moving).sum(axis=(1, 2, 3)) + 1.0
    weight = sizes**-RARER
    weight = 10 * (weight / weight.mean())[:, None, None, None]
    channels = [torch.from_numpy(np.asarray(weight * x, dtype=np.float32))[None] for x in (fixed, moving)]
    own = method.extract_features
    method.extract_features = lambda **_: tuple(channels)
    try:
        image = torch.zeros(fixed.shape[1:])
        return method.convex_adam_pt(image, image, dtype=torch.float32, device=torch.device("cpu"), **setting)
    finally:
        method.extract_features = own


def channels_of(shares: Any) -> Any:
    """Put the background before the maps of structures."""
    return np.concatenate([1 - shares.sum(axis=0, keepdims=True), shares]).clip(0, 1)


def row_of(name: PairName, case: Case, archive: Any, setting: str, *, mask: bool, threads: int) -> dict[str, Any]:
    """Register one pair and judge its field as every peer's is."""
    told = [int(c) for c in archive["classes"]]
    places = [told.index(c) - (told[0] == 0) for c in case.labels]
    fixed = channels_of(archive[name.fixed][places] / 255)
    moving = channels_of(archive[name.moving][places] / 255)
    if mask:
        assert case.pair.moving_labels is not None
        moving = channels_of(np.stack([case.pair.moving_labels.data == c for c in case.labels]).astype(float))
    start = time.perf_counter()
    found = displacement(fixed, moving, SETTINGS[setting], threads)
    seconds = time.perf_counter() - start
    image = sitk.ReadImage(str(case.paths["fixed"]), sitk.sitkFloat32)
    return {"seconds": seconds, **judge(case, _fields.from_voxels(found, image))}


def choose(
    rows: Mapping[tuple[str, str], Mapping[str, Any]], pairs: Mapping[int, Sequence[PairName]], fold: int
) -> str:
    """Setting with the best mean Dice on the pairs of all other folds."""
    others = [str(name) for f, of in pairs.items() if f != fold for name in of]

    def mean(setting: str) -> float:
        return float(np.mean([np.nanmean(list(rows[setting, name]["dice"].values())) for name in others]))

    return max(SETTINGS, key=mean)


def main() -> None:
    """Register, choose, write."""
    options = parser(__doc__, pairs=2)
    options.add_argument("--set", default="msd_hippocampus", choices=sorted(SETS))
    options.add_argument("--maps", type=Path, required=True, help="archive of out-of-fold maps")
    options.add_argument("--mask", action="store_true", help="the moving mask instead of the moving image's maps")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--work", type=Path, default=ROOT / "build" / "convex_maps", help="folder for finished pairs")
    args = options.parse_args()
    if SETS[args.set].init != "none":
        raise SystemExit(f"the maps of {args.set} would have to follow its start {SETS[args.set].init!r}")
    pairs = {fold: fold_pairs(args.set, fold, args.pairs) for fold in range(SETS[args.set].folds)}
    rows = {}
    with np.load(args.maps, allow_pickle=False) as archive:
        check(args.set, archive, folds_of(args.set))
        for name in (p for of in pairs.values() for p in of):
            with case_of(name, "none") as case:
                for setting in SETTINGS:
                    rows[setting, str(name)] = _kept(
                        args.work / f"{args.set}-{'mask' if args.mask else 'maps'}-{setting}-{name}.json",
                        lambda n=name, c=case, s=setting: row_of(
                            n, c, archive, s, mask=args.mask, threads=args.threads
                        ),
                    )
    found = []
    for fold, of in pairs.items():
        setting = choose(rows, pairs, fold)
        ids = [(name, f"{name.moving}-to-{name.fixed}") for name in of]
        found += [{"pair": i, "fold": fold, "setting": setting, **rows[setting, str(n)]} for n, i in ids]
    mean = float(np.mean([np.nanmean(list(row["dice"].values())) for row in found]))
    content = {"data": args.set, "credit": SETS[args.set].credit, "mask": args.mask, "mean_dice": mean, "pairs": found}
    print(f"convexAdam on maps, {args.set}: {mean:.3f}")
    write(args.output or f"convex_maps-{args.set}" + "-mask" * args.mask, args.seed, content, [])


def _kept(path: Path, make: Any) -> dict[str, Any]:
    """Return what is in a file, or make it and write it there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".tmp")
        part.write_text(json.dumps(make()), encoding="utf-8")
        part.replace(path)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    main()
