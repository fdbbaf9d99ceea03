"""Convolutional encoder–decoder with skip connections, a 3-D U-Net, evaluated by compiled kernels.

Ronneberger et al., MICCAI 2015; Çiçek et al., MICCAI 2016. At each scale two blocks of a 3 × 3 × 3 convolution,
instance norm and leaky ReLU; max pooling on the way down, repeated voxels beside the skip connection on the way up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from regweave import _core
from regweave.types import Float32Array

Factor = Annotated[int, Field(ge=1, le=2)]
Stride = tuple[Factor, Factor, Factor]
ALIGNMENT = 8  # widths are multiples of this, for the registers of a processor
WIDEST = 64


@dataclass(frozen=True)
class Network:
    """Layers of a U-Net."""

    arrays: Mapping[str, Float32Array]
    """``down{s}.{k}.weight``, ``.scale`` and ``.shift`` for scale s from the finest and block k, ``up{s}.{k}.…``,
    ``head.weight`` (classes, width, 1, 1, 1) and ``head.bias``."""
    strides: tuple[Stride, ...]  # pooling between one scale and the next along each axis, 1 or 2

    @property
    def width(self) -> int:
        """Channels at the finest scale; each coarser one has twice as many."""
        return len(self.arrays["down0.0.shift"])

    @property
    def n_channels(self) -> int:
        """Channels of the input."""
        return int(self.arrays["down0.0.weight"].shape[1])

    @property
    def n_classes(self) -> int:
        """Classes of the output."""
        return len(self.arrays["head.bias"])

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], strides: tuple[Stride, ...]) -> Network:
        """Build it from arrays of any precision; KeyError or ValueError where layers are missing or do not fit."""
        found = {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in arrays.items()}
        bias, first = found["head.bias"], found["down0.0.weight"]
        shift = found["down0.0.shift"]
        if bias.ndim != 1 or first.ndim != 5 or shift.ndim != 1 or not len(bias):
            raise ValueError(f"layers of shapes {first.shape}, {shift.shape} and {bias.shape} are no U-Net")
        shapes = layer_shapes(first.shape[1], len(shift), len(bias), len(strides) + 1)
        for name, shape in shapes.items():
            if found[name].shape != shape:
                raise ValueError(f"layer {name} has shape {found[name].shape}, allowed: {shape}")
        unknown = sorted(found.keys() - shapes.keys())
        if unknown:
            raise ValueError(f"{unknown[0][:40]!r} is no layer of a U-Net of {len(strides) + 1} scales")
        if len(shift) % ALIGNMENT or not ALIGNMENT <= len(shift) <= WIDEST:
            raise ValueError(f"width is {len(shift)}, allowed: multiples of {ALIGNMENT} up to {WIDEST}")
        return cls(found, strides)

    def shares(self, channels: Float32Array) -> Float32Array:
        """Return the probability of each class, (C, X, Y, Z), for input channels (I, X, Y, Z)."""
        x, y, z = channels.shape[1:]
        weight = self.arrays["head.weight"].reshape(self.n_classes, self.width)
        found = _core.class_shares(self._decoded(channels), weight, self.arrays["head.bias"])
        return np.ascontiguousarray(found[:, :x, :y, :z])

    def _decoded(self, channels: Float32Array) -> Float32Array:
        """Run all blocks; the grid is filled up with edge values to whole coarsest voxels and stays so."""
        filled = filled_shape(channels.shape[1:], self.strides)
        padding = [(0, 0), *((0, f - n) for n, f in zip(channels.shape[1:], filled, strict=True))]
        image = np.ascontiguousarray(np.pad(channels, padding, mode="edge").transpose(1, 2, 3, 0))
        skips = []
        for scale, stride in enumerate(self.strides):
            skips.append(self._blocks(f"down{scale}", image))
            image = _core.max_pool(skips[-1], stride)
        image = self._blocks(f"down{len(self.strides)}", image)
        for scale, stride in reversed(list(enumerate(self.strides))):
            image = self._blocks(f"up{scale}", skips.pop(), image, stride)
        return image

    def _blocks(
        self, name: str, image: Float32Array, coarse: Float32Array | None = None, stride: Stride = (1, 1, 1)
    ) -> Float32Array:
        parts = [[self.arrays[f"{name}.{k}.{part}"] for part in ("weight", "scale", "shift")] for k in (0, 1)]
        return _core.convolution_block(
            _core.convolution_block(image, coarse, stride, *parts[0]), None, (1, 1, 1), *parts[1]
        )


def layer_shapes(n_channels: int, width: int, n_classes: int, n_scales: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every array of a network.

    Examples
    --------
    >>> layer_shapes(1, 16, 3, 4)["up0.0.weight"]
    (16, 48, 3, 3, 3)
    """
    widths = [width * 2**scale for scale in range(n_scales)]
    inputs = {f"down{s}": (n_channels if s == 0 else widths[s - 1]) for s in range(n_scales)}
    inputs |= {f"up{s}": widths[s] + widths[s + 1] for s in range(n_scales - 1)}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, n in inputs.items():
        out = widths[int(name.removeprefix("down").removeprefix("up"))]
        for k, read in enumerate((n, out)):
            shapes[f"{name}.{k}.weight"] = (out, read, 3, 3, 3)
            shapes[f"{name}.{k}.scale"] = shapes[f"{name}.{k}.shift"] = (out,)
    return {**shapes, "head.weight": (n_classes, width, 1, 1, 1), "head.bias": (n_classes,)}


def filled_shape(shape: Sequence[int], strides: Sequence[Stride]) -> tuple[int, int, int]:
    """Return the smallest grid of whole coarsest voxels, at least two along an axis that is pooled.

    Examples
    --------
    >>> filled_shape((7, 33, 5), [(2, 2, 1), (2, 2, 1), (2, 2, 1)])
    (16, 40, 5)
    """
    whole = [int(n) for n in np.prod(strides, axis=0)] if strides else [1, 1, 1]
    least = [1 if f == 1 else 2 * f for f in whole]
    x, y, z = (-(-max(n, few) // f) * f for n, few, f in zip(shape, least, whole, strict=True))
    return x, y, z
