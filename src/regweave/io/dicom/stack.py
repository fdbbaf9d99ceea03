"""Even voxel grid of uneven or sheared slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy import ndimage

from regweave.io.dicom.values import DicomSlice, SliceGrid
from regweave.io.geometry import make_geometry
from regweave.types import Float32Array, Float64Array, Geometry

EVEN = 0.02
"""Share of the spacing by which slices may lie off an even and straight stack."""
MOST_REFINEMENT = 4
"""Planes that an uneven stack may get for each of its own."""
ROWS = 8
Read = Callable[[int], Float32Array]


def is_even(slices: Sequence[DicomSlice], grid: SliceGrid) -> bool:
    """Tell whether slices lie on an even grid with perpendicular axes, to a fiftieth of a voxel."""
    positions = np.stack([one.position_mm for one in slices])
    along = positions @ grid.normal
    step = (along[-1] - along[0]) / max(len(slices) - 1, 1)
    off = np.abs(along - (along[0] + step * np.arange(len(slices)))).max()
    return bool(off <= EVEN * step and _drift(slices, grid).max() <= EVEN * min(grid.spacing_mm))


def stack(
    slices: Sequence[DicomSlice], grid: SliceGrid, read: Read, fill: float, subject: str
) -> tuple[Float32Array, Geometry]:
    """Return voxels [i, j, k] and their place.

    Parameters
    ----------
    slices : sequence of DicomSlice
        Ascending along the normal.
    grid : SliceGrid
    read : function
        Gives the values [row, column] of a slice by its number.
    fill : float
        Value beside sheared slices.
    subject : str
        How messages call the series; E111 where its lengths are no millimetres.
    """
    along = np.array([one.along_mm for one in slices])
    if is_even(slices, grid):
        step = (along[-1] - along[0]) / (len(slices) - 1)
        shape = (len(slices), grid.size[1], grid.size[0])
        geometry = _geometry(grid, slices[0].position_mm, step, shape, subject)
        planes = np.empty(shape, dtype=np.float32)
        for k in range(len(slices)):
            planes[k] = read(k)
        return _turned(planes), geometry
    return _resampled(slices, grid, read, fill, subject)


def _resampled(
    slices: Sequence[DicomSlice], grid: SliceGrid, read: Read, fill: float, subject: str
) -> tuple[Float32Array, Geometry]:
    """Interpolate linearly between the true positions of the slices, onto planes of the median gap."""
    along = np.array([one.along_mm for one in slices])
    extent = float(along[-1] - along[0])
    gap = max(float(np.median(np.diff(along))), extent / (MOST_REFINEMENT * (len(slices) - 1)))
    count = round(extent / gap) + 1
    wanted = np.linspace(along[0], along[-1], max(count, 2))
    drift = _drift(slices, grid, signed=True) / np.asarray(grid.spacing_mm)
    low = np.where(np.ptp(drift, axis=0) > EVEN, np.floor(drift.min(axis=0)), 0.0)
    more = np.where(np.ptp(drift, axis=0) > EVEN, np.ceil(drift.max(axis=0)), 0.0) - low
    columns, rows = (int(n + m) for n, m in zip(grid.size, more, strict=True))
    spread = low * np.asarray(grid.spacing_mm)
    origin = slices[0].position_mm + spread[0] * grid.row + spread[1] * grid.column
    geometry = _geometry(grid, origin, extent / (len(wanted) - 1), (len(wanted), rows, columns), subject)
    planes = np.empty((len(wanted), rows, columns), dtype=np.float32)
    kept: dict[int, Float32Array] = {}
    for k, w in enumerate(wanted):
        below = int(np.clip(np.searchsorted(along, w, side="right") - 1, 0, len(along) - 2))
        kept = {n: kept[n] if n in kept else _in_place(read(n), drift[n] - low, (rows, columns), fill)
                for n in (below, below + 1)}  # fmt: skip
        t = np.float32((w - along[below]) / (along[below + 1] - along[below]))
        planes[k] = kept[below] + t * (kept[below + 1] - kept[below])
    return _turned(planes), geometry


def _in_place(values: Float32Array, shift: Float64Array, shape: tuple[int, int], fill: float) -> Float32Array:
    """Put one slice on the common grid; ``shift`` is along columns and rows, in pixels."""
    if shape == values.shape and np.abs(shift).max() <= EVEN:
        return values
    room = np.full(shape, fill, dtype=np.float32)
    room[: values.shape[0], : values.shape[1]] = values
    moved: Float32Array = ndimage.shift(room, (shift[1], shift[0]), order=1, mode="constant", cval=fill)
    return moved


def _drift(slices: Sequence[DicomSlice], grid: SliceGrid, *, signed: bool = False) -> Float64Array:
    """In-plane distance of each slice's first pixel from that of the first slice, along rows and columns, (n, 2)."""
    away = np.stack([one.position_mm for one in slices]) - slices[0].position_mm
    found = np.stack([away @ grid.row, away @ grid.column], axis=1)
    return found if signed else np.abs(found)


def _turned(planes: Float32Array) -> Float32Array:
    """Turn [plane, row, column] into [i, j, k], some rows at a time, which caches bear better."""
    out = np.empty(planes.shape[::-1], dtype=np.float32)
    for first in range(0, planes.shape[1], ROWS):
        part = slice(first, first + ROWS)
        out[:, part] = planes[:, part].transpose(2, 1, 0)
    return out


def _geometry(grid: SliceGrid, origin: Float64Array, step: float, shape: tuple[int, ...], subject: str) -> Geometry:
    affine = np.eye(4)
    affine[:3, 0], affine[:3, 1] = grid.row * grid.spacing_mm[0], grid.column * grid.spacing_mm[1]
    affine[:3, 2], affine[:3, 3] = grid.normal * step, origin
    return make_geometry(shape[::-1], affine, subject)
