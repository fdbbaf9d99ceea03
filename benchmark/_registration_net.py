"""Registration network of the VoxelMorph kind, trained with Dice on the patients of the other folds; a rival.

A U-Net sees both images and gives a stationary velocity at half resolution, whose exponential moves the moving image.
The loss is local correlation, the Dice of warped masks and the smoothness of the velocity; masks are seen in training
alone. One network for each fold, trained on ordered pairs of people of all other folds and judged on the pairs drawn
inside the fold. The factor of the smoothness is chosen once, on people of the second fold, by a network that saw
neither them nor those of the first: in the rival's favour, for in their own turn these people are test people again.
It needs NumPy and PyTorch alone:
`python benchmark/_registration_net.py msd_hippocampus.npz --minutes 3 --output net-msd_hippocampus.json`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

WIDTHS = (16, 32, 32, 32)
SQUARINGS = 6
WINDOW = 7
"""Voxels along an axis in which images are correlated."""
SHORT_AXIS = 24
"""An axis with fewer voxels is not pooled: short stacks of thick slices."""
SMOOTHNESS = (0.005, 0.02, 0.1, 0.5)


@dataclass(frozen=True)
class Plan:
    """How a network is trained."""

    seconds: float
    steps: int = 10**9
    """Most steps: whichever of the two comes first ends a training."""
    batch: int = 4
    rate: float = 4e-4
    dice: float = 1.0
    smoothness: float = 0.1
    seed: int = 0
    within_person: bool = False
    """Pairs show one person, as two phases of a heart do."""


@dataclass(frozen=True)
class Cohort:
    """Images (n, 1, X, Y, Z) and class numbers of one set on one device, the person and the fold of each case."""

    cases: list[str]
    people: list[str]
    folds: list[int]
    images: Tensor
    labels: Tensor
    shapes: list[tuple[int, ...]]
    classes: list[int]
    test_pairs: list[tuple[str, str]]

    @classmethod
    def load(cls, path: Path, device: str) -> Cohort:
        """Read a packed set and the file of its pairs beside it; `_registration_pack.py` writes both."""
        listed = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        cases, classes = list(listed["folds"]), [0, *listed["labels"]]
        with np.load(path, allow_pickle=False) as packed:
            told = [int(c) for c in packed["classes"]]
            number = np.array([classes.index(c) if c in classes else 0 for c in told], dtype=np.uint8)
            raw = [packed[f"i_{case}"] for case in cases]
            labels = [number[packed[f"l_{case}"]] for case in cases]
            images = [windowed(image, ct=bool(packed["ct"])) for image in raw]
        people, folds = ([listed[key][case] for case in cases] for key in ("people", "folds"))
        pairs = [(fixed, moving) for fixed, moving in listed["test_pairs"]]
        seen, known = (torch.from_numpy(_padded(arrays)).to(device) for arrays in (images, labels))
        return cls(cases, people, folds, seen[:, None], known, [i.shape for i in images], classes, pairs)

    def masks(self, which: Sequence[int]) -> Tensor:
        """One-hot masks of the structures, (n, C - 1, X, Y, Z)."""
        return nnf.one_hot(self.labels[list(which)].long(), len(self.classes)).movedim(-1, 1)[:, 1:].float()

    def pairs_of(self, folds: Sequence[int], *, within_person: bool) -> list[tuple[int, int]]:
        """All ordered pairs of cases of some folds, of two people or of one."""
        inside = [i for i, fold in enumerate(self.folds) if fold in folds]
        couples = itertools.permutations(inside, 2)
        return [(a, b) for a, b in couples if (self.people[a] == self.people[b]) == within_person]


def windowed(image: Any, *, ct: bool) -> Any:
    """Map intensities to [0, 1]: the window of soft tissue and bone for CT, percentiles otherwise."""
    low, high = (-200.0, 300.0) if ct else np.percentile(image, (0.5, 99.5))
    return ((image.astype(np.float32) - low) / max(high - low, 1e-6)).clip(0, 1).astype(np.float32)


def _padded(arrays: Sequence[Any]) -> Any:
    """Put arrays into one, each axis as long as the longest and, where it is pooled, a multiple of 8."""
    longest = np.max([a.shape for a in arrays], axis=0)
    size = [int(n) if n < SHORT_AXIS else -(-int(n) // 8) * 8 for n in longest]
    out = np.zeros((len(arrays), *size), dtype=arrays[0].dtype)
    for k, a in enumerate(arrays):
        out[k, : a.shape[0], : a.shape[1], : a.shape[2]] = a
    return out


class VelocityNet(nn.Module):
    """U-Net from two images to the velocity between them, at half resolution where axes are long."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)
        stride = tuple(2 if n >= SHORT_AXIS else 1 for n in shape)
        self.stride = stride
        self.down = nn.ModuleList()
        channels = 2
        for k, width in enumerate(WIDTHS):
            self.down.append(_block(channels, width, stride if k else (1, 1, 1)))
            channels = width
        self.up = nn.ModuleList()
        for skip in WIDTHS[-2:0:-1]:
            self.up.append(_block(channels + skip, skip, (1, 1, 1)))
            channels = skip
        self.last = nn.Conv3d(channels, 3, 3, padding=1)
        nn.init.normal_(self.last.weight, std=1e-5)
        nn.init.zeros_(self.last.bias)

    def forward(self, fixed: Tensor, moving: Tensor) -> tuple[Tensor, Tensor]:
        """Return the velocity at half resolution and the displacement on the whole grid, both in whole voxels."""
        x = torch.cat([fixed, moving], 1) * 2 - 1
        seen = []
        for layer in self.down:
            x = layer(x)
            seen.append(x)
        for layer, skip in zip(self.up, seen[-2:0:-1], strict=True):
            x = layer(torch.cat([nnf.interpolate(x, size=skip.shape[2:], mode="nearest"), skip], 1))
        velocity = self.last(x).float()
        scale = torch.tensor(self.stride, device=x.device, dtype=torch.float32).view(1, 3, 1, 1, 1)
        moved = velocity / scale / 2**SQUARINGS
        for _ in range(SQUARINGS):
            moved = moved + warp(moved, moved)
        return velocity, nnf.interpolate(moved * scale, size=self.shape, mode="trilinear", align_corners=False)


