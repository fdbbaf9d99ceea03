"""Data augmentation for segmented images: affine and elastic deformation, intensities, noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

ANGLES = (0.15, 0.15, 0.25)
"""Largest rotation about each axis, in radians."""
FLAT = 0.4
"""A grid whose shortest axis has less than this share of the voxels of its longest is turned in plane alone."""
KNOTS = 5
"""Knots of the elastic displacement along an axis."""


class SegmentedTensors:
    """Segmented images in the memory of a device, drawn with augmentation.

    Parameters
    ----------
    images, labels : sequences of arrays
        Channels (I, X, Y, Z) and class numbers (X, Y, Z); the first axis goes from right to left.
    shape : three ints
        Shape of what is drawn.
    device : torch.device
        Where it is kept and drawn.
    mirrored : sequence of ints
        Number that each class has in a mirror: every second image is then mirrored left to right. None are without it.
    """

    def __init__(
        self,
        images: Sequence[NDArray[Any]],
        labels: Sequence[NDArray[Any]],
        shape: Sequence[int],
        device: torch.device,
        mirrored: Sequence[int] = (),
    ) -> None:
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
        """Places to look at, in coordinates from -1 to 1: crop, rotation, scaling and a smooth displacement."""
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
        # All numbers go to the device at once: a transfer for each would wait for what was asked before it.
        sent = self._sent(np.concatenate([matrix.T.ravel(), centre, np.maximum(n - 1, 1), coarse.ravel()]))
        places = self._places @ sent[:9].view(3, 3) + sent[9:12]
        if elastic:
            smooth = sent[15:].view(1, 3, *knots)
            smooth = functional.interpolate(smooth, self.shape, mode="trilinear", align_corners=True)
            places = places + smooth[0].permute(1, 2, 3, 0)
        unit = 2 * places / sent[12:15] - 1
        return unit.flip(-1)[None]  # grid_sample wants the last axis first

    def _sent(self, numbers: NDArray[Any]) -> Tensor:
        """Copy numbers to the device without waiting for it."""
        here = torch.from_numpy(numbers.astype(np.float32))
        return here.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else here


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
