"""Maps over the images: Jacobian, deciding metric, confidence, deformed grid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave.report.viewer.volumes import Display
from regweave.types import Field, Float32Array, Geometry, LabelArray, NodeEvidence

JACOBIAN_RANGE = 4.0
"""The map of the Jacobian goes from a quarter to four times the volume."""
GRID_LINES = 28
GRID_UNIT = 0.01
"""Displacements of the grid are stored in hundredths of a voxel."""
CONFIDENCE_PERCENTILE = 98.0


@dataclass(frozen=True)
class Coded:
    """One byte for each voxel of the page; code c means ``first + step · c`` (or its power of two)."""

    codes: NDArray[np.uint8]
    first: float
    step: float


def jacobian_map(jacobian: Float32Array, display: Display) -> Coded:
    """Code log2 of the Jacobian determinant.

    Code 0 means a fold, in any of the voxels that were merged; 1 and 255 mean values beyond the scale.
    """
    folded = display.image((jacobian <= 0).astype(np.float32)) > 0
    limit = float(np.log2(JACOBIAN_RANGE))
    shown = display.image(jacobian)
    log = np.log2(np.clip(shown, 1.0 / JACOBIAN_RANGE, JACOBIAN_RANGE))
    step = 2 * limit / 252
    codes = np.rint((log + limit) / step).astype(np.uint8) + np.uint8(2)
    codes[shown < 1.0 / JACOBIAN_RANGE], codes[shown > JACOBIAN_RANGE] = 1, 255
    codes[folded] = 0
    return Coded(codes, -limit - 2 * step, step)


def jacobian_by_label(jacobian: Float32Array, labels: LabelArray | None) -> dict[int, tuple[float, float, float]]:
    """Return least, mean and largest Jacobian determinant inside each structure of a label map.

    Examples
    --------
    >>> jacobian_by_label(np.float32([[[1.0, 0.5, 2.0]]]), np.array([[[0, 1, 1]]]))
    {1: (0.5, 1.25, 2.0)}
    """
    if labels is None:
        return {}
    values = [int(v) for v in np.unique(labels) if v != 0]
    low, mean, high = (f(jacobian, labels, values) for f in (ndimage.minimum, ndimage.mean, ndimage.maximum))
    return {v: (float(low[i]), float(mean[i]), float(high[i])) for i, v in enumerate(values)}


def confidence_map(nodes: NodeEvidence, display: Display) -> Coded:
    """Code the gap between the best and the second label; the upper end of the scale is a high percentile."""
    values = on_image(nodes.confidence, nodes.geometry, display.geometry)
    high = float(np.percentile(nodes.confidence, CONFIDENCE_PERCENTILE)) or 1.0
    codes = np.rint(255 * np.clip(values / high, 0, 1)).astype(np.uint8)
    return Coded(codes, 0.0, high / 255)


def metric_map(nodes: NodeEvidence, display: Display) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the deciding member, numbered from 1, and its share in percent, as uint8."""
    who, share = deciding_member(nodes, display.geometry)
    return who, np.rint(100 * share).astype(np.uint8)


def member_parts(who: NDArray[np.uint8], n_members: int) -> list[float]:
    """Part of the voxels that each member decides, of those where any does."""
    counts = np.bincount(who.ravel(), minlength=n_members + 1)[1 : n_members + 1]
    total = int(counts.sum())
    return [float(c) / total if total else 0.0 for c in counts]


def grid_field(field: Field, display: Display) -> tuple[NDArray[np.int16], int]:
    """Sample the displacement along the display axes for drawing a grid, (3, I, J, K), in hundredths of a page voxel.

    The second value is the distance of the samples in voxels of the page; the first sample is voxel 0.
    """
    shape = display.geometry.shape
    step = max(1, -(-max(shape) // GRID_LINES))
    parts = np.stack([display.image(component)[::step, ::step, ::step] for component in field.data])
    to_voxels = np.linalg.inv(display.geometry.affine[:3, :3])
    moved: Float32Array = np.tensordot(to_voxels, parts, axes=1).astype(np.float32)
    return np.clip(np.rint(moved / GRID_UNIT), -32767, 32767).astype(np.int16), step


def on_image(values: Float32Array, nodes: Geometry, image: Geometry) -> Float32Array:
    """Interpolate values at the nodes linearly on an image grid; beyond the nodes take the nearest.

    Examples
    --------
    >>> nodes = Geometry((2, 1, 1), np.diag([2.0, 1.0, 1.0, 1.0]))
    >>> on_image(np.float32([[[0.0]], [[4.0]]]), nodes, Geometry((3, 1, 1), np.eye(4))).ravel().tolist()
    [0.0, 2.0, 4.0]
    """
    step = np.asarray(np.linalg.solve(nodes.affine, image.affine), dtype=np.float64)
    out: Float32Array = ndimage.affine_transform(
        values.astype(np.float32), step[:3, :3], step[:3, 3], output_shape=image.shape, order=1, mode="nearest"
    )
    return out


def deciding_member(maps: NodeEvidence, image: Geometry) -> tuple[NDArray[np.uint8], Float32Array]:
    """Return for each voxel the number of the member with the largest influence, and its share of all influence.

    Numbers begin at 1; 0 means that all labels cost the same.
    """
    best = np.zeros(image.shape, dtype=np.float32)
    total = np.zeros(image.shape, dtype=np.float32)
    who = np.zeros(image.shape, dtype=np.uint8)
    for number, values in enumerate(maps.influence, start=1):
        here = on_image(values, maps.geometry, image)
        total += here
        who[here > best] = number
        np.maximum(best, here, out=best)
    return who, np.divide(best, total, out=np.zeros_like(best), where=total > 0)
