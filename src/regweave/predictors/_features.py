"""Voxel features for classification, on a working grid in standard orientation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave.config.settings import within_image
from regweave.io.geometry import nearest_axes
from regweave.spatial.control_grid import nearest_whole
from regweave.spatial.voxels import Factors, apply_window, default_window, shrink
from regweave.types import Float32Array, Float64Array, Geometry, Modality, Volume

VERSION: Final = 3  # changes whenever the same image gives other features
SAME_UNIT_VERSION: Final = 2
"""Version of features whose unit is the working voxel; those of predictors that were saved before there was a unit."""
LONGEST_AXIS = 128
"""Voxels of the working grid along the longest axis of the training images, at most: memory grows with the cube."""
UNITS_ALONG = 64  # units of length of the features along that axis: distances do not shrink with the voxels
WIDE_WINDOW_HU = (-1000.0, 1500.0)
BODY = 0.1  # mapped intensity above which a voxel belongs to the body
SPARSE_PLANE = 0.05  # planes with less than this share of the body of the fullest plane are outside the body box
SCALES = (1.0, 2.0, 4.0)
NEIGHBOURS = ((0, 2.0), (0, 4.0), (1, 7.0), (1, 11.0), (2, 16.0), (2, 26.0))
"""Smoothed images (by place in ``SCALES``) and distances along each axis, in units, of the features of neighbours."""


@dataclass(frozen=True)
class WorkingGrid:
    """Blocks of voxels of an image, with axes in the order and direction of L, P and S."""

    shape: tuple[int, int, int]  # voxels of the image along its own axes
    factors: Factors  # voxels in a block along the axes of the image
    order: tuple[int, ...]  # image axis along L, P and S
    steps: tuple[int, ...]  # 1, or -1 where the image axis runs the other way; in the order of L, P, S
    spacing_mm: Float64Array  # distance of the blocks along L, P and S, (3,)

    @classmethod
    def of(cls, geometry: Geometry, voxel_mm: float) -> WorkingGrid:
        """Cover an image by blocks of about ``voxel_mm``, at least four along each axis with as many voxels."""
        x, y, z = within_image(nearest_whole(voxel_mm / geometry.spacing_mm), geometry)
        order = nearest_axes(geometry.direction)
        steps = tuple(1 if geometry.direction[world, axis] >= 0 else -1 for world, axis in enumerate(order))
        spacing = (geometry.spacing_mm * np.array((x, y, z)))[list(order)]
        return cls(geometry.shape, (x, y, z), order, steps, spacing)

    def coarse(self, image: Float32Array) -> Float32Array:
        """Mean of the image in each block."""
        reversed_axes = tuple(axis for axis, step in enumerate(self.steps) if step < 0)
        return np.ascontiguousarray(np.flip(shrink(image, self.factors).transpose(self.order), reversed_axes))

    def along_image(self, blocks: NDArray[Any]) -> NDArray[Any]:
        """Return the blocks, (..., blocks), in the order and direction of the axes of the image."""
        lead = blocks.ndim - 3
        reversed_axes = tuple(lead + axis for axis, step in enumerate(self.steps) if step < 0)
        back = [*range(lead), *(lead + int(a) for a in np.argsort(self.order))]
        return np.ascontiguousarray(np.flip(blocks, reversed_axes).transpose(back))

    def fine(self, blocks: NDArray[Any]) -> NDArray[Any]:
        """Give each voxel of the image the value of its block: (..., blocks) to (..., X, Y, Z)."""
        lead, out = blocks.ndim - 3, self.along_image(blocks)
        for axis, (factor, n) in enumerate(zip(self.factors, self.shape, strict=True)):
            out = out.repeat(factor, axis=lead + axis).take(range(n), axis=lead + axis)
        return np.ascontiguousarray(out)


@dataclass(frozen=True)
class Sizes:
    """Lengths that features are measured in."""

    voxel_mm: float  # size of the working voxels
    unit_mm: float  # unit of the scales and distances of the features

    @property
    def limited(self) -> bool:
        """True if the training images may have finer voxels: they had more than `LONGEST_AXIS` along an axis."""
        return self.voxel_mm <= self.unit_mm * UNITS_ALONG / LONGEST_AXIS

    @classmethod
    def of(cls, geometries: list[Geometry]) -> Sizes:
        """Return those of the middle image: its own voxels, or larger ones where it has more than `LONGEST_AXIS`.

        Where it has no more than `UNITS_ALONG`, one length serves both: blocks of voxels are not smaller than a voxel.
        """
        unit = float(np.median([g.longest_mm / UNITS_ALONG for g in geometries]))
        own = float(np.median([g.spacing_mm.min() for g in geometries]))
        return cls(min(unit, max(own, unit * UNITS_ALONG / LONGEST_AXIS)), unit)


def n_features(modality: Modality) -> int:
    """Count the features of a voxel."""
    intensities = 3 if modality == "ct" else 2
    return intensities + len(SCALES) + 1 + 6 * len(NEIGHBOURS) + 3


def features(volume: Volume, grid: WorkingGrid, modality: Modality, unit_mm: float) -> Float32Array:
    """Features of every voxel of the working grid, (F, blocks).

    These are the intensity in the window, its rank in the body, and for CT the wide window. Then follow the image
    smoothed at three scales, the slope of the finest, and smoothed intensities at some distances along each axis. The
    last three are the position in the body box.
    """
    image = grid.coarse(apply_window(volume.data, default_window(volume.data, modality)))
    body = image > BODY
    found = [image, _rank(image, body)]
    if modality == "ct":
        found.append(grid.coarse(apply_window(volume.data, WIDE_WINDOW_HU)))
    step = unit_mm / grid.spacing_mm
    smooth = [ndimage.gaussian_filter(image, s * step, mode="nearest", truncate=3.0) for s in SCALES]
    found += smooth
    slopes = [(_along(smooth[0], a, 1) - _along(smooth[0], a, -1)) * np.float32(step[a]) for a in range(3)]
    found.append(np.sqrt(np.sum(np.square(slopes), axis=0)))
    for scale, reach in NEIGHBOURS:
        for axis in range(3):
            away = max(1, round(reach * float(step[axis])))
            found += [_along(smooth[scale], axis, away), _along(smooth[scale], axis, -away)]
    position = np.meshgrid(*(_body_coordinate(body, axis) for axis in range(3)), indexing="ij")
    return np.stack([np.asarray(f, dtype=np.float32) for f in (*found, *position)])


def _rank(image: Float32Array, body: NDArray[np.bool_]) -> Float32Array:
    """Share of the body that is darker: the same in images whose contrast differs."""
    levels = np.linspace(0, 1, 257)
    counts = np.histogram(image[body], levels)[0]
    below = np.concatenate([[0], counts.cumsum()]) / max(1, counts.sum())
    return np.asarray(np.interp(image.ravel(), levels, below).reshape(image.shape), dtype=np.float32)


def _along(image: Float32Array, axis: int, voxels: int) -> Float32Array:
    n = image.shape[axis]
    return image.take((np.arange(n) + voxels).clip(0, n - 1), axis=axis)


def _body_coordinate(body: NDArray[np.bool_], axis: int) -> Float64Array:
    """Coordinate that runs from -1 to 1 through the body along an axis."""
    n = body.shape[axis]
    filled = body.sum(axis=tuple({0, 1, 2} - {axis}))
    planes = np.flatnonzero(filled > SPARSE_PLANE * filled.max())
    low, high = (planes[0], planes[-1]) if len(planes) else (0, n - 1)
    return np.asarray((np.arange(n) - (low + high) / 2) / max(1.0, (high - low) / 2))
