"""Overlap of two segmentations, and the distance between their surfaces in millimetres.

The surface of a mask is its surface net (Gibson 1998). Each cell of eight neighbouring voxel centres that the border
crosses has one vertex, at the mean of the points where the cell's edges cross the border, halfway between voxels. The
four vertices around a crossed edge span two triangles. Distances are measured from the centre of a triangle of one
surface to the nearest point of the other, weighted by the area of the triangle: anisotropic voxels get no more weight
along their fine axis. Where a mask is cut by the end of the image, the cut is part of its surface.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import ndimage

from regweave._core import distance_to_surface, surface_net
from regweave.types import Float64Array, LabelArray, LabelMap


def dice(a: LabelMap | LabelArray, b: LabelMap | LabelArray, labels: Sequence[int] | None = None) -> dict[int, float]:
    """Compute the Dice coefficient of each label, ``2 |A ∩ B| / (|A| + |B|)``, of two segmentations on one grid.

    By default all labels of either but 0 are compared. NaN where both lack the label, 0 where one does.
    """
    first, second = (of.data if isinstance(of, LabelMap) else np.asarray(of) for of in (a, b))
    if first.shape != second.shape:
        raise ValueError(f"segmentations have shapes {first.shape} and {second.shape}; resample one onto the other")
    if labels is None:
        labels = sorted({int(v) for v in (*np.unique(first), *np.unique(second)) if v != 0})
    scores = {}
    for label in map(int, labels):
        one, other = first == label, second == label
        total = int(one.sum()) + int(other.sum())
        scores[label] = 2.0 * int((one & other).sum()) / total if total else float("nan")
    return scores


MOST_POINTS = 10_000  # Triangles of a surface that are measured; of a larger one every n-th
ROUNDING_MM = 1e-9


@dataclass(frozen=True)
class SurfaceDistances:
    """Distances (N,) from one surface to another with the area of each, and the same (M,) back."""

    there: tuple[Float64Array, Float64Array]
    back: tuple[Float64Array, Float64Array]

    @property
    def hd95_mm(self) -> float:
        """The larger of the two directed 95th percentiles; NaN where a mask is empty."""
        if self.there[0].size == 0:
            return float("nan")
        percentiles = []
        for distances, areas in (self.there, self.back):  # the least value that 95 % of the area do not exceed
            order = np.argsort(distances, kind="stable")
            reached = np.cumsum(areas[order])
            percentiles.append(float(distances[order][np.searchsorted(reached, 0.95 * reached[-1])]))
        return max(percentiles)

    @property
    def mean_mm(self) -> float:
        """Mean distance to agreement: the mean of the two directed means; NaN where a mask is empty."""
        if self.there[0].size == 0:
            return float("nan")
        there, back = (np.average(d, weights=w) for d, w in (self.there, self.back))
        return float(there + back) / 2.0

    def dice(self, tolerance_mm: float) -> float:
        """Surface Dice: the share of both surfaces within a tolerance of the other (Nikolov 2021)."""
        if self.there[0].size == 0:
            return float("nan")
        near = sum(float(area[d <= tolerance_mm + ROUNDING_MM].sum()) for d, area in (self.there, self.back))
        return near / float(self.there[1].sum() + self.back[1].sum())


def surface_distances(a: ArrayLike, b: ArrayLike, spacing_mm: ArrayLike) -> SurfaceDistances:
    """Measure how far the surfaces of two masks (X, Y, Z) on one grid are apart; empty where a mask is empty."""
    first, second = np.asarray(a, dtype=bool), np.asarray(b, dtype=bool)
    if first.shape != second.shape:
        raise ValueError(f"masks have shapes {first.shape} and {second.shape}; resample one onto the other")
    if not (first.any() and second.any()):
        return SurfaceDistances(*((np.empty(0),) * 2,) * 2)
    box = ndimage.find_objects((first | second).astype(np.uint8))[0]
    spacing = np.asarray(spacing_mm, dtype=np.float64)
    nets = [surface_net(np.ascontiguousarray(m[box]).view(np.uint8), tuple(spacing)) for m in (first, second)]
    both = []
    for source, target in (nets, nets[::-1]):  # from the middle of each triangle (T, 3, 3), with its area
        chosen = source[:: -(-len(source) // MOST_POINTS)]
        area = np.linalg.norm(np.cross(chosen[:, 1] - chosen[:, 0], chosen[:, 2] - chosen[:, 0]), axis=1) / 2.0
        distance = distance_to_surface(chosen.mean(axis=1), target)
        both.append((np.where(distance < ROUNDING_MM, 0.0, distance), area))
    return SurfaceDistances(*both)