def _block(inputs: int, outputs: int, stride: tuple[int, ...]) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(inputs, outputs, 3, stride=stride, padding=1), nn.LeakyReLU(0.2),
        nn.Conv3d(outputs, outputs, 3, padding=1), nn.LeakyReLU(0.2),
    )  # fmt: skip


def warp(volume: Tensor, displacement: Tensor) -> Tensor:
    """Sample a volume (B, C, X, Y, Z) where the displacement in voxels says, trilinearly; outside the edge."""
    shape = displacement.shape[2:]
    axes = [torch.arange(n, device=volume.device, dtype=torch.float32) for n in shape]
    at = torch.stack(torch.meshgrid(*axes, indexing="ij")) + displacement
    last = torch.tensor([max(n - 1, 1) for n in shape], device=volume.device).view(1, 3, 1, 1, 1)
    grid = (2 * at / last - 1).flip(1).permute(0, 2, 3, 4, 1)
    return nnf.grid_sample(volume, grid, mode="bilinear", padding_mode="border", align_corners=True)


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Mean squared local correlation of two images."""
    window = [min(WINDOW, n - 1 + n % 2) for n in a.shape[2:]]

    def mean(x: Tensor) -> Tensor:
        return nnf.avg_pool3d(x, window, stride=1, padding=[w // 2 for w in window], count_include_pad=False)

    ma, mb = mean(a), mean(b)
    cross, va, vb = mean(a * b) - ma * mb, mean(a * a) - ma * ma, mean(b * b) - mb * mb
    return (cross * cross / (va.clamp_min(0) * vb.clamp_min(0) + 1e-5)).mean()


def soft_dice(a: Tensor, b: Tensor) -> Tensor:
    """Mean Dice of the structures that either has."""
    both, total = (a * b).sum((2, 3, 4)), (a + b).sum((2, 3, 4))
    return (2 * both / total.clamp_min(1))[total > 0].mean()


def roughness(velocity: Tensor) -> Tensor:
    """Mean squared difference of neighbours."""
    return torch.stack([velocity.diff(dim=d).square().mean() for d in (2, 3, 4)]).mean()


def train(cohort: Cohort, folds: Sequence[int], plan: Plan) -> tuple[VelocityNet, int]:
    """Train on ordered pairs of some folds for so many seconds; return the network and its steps."""
    torch.manual_seed(plan.seed)
    device = cohort.images.device
    net = VelocityNet(cohort.images.shape[2:]).to(device)
    adam = torch.optim.Adam(net.parameters(), plan.rate)
    pairs, rng = cohort.pairs_of(folds, within_person=plan.within_person), np.random.default_rng(plan.seed)
    half = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    start, steps, done = time.perf_counter(), 0, 0.0
    while done < 1:
        fixed, moving = zip(*(pairs[k] for k in rng.integers(len(pairs), size=plan.batch)), strict=True)
        a, b = cohort.images[list(fixed)], cohort.images[list(moving)]
        with half:
            velocity, displacement = net(a, b)
        moved = warp(torch.cat([b, cohort.masks(moving)], 1), displacement)
        loss = plan.smoothness * roughness(velocity) - correlation(a, moved[:, :1])
        loss = loss - plan.dice * soft_dice(cohort.masks(fixed), moved[:, 1:])
        adam.zero_grad()
        loss.backward()
        adam.step()
        steps += 1
        done = max((time.perf_counter() - start) / plan.seconds, steps / plan.steps)
        # Linear fall of the rate over the second half of the time.
        adam.param_groups[0]["lr"] = plan.rate * min(1.0, 2.02 - 2 * min(done, 1.0))
    return net, steps


@torch.no_grad()
def judge(cohort: Cohort, net: VelocityNet, fixed: int, moving: int) -> dict[str, Any]:
    """Dice by label before and after, and the share of folded voxels, inside the grid of the fixed image."""
    _, displacement = net(cohort.images[[fixed]], cohort.images[[moving]])
    mask = cohort.masks([moving])
    shares = warp(torch.cat([1 - mask.sum(1, keepdim=True), mask], 1), displacement)
    box = tuple(slice(0, n) for n in cohort.shapes[fixed])
    truth, start, moved = (x[box] for x in (cohort.labels[fixed], cohort.labels[moving], shares[0].argmax(0)))
    folded = (determinants(displacement[0][(slice(None), *box)]) <= 0).float().mean()
    return {
        "pair": f"{cohort.cases[moving]}-to-{cohort.cases[fixed]}",
        "dice_before": hard_dice(truth, start, cohort.classes),
        "dice": hard_dice(truth, moved, cohort.classes),
        "folding_fraction": float(folded),
    }


def hard_dice(a: Tensor, b: Tensor, classes: Sequence[int]) -> dict[str, float | None]:
    """Dice by label; None where both lack it."""
    out: dict[str, float | None] = {}
    for number, value in enumerate(classes[1:], start=1):
        p, q = a == number, b == number
        total = int(p.sum() + q.sum())
        out[str(value)] = 2 * int((p & q).sum()) / total if total else None
    return out


def determinants(displacement: Tensor) -> Tensor:
    """Jacobian determinants by forward differences, (3, X, Y, Z) to (X - 1, Y - 1, Z - 1)."""
    x, y, z = (n - 1 for n in displacement.shape[1:])
    rows = [displacement.diff(dim=d)[:, :x, :y, :z] for d in (1, 2, 3)]
    matrix = torch.stack(rows, -1).permute(1, 2, 3, 0, 4) + torch.eye(3, device=displacement.device)
    return torch.linalg.det(matrix)


def mean_dice(rows: Sequence[Mapping[str, Any]]) -> float:
    """Mean over structures, then over pairs."""
    return float(np.mean([np.mean([d for d in row["dice"].values() if d is not None]) for row in rows]))


def cross_validate(cohort: Cohort, plan: Plan, values: Sequence[float] = SMOOTHNESS) -> dict[str, Any]:
    """Choose the smoothness, then train and judge fold by fold."""
    number = {case: k for k, case in enumerate(cohort.cases)}
    pairs = [(number[fixed], number[moving]) for fixed, moving in cohort.test_pairs]
    folds = sorted(set(cohort.folds))

    def judged(net: VelocityNet, fold: int) -> list[dict[str, Any]]:
        return [{**judge(cohort, net, a, b), "fold": fold} for a, b in pairs if cohort.folds[a] == fold]

    tried = {}
    for value in values:
        net, _ = train(cohort, folds[2:], replace(plan, smoothness=value))
        tried[value] = mean_dice(judged(net, folds[1]))
    best = max(tried, key=lambda value: (tried[value], value))
    rows, steps = [], []
    for fold in folds:
        net, n = train(cohort, [f for f in folds if f != fold], replace(plan, smoothness=best))
        rows += judged(net, fold)
        steps.append(n)
    chosen = {"smoothness": best, "tried": {str(value): d for value, d in tried.items()}}
    return {"plan": asdict(plan), **chosen, "steps": steps, "mean_dice": mean_dice(rows), "pairs": rows}


def main() -> None:
    """Read packed sets, train, judge, write."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("packed", type=Path, help="set written by _registration_pack.py, SET.npz beside SET.json")
    options.add_argument("--output", type=Path, required=True, help="JSON file to write")
    options.add_argument("--minutes", type=float, default=3.0, help="time for all networks of the set together")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = options.parse_args()
    start, cohort = time.perf_counter(), Cohort.load(args.packed, args.device)
    person = dict(zip(cohort.cases, cohort.people, strict=True))
    within = all(person[fixed] == person[moving] for fixed, moving in cohort.test_pairs)
    each = 60 * args.minutes / (len(SMOOTHNESS) + len(set(cohort.folds)))
    found = cross_validate(cohort, Plan(each, within_person=within))
    found = {"set": args.packed.stem, "seconds": time.perf_counter() - start, **found}
    args.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{args.packed.stem}: {found['mean_dice']:.3f}, smoothness {found['smoothness']}, steps {found['steps']}")


if __name__ == "__main__":
    main()
