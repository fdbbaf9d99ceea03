"""Fit of a 3-D U-Net by PyTorch: its layers, augmentation, and training; `unet` evaluates the layers without it."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

Arrays = dict[str, NDArray[Any]]
Strides = Sequence[tuple[int, int, int]]

SLOPE = 0.01
EPSILON = 1e-5


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
    """Encoder and decoder with skip connections; ``strides`` are the pooling between scales."""

    def __init__(self, inputs: int, classes: int, width: int, strides: Strides) -> None:
        super().__init__()
        widths = [width * 2**s for s in range(len(strides) + 1)]
        self.strides = [(int(x), int(y), int(z)) for x, y, z in strides]
        self.down = nn.ModuleList([Block(i, o) for i, o in zip([inputs, *widths[:-1]], widths, strict=True)])
        self.up = nn.ModuleList([Block(widths[s] + widths[s + 1], widths[s]) for s in range(len(strides))])
        self.head = nn.Conv3d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the score of each class."""
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
        return self.head(x)

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


def probabilities(net: nn.Module, image: Tensor, strides: Strides) -> Tensor:
    """Return the probability of each class, (C, X, Y, Z)."""
    shape = image.shape[1:]
    whole = padded_shape(shape, strides)
    pad = [p for n, w in zip(reversed(shape), reversed(whole), strict=True) for p in (0, w - n)]
    x = functional.pad(image[None].float(), pad, mode="replicate") if any(pad) else image[None].float()
    cropped = net(x)[0].float()[:, : shape[0], : shape[1], : shape[2]]
    return cropped.softmax(dim=0)


ANGLES = (0.15, 0.15, 0.25)  # largest rotation about each axis, in radians
FLAT = 0.4  # a grid whose shortest axis has less than this share of the voxels of its longest is turned in plane alone
KNOTS = 5  # knots of the elastic displacement along an axis


