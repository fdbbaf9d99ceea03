"""Label map of drawn structures on the grid of their series."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.contours.regions import even_odd, outlines
from regweave.io.dicom.series import Series
from regweave.spatial.warp import inverse_of
from regweave.types import Contour, Float64Array, Geometry, LabelMap, Structure

MOST = 65535  # Largest label that is written


def label_values(structures: Sequence[Structure]) -> dict[int, int]:
    """Return the label of each structure by its number: the number where all can be labels, else counted from 1."""
    numbers = [one.number for one in structures]
    fits = all(0 < number <= MOST for number in numbers)
    return {number: number if fits else k for k, number in enumerate(numbers, start=1)}


def draw_labels(
    structures: Sequence[Structure], series: Series, values: Mapping[int, int], names: Mapping[str, str] | None = None
) -> LabelMap:
    """Draw structures as labels ``values`` by number; the smaller one wins where two overlap.

    A voxel belongs to a structure if its centre is inside an odd number of its contours. Between uneven slices the
    nearest slice decides. ``names`` are other names of structures.
    """
    geometry = series.image.geometry
    slices = _slice_of_planes(series)
    data = np.zeros(geometry.shape, dtype=np.min_scalar_type(max(values.values(), default=1)))
    for rings, value in sorted(((_rings(s, geometry), values[s.number]) for s in structures), key=_area, reverse=True):
        for k, s in enumerate(slices.tolist()):
            if s in rings:
                _fill(data[:, :, k], rings[s], value)
    called = names or {}
    return LabelMap(data, geometry, {values[one.number]: called.get(one.name, one.name) for one in structures})


Rings = dict[int, list[Float64Array]]


def _rings(structure: Structure, geometry: Geometry) -> Rings:
    """Contours in voxels (n, 2) by slice."""
    back = inverse_of(geometry.affine)
    found: Rings = defaultdict(list)
    for contour in structure.contours:
        if contour.image is not None and contour.kind == "CLOSED_PLANAR":
            found[contour.image].append((contour.points_mm @ back[:3, :3].T + back[:3, 3])[:, :2])
    return found


def _area(drawn: tuple[Rings, int]) -> float:
    """Sum of the areas of all rings, by the shoelace formula: enough to order structures by size."""
    every = (ring for found in drawn[0].values() for ring in found)
    return sum(abs(float(np.sum(r[:, 0] * np.roll(r[:, 1], -1) - np.roll(r[:, 0], -1) * r[:, 1]))) / 2 for r in every)


def _fill(plane: NDArray[Any], rings: Sequence[Float64Array], value: int) -> None:
    """Set the voxels [i, j] of a plane whose centre is inside rings, within the box of the rings."""
    points = np.concatenate(rings)
    low = np.clip(np.floor(points.min(axis=0)).astype(int), 0, plane.shape)
    high = np.clip(np.ceil(points.max(axis=0)).astype(int) + 1, 0, plane.shape)
    if (high > low).all():
        inside = even_odd((int(high[1] - low[1]), int(high[0] - low[0])), [ring - low for ring in rings])
        plane[low[0] : high[0], low[1] : high[1]][inside.T] = value


def _slice_of_planes(series: Series) -> NDArray[np.intp]:
    """Return the slice that is nearest to each plane of the even grid."""
    geometry = series.image.geometry
    index = np.zeros((geometry.shape[2], 3))
    index[:, 2] = np.arange(geometry.shape[2])
    along = geometry.points(index) @ series.grid.normal
    true = np.array([one.along_mm for one in series.slices])
    return np.asarray(np.abs(along[:, None] - true[None]).argmin(axis=1))


def contour_labels(labels: LabelMap, series: Series) -> tuple[Structure, ...]:
    """Return outlines of labels on the slices of the series on whose grid they lie, half way between voxels."""
    grid, back = series.grid, inverse_of(labels.geometry.affine)
    x, y, z = labels.geometry.shape
    u, v = (np.arange(-1.0, n + 1) * np.float64(spacing) for n, spacing in zip((x, y), grid.spacing_mm, strict=True))
    found = []
    for number, value in enumerate(labels.values(), start=1):
        mask = np.pad((labels.data == value).astype(np.float64), ((1, 1), (1, 1), (0, 0)))
        contours = []
        for k, one in enumerate(series.slices):
            place = float(np.clip((back[:3, :3] @ one.position_mm + back[:3, 3])[2], 0, z - 1))
            below = min(int(place), max(z - 2, 0))
            share = mask[:, :, below] + (place - below) * (mask[:, :, min(below + 1, z - 1)] - mask[:, :, below])
            contours += [
                Contour(one.position_mm + np.outer(ring[:, 0], grid.row) + np.outer(ring[:, 1], grid.column), image=k)
                for ring in (outlines(0.5 - share.T, u, v) if share.any() else [])
            ]
        found.append(Structure(number, labels.name(value), "ORGAN", contours=tuple(contours)))
    return tuple(found)
