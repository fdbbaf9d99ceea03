"""Three-dimensional U-Net in PyTorch and its training by stochastic gradient descent."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from regweave.predictors._unet_samples import SegmentedTensors, class_weights

Arrays = dict[str, NDArray[Any]]
Strides = Sequence[tuple[int, int, int]]
Tell = Callable[[int, int, float], None]
"""Called with the step, the number of steps, and the smoothed loss."""

SLOPE = 0.01
EPSILON = 1e-5
WARM_UP = 0.05
"""Share of the steps in which the rate rises."""
AVERAGE = 0.995
"""Decay of the running average of the weights, which is what is kept."""
CHECKS = 12
"""Looks at the held-out images in a training; the weights of the best look are kept."""
PATIENCE = 4
"""Looks without a gain after which a training ends."""
CHECKPOINTS = 10
"""Times that a training writes where it stands."""
TIMED = (10, 30)
"""Steps between which a training finds out how many it can make."""


@dataclass(frozen=True)
class TrainingPlan:
    """Size and length of a training.

    Parameters
    ----------
    width : int
        Channels at full resolution; they double with each scale.
    steps : int
        Steps, at most.
    minutes : float
        Time that it may take: where the first steps say that it would take longer, fewer are made.
    batch : int
        Images in a step.
    patch : tuple of three ints
        Largest crop; a smaller image is taken whole.
    rate : float
        Largest learning rate.
    seed : int
        Draws the starting weights, the order of the images and their augmentation.
    device : str
        ``cpu`` or ``cuda``; on the latter with bfloat16.
    held_out : tuple of ints
        Images, by place, that are not learned from and say when to stop; none where all are needed.
    """

    width: int = 16
    steps: int = 1500
    minutes: float = 60.0
    batch: int = 2
    patch: tuple[int, int, int] = (96, 96, 96)
    rate: float = 2e-3
    seed: int = 0
    device: str = "cpu"
    held_out: tuple[int, ...] = ()


class Block(nn.Module):  # type: ignore[misc] # (PyTorch is an extra and has no types without it)
    """Two convolutions, each with instance normalisation and a leaky rectifier."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv3d(i, outputs, 3, padding=1, bias=False) for i in (inputs, outputs)])
        self.norms = nn.ModuleList([nn.InstanceNorm3d(outputs, eps=EPSILON, affine=True) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of a batch (N, C, X, Y, Z)."""
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = functional.leaky_relu(norm(convolution(x)), SLOPE)
        return x


class UNet(nn.Module):  # type: ignore[misc]
    """Encoder and decoder with skip connections.

    Parameters
    ----------
    inputs, classes : int
        Channels of the image, and scores for each voxel.
    width : int
        Channels at full resolution.
    strides : sequence of three ints each
        Pooling between scales.
    """

    def __init__(self, inputs: int, classes: int, width: int, strides: Strides) -> None:
        super().__init__()
        widths = [width * 2**s for s in range(len(strides) + 1)]
        self.strides = [tuple(s) for s in strides]
        self.down = nn.ModuleList([Block(i, o) for i, o in zip([inputs, *widths[:-1]], widths, strict=True)])
        self.up = nn.ModuleList([Block(widths[s] + widths[s + 1], widths[s]) for s in range(len(strides))])
        self.head = nn.Conv3d(width, classes, 1)

    def features(self, x: Tensor) -> Tensor:
        """Return the channels before the last layer."""
        skips = []
        for block, stride in zip(self.down, [*self.strides, None], strict=True):
            x = block(x)
            if stride is not None:
                skips.append(x)
                x = functional.max_pool3d(x, stride)
        for block, stride, skip in zip(reversed(self.up), reversed(self.strides), reversed(skips), strict=True):
            for axis, factor in enumerate(stride, start=2):
                x = x.repeat_interleave(factor, dim=axis) if factor > 1 else x
            x = block(torch.cat([skip, x], dim=1))
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Return the score of each class."""
        return self.head(self.features(x))

    def named(self) -> dict[str, Tensor]:
        """Return the weights by the names that models keep."""
        found: dict[str, Tensor] = {"head.weight": self.head.weight, "head.bias": self.head.bias}
        for name, blocks in (("down", self.down), ("up", self.up)):
            for s, block in enumerate(blocks):
                for k, (convolution, norm) in enumerate(zip(block.convolutions, block.norms, strict=True)):
                    place = f"{name}{s}.{k}."
                    found |= {place + "weight": convolution.weight, place + "scale": norm.weight}
                    found[place + "shift"] = norm.bias
        return found

    def arrays(self) -> Arrays:
        """Return the weights as numbers of 16 bits."""
        return {name: t.detach().float().cpu().numpy().astype(np.float16) for name, t in self.named().items()}


def padded_shape(shape: Sequence[int], strides: Strides) -> tuple[int, ...]:
    """Return the smallest shape that pooling divides without rest."""
    whole = np.prod(np.array(strides, dtype=int).reshape(-1, 3), axis=0)
    return tuple(int(-(-n // w) * w) for n, w in zip(shape, whole, strict=True))


def fit_network(
    images: Sequence[NDArray[np.float32]],
    labels: Sequence[NDArray[np.uint8]],
    n_classes: int,
    strides: Strides,
    plan: TrainingPlan,
    tell: Tell | None = None,
    resume: Path | None = None,
) -> Arrays:
    """Train a U-Net on segmented images and return its weights.

    The images that the plan holds out choose when to stop.

    Parameters
    ----------
    images : sequence of float32 arrays of shape (I, X, Y, Z)
        Mapped intensities.
    labels : sequence of uint8 arrays of shape (X, Y, Z)
        Number of the class of each voxel.
    n_classes : int
        Classes, the background included.
    strides : sequence
        Pooling between scales.
    plan : TrainingPlan
        Size, length, seed and device.
    tell : callable, optional
        Called now and then.
    resume : path, optional
        File of checkpoints: a training that was stopped goes on from it.
    """
    torch.manual_seed(plan.seed)
    device = torch.device(plan.device)
    shape = tuple(min(p, max(i.shape[a + 1] for i in images)) for a, p in enumerate(plan.patch))
    data = SegmentedTensors(images, labels, padded_shape(shape, strides), device)
    held_out = list(plan.held_out)
    used = [n for n in range(len(images)) if n not in held_out]
    net = UNet(images[0].shape[0], n_classes, plan.width, strides).to(device)
    training = _Training(net, data, n_classes, plan)
    digest = hashlib.sha256(repr((plan, n_classes, strides)).encode())
    for array in (*images, *labels):
        digest.update(np.ascontiguousarray(array).tobytes())
    key = digest.hexdigest()
    training.restore(resume, key)
    began = time.monotonic()
    while training.step < training.steps and not training.settled:
        training.advance(used)
        if training.step == TIMED[0]:
            began = time.monotonic()
        if training.step == TIMED[1]:
            each = (time.monotonic() - began) / (TIMED[1] - TIMED[0])
            training.steps = max(TIMED[1] + 1, min(plan.steps, int(60 * plan.minutes / each)))
        if held_out and training.step % max(1, training.steps // CHECKS) == 0:
            training.look(held_out, strides)
        if tell is not None and training.step % 10 == 0:
            tell(training.step, training.steps, training.smoothed)
        if training.step % max(1, training.steps // CHECKPOINTS) == 0:
            training.keep(resume, key)
    if held_out:
        training.look(held_out, strides)
    return training.result()


def probabilities(arrays: Arrays, image: NDArray[np.float32], strides: Strides, device: str = "cpu") -> NDArray[Any]:
    """Return the probability of each class, (C, X, Y, Z), by PyTorch."""
    width, inputs = arrays["down0.0.weight"].shape[:2]
    net = UNet(inputs, len(arrays["head.bias"]), width, strides)
    with torch.no_grad():
        for name, t in net.named().items():
            t.copy_(torch.as_tensor(arrays[name].astype(np.float32)))
        found = _probabilities(net.to(device), torch.as_tensor(image, device=device), strides)
    return np.asarray(found.cpu().numpy())


def _probabilities(net: nn.Module, image: Tensor, strides: Strides) -> Tensor:
    shape = image.shape[1:]
    whole = padded_shape(shape, strides)
    pad = [p for n, w in zip(reversed(shape), reversed(whole), strict=True) for p in (0, w - n)]
    x = functional.pad(image[None].float(), pad, mode="replicate") if any(pad) else image[None].float()
    cropped = net(x)[0].float()[:, : shape[0], : shape[1], : shape[2]]
    return cropped.softmax(dim=0)


class _Training:
    """State of a training: weights, their running average, optimiser, and what held-out images said."""

    def __init__(self, net: UNet, data: SegmentedTensors, n_classes: int, plan: TrainingPlan) -> None:
        self.net, self.data, self.n_classes, self.plan = net, data, n_classes, plan
        self.average = {name: t.detach().clone().float() for name, t in net.state_dict().items()}
        self.optimiser = torch.optim.AdamW(net.parameters(), lr=plan.rate, weight_decay=1e-2, eps=1e-6)
        self.weights = class_weights(data.labels, n_classes)
        self.step, self.steps, self.smoothed = 0, plan.steps, float("nan")
        self.best, self.stale = -1.0, 0
        self.best_weights: dict[str, Tensor] | None = None

    @property
    def settled(self) -> bool:
        """True if held-out images have stopped to gain."""
        return self.stale >= PATIENCE and self.step > self.steps // 2

    def advance(self, used: Sequence[int]) -> None:
        """Make one step."""
        plan = self.plan
        done = self.step / self.steps
        rate = plan.rate * min(1.0, done / WARM_UP + 0.01) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        rng = np.random.default_rng([plan.seed, self.step])
        x, truth = self.data.batch(self._chosen(used), rng)
        with torch.autocast(self.data.device.type, torch.bfloat16, enabled=self.data.device.type == "cuda"):
            scores = self.net(x)
        loss = _loss(scores.float(), truth, self.weights)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 5.0)
        self.optimiser.step()
        self.step += 1
        decay = min(AVERAGE, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for name, t in self.net.state_dict().items():
                self.average[name].lerp_(t, 1 - decay)
        if self.step % 10 == 0:
            value = float(loss.detach())
            self.smoothed = value if math.isnan(self.smoothed) else 0.9 * self.smoothed + 0.1 * value

    def _chosen(self, used: Sequence[int]) -> list[int]:
        """Images of this step: every image once, in an order drawn anew each time round."""
        places = range(self.step * self.plan.batch, (self.step + 1) * self.plan.batch)
        n = len(used)
        return [used[int(np.random.default_rng([self.plan.seed, 7, p // n]).permutation(n)[p % n])] for p in places]

    def look(self, held_out: Sequence[int], strides: Strides) -> None:
        """Score the running average on held-out images, and keep the best."""
        current = _copied(self.net.state_dict())
        self.net.load_state_dict(self.average)
        with torch.no_grad():
            found = [self._dice(n, strides) for n in held_out]
        self.net.load_state_dict(current)
        mean = float(np.nanmean(found))
        self.stale = 0 if mean > self.best + 1e-4 else self.stale + 1
        if mean > self.best:
            self.best, self.best_weights = mean, _copied(self.average)

    def _dice(self, n: int, strides: Strides) -> float:
        """Mean Dice of the structures of one image."""
        found = _probabilities(self.net, self.data.images[n], strides).argmax(dim=0)
        truth = self.data.labels[n]
        dice = [
            2 * float(((found == c) & (truth == c)).sum()) / float((found == c).sum() + (truth == c).sum())
            for c in range(1, self.n_classes)
            if bool((truth == c).any())
        ]
        return float(np.mean(dice)) if dice else float("nan")

    def result(self) -> Arrays:
        """Return the weights that are kept."""
        self.net.load_state_dict(self.best_weights or self.average)
        return self.net.arrays()

    def keep(self, path: Path | None, key: str) -> None:
        """Write where the training stands, onto a temporary name first."""
        if path is None:
            return
        from safetensors.torch import save_file  # noqa: PLC0415

        parts = {"net": self.net.state_dict(), "average": self.average, "best": self.best_weights or {}}
        state = {f"{part}.{k}": t for part, tensors in parts.items() for k, t in _copied(tensors).items()}
        for k, moments in self.optimiser.state_dict()["state"].items():
            state |= {f"adam.{k}.{m}": torch.as_tensor(t).clone() for m, t in moments.items()}
        numbers = [self.step, self.steps, self.smoothed, self.best, self.stale]
        state["numbers"] = torch.tensor(numbers, dtype=torch.float64)
        part = path.with_name(path.name + ".part")
        save_file(state, part, {"key": key})
        part.replace(path)

    def restore(self, path: Path | None, key: str) -> None:
        """Go on where a training with the same plan stood; start anew where there is none."""
        if path is None or not path.is_file():
            return
        from safetensors import safe_open  # noqa: PLC0415

        with safe_open(path, "pt", device=str(self.data.device)) as file:
            if (file.metadata() or {}).get("key") != key:
                return
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        self.net.load_state_dict(_under("net.", state))
        self.average = _under("average.", state)
        self.best_weights = _under("best.", state) or None
        content = self.optimiser.state_dict()
        moments: dict[int, dict[str, Tensor]] = {}
        for name, t in _under("adam.", state).items():
            number, moment = name.split(".")
            moments.setdefault(int(number), {})[moment] = t
        self.optimiser.load_state_dict({**content, "state": moments})
        step, steps, self.smoothed, self.best, stale = state["numbers"].tolist()
        self.step, self.steps, self.stale = int(step), int(steps), int(stale)


def _copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.detach().contiguous().clone() for name, t in tensors.items()}


def _under(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}


def _loss(scores: Tensor, truth: Tensor, weights: Tensor) -> Tensor:
    """Cross-entropy, weighted by class, plus one minus the mean soft Dice of the structures in the batch."""
    entropy = functional.cross_entropy(scores, truth, weights)
    shares = scores.softmax(dim=1)
    masks = functional.one_hot(truth, scores.shape[1]).permute(0, 4, 1, 2, 3)[:, 1:]
    space = (2, 3, 4)
    both, sums = (shares[:, 1:] * masks).sum(space), shares[:, 1:].sum(space) + masks.sum(space)
    dice = (2 * both + 1) / (sums + 1)
    present = masks.sum(space) > 0
    return entropy + 1 - (dice * present).sum() / present.sum().clamp(min=1)
