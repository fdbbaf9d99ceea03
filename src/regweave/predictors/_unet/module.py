"""Three-dimensional U-Net as a PyTorch module: the layers that `network` evaluates without PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
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
        self.strides = [(int(x), int(y), int(z)) for x, y, z in strides]
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


def probabilities(arrays: Arrays, image: NDArray[np.float32], strides: Strides, device: str = "cpu") -> NDArray[Any]:
    """Return the probability of each class, (C, X, Y, Z), by PyTorch."""
    width, inputs = arrays["down0.0.weight"].shape[:2]
    net = UNet(inputs, len(arrays["head.bias"]), width, strides)
    with torch.no_grad():
        for name, t in net.named().items():
            t.copy_(torch.as_tensor(arrays[name].astype(np.float32)))
        found = image_probabilities(net.to(device), torch.as_tensor(image, device=device), strides)
    return np.asarray(found.cpu().numpy())


def image_probabilities(net: nn.Module, image: Tensor, strides: Strides) -> Tensor:
    shape = image.shape[1:]
    whole = padded_shape(shape, strides)
    pad = [p for n, w in zip(reversed(shape), reversed(whole), strict=True) for p in (0, w - n)]
    x = functional.pad(image[None].float(), pad, mode="replicate") if any(pad) else image[None].float()
    cropped = net(x)[0].float()[:, : shape[0], : shape[1], : shape[2]]
    return cropped.softmax(dim=0)