class SegmentedTensors:
    """Segmented images in the memory of a device, drawn with augmentation in one shape.

    Images have channels (I, X, Y, Z), labels class numbers (X, Y, Z); the first axis goes from right to left.
    ``mirrored`` has the number of each class in a mirrored image: every second image is then mirrored left to right.
    """

    def __init__(
        self, images: Sequence[NDArray[Any]], labels: Sequence[NDArray[Any]], shape: Sequence[int],
        device: torch.device, mirrored: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.images = [torch.as_tensor(np.ascontiguousarray(i), device=device, dtype=torch.float32) for i in images]
        self.labels = [torch.as_tensor(np.ascontiguousarray(m), device=device, dtype=torch.uint8) for m in labels]
        self.shape, self.device = tuple(shape), device
        self.mirrored = torch.as_tensor(list(mirrored), device=device, dtype=torch.long) if mirrored else None
        axes = [torch.arange(w, device=device) - (w - 1) / 2 for w in self.shape]
        self._places = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).float()

    def batch(self, chosen: Sequence[int], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Draw augmented images (N, I, X, Y, Z) and class numbers (N, X, Y, Z)."""
        drawn = [self._one(n, rng) for n in chosen]
        return torch.stack([d[0] for d in drawn]), torch.stack([d[1] for d in drawn])

    def _one(self, n: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        image, labels = self.images[n], self.labels[n]
        mirror = self.mirrored if self.mirrored is not None and rng.uniform() < 0.5 else None
        grid = self._grid(labels.shape, rng, mirror is not None)
        moved = functional.grid_sample(image[None], grid, padding_mode="border", align_corners=True)[0]
        truth = functional.grid_sample(
            labels[None, None].float(), grid, mode="nearest", padding_mode="zeros", align_corners=True
        )[0, 0]
        numbers = truth.round().long()
        return _recoloured(moved, rng), numbers if mirror is None else mirror[numbers]

    def _grid(self, shape: Sequence[int], rng: np.random.Generator, mirror: bool) -> Tensor:
        """Return sampling positions, in coordinates from -1 to 1: crop, rotation, scaling and a smooth displacement."""
        n, wanted = np.array(shape, dtype=float), np.array(self.shape, dtype=float)
        slack = np.maximum(n - wanted, 0) / 2
        centre = (n - 1) / 2 + rng.uniform(-1, 1, 3) * slack + rng.uniform(-0.04, 0.04, 3) * np.minimum(n, wanted)
        angles = rng.uniform(-1, 1, 3) * ANGLES
        flat = n.min() < FLAT * n.max()
        angles = angles * (np.arange(3) == n.argmin()) if flat else angles
        matrix = _rotation(angles) * rng.uniform(0.88, 1.12, 3) * rng.uniform(0.9, 1.1)
        if flat:
            matrix[n.argmin(), n.argmin()] = 1.0
        if mirror:
            matrix[:, 0] *= -1
        knots = [2 if flat and axis == n.argmin() else KNOTS for axis in range(3)]
        coarse = np.zeros((3, *knots))
        elastic = rng.uniform() < 0.7
        if elastic:
            coarse = rng.normal(size=coarse.shape) * 0.03 * np.minimum(n, wanted)[:, None, None, None]
            if flat:
                coarse[n.argmin()] = 0.0
        # All numbers go to the device at once: separate transfers would each wait for the work before them.
        numbers = np.concatenate([matrix.T.ravel(), centre, np.maximum(n - 1, 1), coarse.ravel()])
        sent = torch.from_numpy(numbers.astype(np.float32))
        if self.device.type == "cuda":
            sent = sent.pin_memory().to(self.device, non_blocking=True)
        places = self._places @ sent[:9].view(3, 3) + sent[9:12]
        if elastic:
            smooth = sent[15:].view(1, 3, *knots)
            smooth = functional.interpolate(smooth, self.shape, mode="trilinear", align_corners=True)
            places = places + smooth[0].permute(1, 2, 3, 0)
        unit = 2 * places / sent[12:15] - 1
        return unit.flip(-1)[None]  # grid_sample takes the last axis first


def _recoloured(image: Tensor, rng: np.random.Generator) -> Tensor:
    """Change brightness, contrast and gamma, add noise or blur; intensities are about -1 to 1."""
    scale = rng.uniform(0.85, 1.15)
    out = image * scale + rng.uniform(-0.1, 0.1)
    if rng.uniform() < 0.3:
        unit = ((out + 1) / 2).clamp(0, 1.25)
        out = 2 * unit ** float(rng.uniform(0.75, 1.35)) - 1
    if rng.uniform() < 0.2:
        smooth = functional.avg_pool3d(out[None], 3, stride=1, padding=1, count_include_pad=False)[0]
        out = out + float(rng.uniform(0.2, 0.9)) * (smooth - out)
    if rng.uniform() < 0.4:
        seed = torch.Generator(device=image.device).manual_seed(int(rng.integers(2**31)))
        noise = torch.randn(out.shape, generator=seed, device=image.device)
        out = out + float(rng.uniform(0.01, 0.1)) * noise
    return out


def _rotation(angles: NDArray[Any]) -> NDArray[Any]:
    out = np.eye(3)
    for axis, angle in enumerate(angles):
        i, j = ((axis + 1) % 3, (axis + 2) % 3)
        turn = np.eye(3)
        turn[i, i] = turn[j, j] = math.cos(angle)
        turn[i, j], turn[j, i] = -math.sin(angle), math.sin(angle)
        out = out @ turn
    return out


def class_weights(labels: Sequence[Tensor], n_classes: int) -> Tensor:
    """Weights of the cross-entropy: the fourth root of how rare a class is, so that small organs survive."""
    counts = sum(torch.bincount(m.flatten().long(), minlength=n_classes).double() for m in labels)
    assert isinstance(counts, Tensor)
    rare = (counts.sum() / counts.clamp(min=1)) ** 0.25
    return (rare / rare[counts > 0].mean()).clamp(max=5.0).float()


Tell = Callable[[int, int, float], None]  # called with the step, the number of steps, and the smoothed loss
WARM_UP = 0.05  # share of the steps in which the rate rises
AVERAGE = 0.995  # decay of the running average of the weights, which is the result
CHECKS = 12  # evaluations on the held-out images in a training; the weights of the best are the result
PATIENCE = 4  # evaluations without a gain after which a training ends
CHECKPOINTS = 10  # checkpoints of a training
TIMED = (10, 30)  # steps between which a training measures the time of a step
RETIMED = (0.1, 0.3)  # shares of the steps after which it measures again: a machine may be busy at first, or later
RECORDED = 3  # steps after which a GPU replays a recorded one: hundreds of small kernels then start at once


@dataclass(frozen=True)
class TrainingPlan:
    """Network, length and device of a training; the options are those of `regweave.predictors.unet.Options`."""

    n_classes: int  # classes, the background included
    strides: Strides  # pooling between scales
    width: int
    steps: int
    minutes: float  # as in the options
    seed: int = 0  # draws the starting weights, the order of the images and their augmentation
    device: str = "cpu"  # `cpu` or `cuda`; on the latter with bfloat16
    held_out: tuple[int, ...] = ()  # images, by place, for early stopping alone; empty where all are needed
    mirrored: tuple[int, ...] = ()
    """Number of each class in a mirrored image; empty where images are not to be mirrored."""
    batch: int = 2  # images in a step
    patch: tuple[int, int, int] = (96, 96, 96)  # largest crop; a smaller image is not cropped
    rate: float = 2e-3  # largest learning rate


def fit_network(
    images: Sequence[NDArray[np.float32]], labels: Sequence[NDArray[np.uint8]], plan: TrainingPlan,
    tell: Tell | None = None, checkpoint: Path | None = None,
) -> Arrays:  # fmt: skip
    """Fit a U-Net to segmented images and return its weights.

    Images are mapped intensities (I, X, Y, Z), labels the class number of each voxel (X, Y, Z). ``tell`` is called
    every ten steps. An interrupted training continues from its ``checkpoint``.
    """
    training = Training(images, labels, plan)
    digest = hashlib.sha256(repr(plan).encode())
    for array in (*images, *labels):
        digest.update(np.ascontiguousarray(array).tobytes())
    key = digest.hexdigest()
    training.restore(checkpoint, key)
    on_gpu = training.data.device.type == "cuda"
    with torch.cuda.stream(torch.cuda.Stream()) if on_gpu else nullcontext():
        _run(training, tell or (lambda *_: None), lambda: training.keep(checkpoint, key))
    return training.result()


def _run(training: Training, tell: Tell, keep: Callable[[], None]) -> None:
    """Make all steps that the time allows, with early stopping by the held-out images."""
    plan, began, first, due = training.plan, time.monotonic(), training.step, TIMED[1]
    warm, on_gpu = training.step + RECORDED, training.data.device.type == "cuda"
    while training.step < training.steps and not training.settled:
        training.advance(training.step / training.steps)
        if on_gpu and training.step == warm:
            training.record()
        if training.step == TIMED[0]:
            began = time.monotonic()
        if training.step % 10 == 0:
            tell(training.step, training.steps, training.tell())  # waits for the device, so that times are true
        if training.step == due and training.step > TIMED[0] >= first:
            each = (time.monotonic() - began) / (training.step - TIMED[0])
            training.steps = max(training.step + 1, min(plan.steps, int(60 * plan.minutes / each)))
            due = next((n for share in RETIMED if (n := 10 * int(share * training.steps / 10)) > training.step), 0)
        if plan.held_out and training.step % max(1, training.steps // CHECKS) == 0:
            training.look()
        if training.step % max(1, training.steps // CHECKPOINTS) == 0:
            keep()
    if plan.held_out:
        training.look()


class Training:
    """State of a training: weights, their running average, optimiser, and results on held-out images."""

    def __init__(
        self, images: Sequence[NDArray[np.float32]], labels: Sequence[NDArray[np.uint8]], plan: TrainingPlan
    ) -> None:
        torch.manual_seed(plan.seed)
        device = torch.device(plan.device)
        shape = tuple(min(p, max(i.shape[a + 1] for i in images)) for a, p in enumerate(plan.patch))
        self.plan = plan
        self.data = SegmentedTensors(images, labels, padded_shape(shape, plan.strides), device, plan.mirrored)
        self.net: UNet = UNet(images[0].shape[0], plan.n_classes, plan.width, plan.strides).to(device)
        self.used = [n for n in range(len(images)) if n not in plan.held_out]
        self.average = {name: t.detach().clone().float() for name, t in self.net.state_dict().items()}
        on_gpu = device.type == "cuda"
        rate: Any = torch.tensor(plan.rate, device=device) if on_gpu else plan.rate
        self.optimiser = torch.optim.AdamW(
            self.net.parameters(), lr=rate, weight_decay=1e-2, eps=1e-6, fused=on_gpu, capturable=on_gpu
        )
        self.weights = class_weights(self.data.labels, plan.n_classes)
        self.step, self.steps, self.smoothed = 0, plan.steps, float("nan")
        self.best, self.stale = -1.0, 0
        self.best_weights: dict[str, Tensor] | None = None
        self.learn: Callable[[Tensor, Tensor], Tensor] = self._learn
        self.loss = torch.tensor(float("nan"))

    @property
    def settled(self) -> bool:
        """True if the gain on held-out images has ended."""
        return self.stale >= PATIENCE and self.step > self.steps // 2

    def advance(self, done: float) -> None:
        """Make one step, after a share of the training is done."""
        rate = self.plan.rate * min(1.0, done / WARM_UP + 0.01) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        x, truth = self.data.batch(self._chosen(self.used), np.random.default_rng([self.plan.seed, self.step]))
        self.loss = self.learn(x, truth)
        self.step += 1
        decay = min(AVERAGE, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.values()), list(self.net.state_dict().values()), 1 - decay)

    def _learn(self, x: Tensor, truth: Tensor) -> Tensor:
        """Change the weights by one step; return the loss before it."""
        with torch.autocast(self.data.device.type, torch.bfloat16, enabled=self.data.device.type == "cuda"):
            scores = self.net(x)
        loss = _loss(scores.float(), truth, self.weights)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 5.0)
        self.optimiser.step()
        return loss.detach()

    def record(self) -> None:
        """Record a step as a CUDA graph, on the present stream, for all that follow; shapes never change."""
        x, truth = self.data.batch(self._chosen(self.used), np.random.default_rng([self.plan.seed, self.step]))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            loss = self._learn(x, truth)

        def learn(now: Tensor, numbers: Tensor) -> Tensor:
            x.copy_(now)
            truth.copy_(numbers)
            graph.replay()
            return loss

        self.learn = learn

    def tell(self) -> float:
        """Return the smoothed loss; waits for the device."""
        value = float(self.loss)
        self.smoothed = value if math.isnan(self.smoothed) else 0.9 * self.smoothed + 0.1 * value
        return self.smoothed

    def _chosen(self, used: Sequence[int]) -> list[int]:
        """Images of this step: every image once in each epoch, in an order drawn for the epoch."""
        places = range(self.step * self.plan.batch, (self.step + 1) * self.plan.batch)
        n = len(used)
        return [used[int(np.random.default_rng([self.plan.seed, 7, p // n]).permutation(n)[p % n])] for p in places]

    def look(self) -> None:
        """Score the running average on held-out images, and keep the best."""
        current = _copied(self.net.state_dict())
        self.net.load_state_dict(self.average)
        with torch.no_grad():
            found = [self._dice(n) for n in self.plan.held_out]
        self.net.load_state_dict(current)
        mean = float(np.nanmean(found))
        self.stale = 0 if mean > self.best + 1e-4 else self.stale + 1
        if mean > self.best:
            self.best, self.best_weights = mean, _copied(self.average)

    def _dice(self, n: int) -> float:
        found = probabilities(self.net, self.data.images[n], self.net.strides).argmax(dim=0)
        truth = self.data.labels[n]
        dice = [
            2 * float(((found == c) & (truth == c)).sum()) / float((found == c).sum() + (truth == c).sum())
            for c in range(1, self.plan.n_classes)
            if bool((truth == c).any())
        ]
        return float(np.mean(dice)) if dice else float("nan")

    def result(self) -> Arrays:
        """Return the best weights, or their average without held-out images."""
        self.net.load_state_dict(self.best_weights or self.average)
        return self.net.arrays()

    def keep(self, path: Path | None, key: str) -> None:
        """Write a checkpoint, onto a temporary name first."""
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
        """Continue from the checkpoint of a training with the same plan and images, if there is one."""
        if path is None or not path.is_file():
            return
        from safetensors import safe_open  # noqa: PLC0415

        with safe_open(path, "pt", device=str(self.data.device)) as file:
            if (file.metadata() or {}).get("key") != key:
                return
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        self.net.load_state_dict(_under("net.", state))
        average = _under("average.", state)  # in the order of the network: the averaging pairs by place
        self.average = {name: average[name] for name in self.net.state_dict()}
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
    numbers = torch.arange(1, scores.shape[1], device=truth.device).view(1, -1, 1, 1, 1)
    masks = truth[:, None] == numbers
    space = (2, 3, 4)
    both, sums = (shares[:, 1:] * masks).sum(space), shares[:, 1:].sum(space) + masks.sum(space)
    dice = (2 * both + 1) / (sums + 1)
    present = masks.sum(space) > 0
    return entropy + 1 - (dice * present).sum() / present.sum().clamp(min=1)
