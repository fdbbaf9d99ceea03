"""Labels of warped atlases joined to one segmentation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave import _core
from regweave.errors import UsageError
from regweave.types import Float32Array, IntArray, LabelMap, Volume

Fusion = Literal["joint", "vote", "staple"]
PATCH, REACH = 2, 3  # Voxels that a patch reaches from its middle, and that a match may lie away
ALPHA, BETA = 0.6, 2.0  # Of joint label fusion: conditioning, in mean errors, and how strongly errors count
NEAR = 2  # Voxels beside a disagreement that are decided anew
MOST_ROUNDS, STILL = 50, 1e-4  # Of STAPLE


@dataclass(frozen=True)
class Fused:
    """Segmentation joined from several."""

    labels: LabelMap  # values and names of the atlases' labels
    agreement: Volume  # share of the atlases that have the chosen label at a voxel
    posterior: Volume  # share of the weighted votes, or the probability, that the chosen label got


def fuse(target: Volume, images: Sequence[Volume], labels: Sequence[LabelMap], method: Fusion = "joint") -> Fused:
    """Join the labels of warped atlases; every array lies on the grid of the target.

    ``joint`` weighs atlases at each voxel by how well patches match and by the errors that they have in common;
    ``vote`` counts them; ``staple`` weighs each by how often it is right about a structure.

    References
    ----------
    Wang et al. (2013), "Multi-atlas segmentation with joint label fusion"; Warfield et al. (2004), "Simultaneous truth
    and performance level estimation (STAPLE)".
    """
    if method not in get_args(Fusion):
        raise UsageError("E192", f"unknown fusion {method!r}", f"use {', '.join(get_args(Fusion))}")
    values = np.unique(np.concatenate([[0], *(np.unique(one.data) for one in labels)]))
    codes = np.stack([np.searchsorted(values, one.data).astype(np.int32) for one in labels])
    found, posterior = codes[0].copy(), np.ones(target.geometry.shape, dtype=np.float32)
    differ = (codes != codes[0]).any(axis=0)
    if differ.any() and method == "joint":
        decide = ndimage.binary_dilation(differ, iterations=NEAR)
        box = ndimage.find_objects(decide.astype(np.uint8))[0]
        found[box], posterior[box] = _joint(target, images, codes, decide, box, values.size)
    elif differ.any():
        apart = codes[:, differ]
        if method == "staple":
            found[differ], posterior[differ] = _staple(apart, values.size)
        else:  # the most frequent of the codes (A, V), of equals the lowest, and its share
            votes = np.stack([(apart == k).sum(axis=0) for k in range(values.size)])
            found[differ], posterior[differ] = votes.argmax(axis=0), (votes.max(axis=0) / len(codes)).astype(np.float32)
    agreement = (codes == found).mean(axis=0, dtype=np.float32)
    fitting = np.min_scalar_type(values[-1])
    names = {value: name for one in reversed(labels) for value, name in one.names.items()}
    grid = target.geometry
    return Fused(LabelMap(values[found].astype(fitting), grid, names), Volume(agreement, grid), Volume(posterior, grid))


def _joint(
    target: Volume, images: Sequence[Volume], codes: IntArray, decide: NDArray[np.bool_], box: tuple[slice, ...], n: int
) -> tuple[IntArray, Float32Array]:
    """Run the kernel on the box of the voxels to decide, with a margin that repeats the border of the image."""
    margin = 2 * PATCH + REACH
    wide = tuple(slice(max(0, s.start - margin), s.stop + margin) for s in box)
    rows = [
        (max(0, margin - s.start), max(0, s.stop + margin - size)) for s, size in zip(box, decide.shape, strict=True)
    ]

    def patch(data: NDArray[np.float32]) -> Float32Array:
        part = data[wide].astype(np.float64)
        part = (part - part.mean()) / max(float(part.std()), 1e-9)
        return np.pad(part.astype(np.float32), rows, mode="edge")

    moving = np.stack([patch(image.data) for image in images])
    around = np.stack([np.pad(one[wide], rows, mode="edge") for one in codes])
    inner = np.pad(decide[box], margin).astype(np.uint8)
    found, posterior = _core.joint_fusion(patch(target.data), moving, around, inner, n, PATCH, REACH, ALPHA, BETA)
    middle = (slice(margin, -margin),) * 3
    return found[middle], posterior[middle]


def _staple(codes: IntArray, n: int) -> tuple[IntArray, Float32Array]:
    """Estimate the truth and, of each atlas, how often it has each label for each true one, by turns."""
    prior = np.stack([(codes == k).mean() for k in range(n)]) + 1e-9
    share = np.stack([(codes == k).mean(axis=0) for k in range(n)])  # (K, V)
    for _ in range(MOST_ROUNDS):
        before = share
        total = np.log(prior)[:, None].repeat(codes.shape[1], axis=1)
        for one in codes:
            confusion = np.stack([before @ (one == k) for k in range(n)], axis=1) + 1e-6  # true × given
            total += np.log(confusion / confusion.sum(axis=1, keepdims=True))[:, one]
        share = np.exp(total - total.max(axis=0))
        share /= share.sum(axis=0)
        if np.abs(share - before).mean() < STILL:
            break
    return share.argmax(axis=0).astype(np.int32), share.max(axis=0).astype(np.float32)
