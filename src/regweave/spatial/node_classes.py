"""Anatomical class of a node: from the share of each label in its support to the columns of W it uses."""

from collections.abc import Callable

import numpy as np

from regweave.types import Float32Array, IntArray, LabelArray

FOREGROUND_SHARE = 0.05
"""A support with at least this share of foreground belongs to its largest structure under ``foreground``."""


def one_hot(labels: LabelArray, classes: tuple[int, ...]) -> Float32Array:
    """Masks of the classes, (C, X, Y, Z); labels without a column count as the first class, the background."""
    masks = np.stack([labels == c for c in classes]).astype(np.float32)
    masks[0] = 1 - masks[1:].sum(axis=0)
    return masks


def numbers_of(labels: LabelArray, classes: tuple[int, ...]) -> IntArray:
    """Return the place of each label among the classes, 0, the background's, for labels without one."""
    order = np.argsort(classes)
    known = np.array(classes)[order]
    place = np.searchsorted(known, labels).clip(max=len(known) - 1)
    return np.where(known[place] == labels, order[place], 0).astype(np.int32)


def count(shares: Float32Array) -> Float32Array:
    """Give the node to the class with the most voxels, the paper's rule: (..., C) to (..., C)."""
    return _winner(shares)


def foreground(shares: Float32Array) -> Float32Array:
    """Give the node to its largest structure where 5 % of the support is foreground, else to the background."""
    weighted = shares.copy()
    weighted[..., 0] = np.where(shares[..., 1:].sum(axis=-1) >= FOREGROUND_SHARE, -1.0, 2.0)
    return _winner(weighted)


def share(shares: Float32Array) -> Float32Array:
    """Let each class vote with its share of the voxels."""
    total = shares.sum(axis=-1, keepdims=True)
    return np.asarray(shares / np.maximum(total, np.float32(1e-6)), dtype=np.float32)


def _winner(score: Float32Array) -> Float32Array:
    out = np.zeros_like(score)
    np.put_along_axis(out, score.argmax(axis=-1)[..., None], np.float32(1), axis=-1)
    return out


RULES: dict[str, Callable[[Float32Array], Float32Array]] = {"count": count, "foreground": foreground, "share": share}
