"""Networks that learned from 4, 8, 16, 32 and all people, for `curve.py --maps`; on a machine without regweave.

`python benchmark/_curve_networks.py build/packs/openkbp_head_neck.npz --minutes 1.4 --output hn-curve.npz` takes a pack
of `_registration_pack.py`. For each of two folds the people of the others are put in an order by seed, and a network is
trained on the first 4, 8, … of them, with as many steps each; it then tells what it sees in the images of the fold,
whose people it has not met. Only NumPy, PyTorch and the folder `_unet` of the package are used.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
NUMBERS = (4, 8, 16, 32)
TEST_FOLDS = (0, 1)
TRIAL = 120
"""Steps that are timed before the others."""
SPACING_MM = {"msd_hippocampus": (1.0, 1.0, 1.0), "openkbp_head_neck": (3.45, 3.45, 4.0)}
MIRRORED = {"openkbp_head_neck": (0, 2, 1, 3, 4, 5)}


def bare_package(root: Path) -> None:
    """Let parts of the package be imported without the rest of it, where the rest is not installed."""
    for name in ("regweave", "regweave.predictors"):
        module = ModuleType(name)
        module.__path__ = [str(root / "src" / Path(*name.split(".")))]
        sys.modules.setdefault(name, module)


def groups_of(people: Mapping[str, str], folds: Mapping[str, int], fold: int, seed: int) -> dict[int, list[str]]:
    """Cases of the first 4, 8, 16, 32 and all people outside a fold, in an order by seed: more only adds people."""
    others = sorted({people[case] for case, of in folds.items() if of != fold})
    order = [others[k] for k in np.random.default_rng([seed, fold]).permutation(len(others))]
    wanted = sorted({n for n in NUMBERS if n < len(order)} | {len(order)})
    return {n: [case for case in folds if people[case] in order[:n]] for n in wanted}


class Pack:
    """Images of a pack as a network sees them, with the numbers of their structures."""

    def __init__(self, path: Path) -> None:
        from regweave.predictors._unet.intensities import channels, strides_for

        listed = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        self.set, self.people, self.folds = path.stem, listed["people"], listed["folds"]
        self.classes = [0, *listed["labels"]]
        with np.load(path, allow_pickle=False) as packed:
            told = [int(c) for c in packed["classes"]]
            number = np.array([self.classes.index(c) if c in self.classes else 0 for c in told], dtype=np.uint8)
            kind = "ct" if bool(packed["ct"]) else "mr"
            self.images = {case: channels(packed[f"i_{case}"], kind) for case in self.folds}
            self.labels = {case: number[packed[f"l_{case}"]] for case in self.folds}
        x, y, z = (int(n) for n in np.median([i.shape[1:] for i in self.images.values()], axis=0))
        self.strides = strides_for(SPACING_MM[self.set], (x, y, z))
        self.shape = (x, y, z)

    def trained(self, cases: Sequence[str], steps: int, args: argparse.Namespace) -> dict[str, Any]:
        """Weights of a network that has seen some cases."""
        from regweave.predictors._unet.training import TrainingPlan, fit_network

        plan = TrainingPlan(
            width=args.width,
            steps=steps,
            device=args.device,
            seed=args.seed,
            minutes=30.0,
            mirrored=MIRRORED.get(self.set, ()),
        )
        chosen = [self.images[c] for c in cases], [self.labels[c] for c in cases]
        return fit_network(*chosen, len(self.classes), self.strides, plan)

    def maps(self, arrays: dict[str, Any], case: str, device: str) -> Any:
        """8-bit probabilities of the structures of an image."""
        from regweave.predictors._unet.module import probabilities

        found = probabilities(arrays, self.images[case], self.strides, device)[1:]
        return np.rint(255 * found).astype(np.uint8)


def dice_of(maps: Any, truth: Any) -> dict[str, float]:
    """Dice of the likeliest class, by number of the structure, for those that the image shows."""
    shares = maps.astype(np.int32)
    likely = np.concatenate([255 - shares.sum(axis=0, keepdims=True), shares]).argmax(axis=0)
    out = {}
    for number in range(1, len(shares) + 1):
        a, b = likely == number, truth == number
        if b.any():
            out[str(number)] = 2 * float((a & b).sum()) / float(a.sum() + b.sum())
    return out


def steps_for(pack: Pack, n_networks: int, args: argparse.Namespace) -> int:
    """Count the steps that each network can have, from the time of a few."""
    cases = list(pack.folds)
    pack.trained(cases[:8], 20, args)
    start = time.perf_counter()
    pack.trained(cases[:8], TRIAL, args)
    each = (time.perf_counter() - start) / TRIAL
    left = 60 * args.minutes - 20 - TRIAL * each
    return int(min(args.steps, max(50, left / n_networks / each)))


def main() -> None:
    """Train all networks, keep their maps and the Dice of their segmentations."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("packed", type=Path, help="set written by _registration_pack.py, SET.npz beside SET.json")
    options.add_argument("--output", type=Path, required=True, help="archive to write")
    options.add_argument("--minutes", type=float, default=1.4, help="time for all networks together")
    options.add_argument("--steps", type=int, default=3000, help="of each network, at most")
    options.add_argument("--width", type=int, default=24)
    options.add_argument("--device", default="cuda")
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args()
    bare_package(ROOT)
    start, pack = time.perf_counter(), Pack(args.packed)
    groups = {fold: groups_of(pack.people, pack.folds, fold, args.seed) for fold in TEST_FOLDS}
    steps = steps_for(pack, sum(map(len, groups.values())), args)
    out, scores = {}, []
    for fold, of in groups.items():
        for place, (n, cases) in enumerate(of.items()):
            size = NUMBERS[place] if place < len(NUMBERS) and NUMBERS[place] == n else 0  # 0 stands for all
            arrays = pack.trained(cases, steps, args)
            for case in (c for c, f in pack.folds.items() if f == fold):
                maps = pack.maps(arrays, case, args.device)
                out[f"{size}/{case}"] = maps
                scores.append({"people": size, "n": n, "case": case, "person": pack.people[case], "fold": fold,
                               "dice": dice_of(maps, pack.labels[case])})  # fmt: skip
            told = [np.mean(list(s["dice"].values())) for s in scores if s["people"] == size and s["fold"] == fold]
            print(
                f"{pack.set}, fold {fold}, {n} people: {np.mean(told):.3f}, {time.perf_counter() - start:.0f} s",
                flush=True,
            )
    about = {"set": pack.set, "classes": pack.classes, "steps": steps, "seed": args.seed, "scores": scores}
    np.savez_compressed(args.output, about=np.array(json.dumps(about)), **out)


if __name__ == "__main__":
    main()
