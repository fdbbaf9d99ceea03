"""Resampling between the grids of an image and of a network.

A network knows structures at one size of voxels. Images of about that size are left as they are, so that nothing is
lost by interpolation; others are averaged over whole voxels where they are finer, then interpolated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.io.orientation import nearest_axes
from regweave.kernels import fields
from regweave.predictors._features import WorkingGrid
from regweave.spatial.pyramid import Factors, shrink
from regweave.types import Float32Array, Float64Array, Geometry, IntArray

ALIKE = (0.8, 1.25)
"""Ratios of the voxels of an image to those of the network between which the image is taken as it is."""
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class NetworkGrid:
    """Grid of a network over an image, laid along the axes of the image.

    Parameters
    ----------
    image : Geometry
        Grid of the image.
    laid : Geometry
        Grid of the network: the same box, with axes in the order of the image.
    """

    image: Geometry
    laid: Geometry

    @classmethod
    def of(cls, image: Geometry, spacing_mm: Sequence[float]) -> NetworkGrid:
        """Lay voxels of about ``spacing_mm``, along L, P and S, over the box of an image."""
        wanted = np.empty(3)
        wanted[list(nearest_axes(image.direction))] = spacing_mm
        ratio, sizes = image.spacing_mm / wanted, np.array(image.shape)
        alike = (ratio >= ALIKE[0]) & (ratio <= ALIKE[1])
        x, y, z = (int(n) for n in np.where(alike, sizes, np.maximum(1, np.rint(sizes * ratio))))
        scale = sizes / (x, y, z)
        affine = image.affine.copy()
        affine[:3, :3] = image.affine[:3, :3] * scale
        affine[:3, 3] = image.points((scale - 1) / 2)
        return cls(image, Geometry((x, y, z), affine))

    @property
    def _scale(self) -> Float64Array:
        """Voxels of the image to one of the network, along each axis of the image."""
        return np.array(self.image.shape) / self.laid.shape

    @property
    def _turned(self) -> WorkingGrid:
        return WorkingGrid.of(self.laid, 0.0)  # no voxel is that small: each is a block of its own

    def seen(self, data: Float32Array) -> Float32Array:
        """Return an image on the grid of the network, its axes along L, P and S."""
        f = np.maximum(1, np.floor(self._scale)).astype(int)
        factors: Factors = (int(f[0]), int(f[1]), int(f[2]))
        return self._turned.coarse(_resampled(shrink(data, factors), self.laid.shape, self._scale / f))

    def numbers(self, numbers: IntArray) -> NDArray[np.uint8]:
        """Return class numbers as `seen` does an image: each voxel has the class with the largest share of it."""
        present = [int(c) for c in np.unique(numbers)]
        best = likeliest(self.seen((numbers == c).astype(np.float32)) for c in present)
        return np.asarray(np.array(present, dtype=np.uint8)[best])

    def along_image(self, shares: Float32Array) -> Float32Array:
        """Return maps (C, L, P, S) of the network with axes in the order of the image."""
        return np.asarray(self._turned.along_image(shares))

    def on_image(self, share: Float32Array) -> Float32Array:
        """Interpolate one map, with axes in the order of the image, at the voxels of the image."""
        return _resampled(share, self.image.shape, 1 / self._scale)


def likeliest(shares: Iterable[Float32Array]) -> NDArray[np.intp]:
    """Place of the largest of some maps at each voxel, the first of equals; holds one map at a time.

    Examples
    --------
    >>> likeliest([np.array([0.2, 0.6], np.float32), np.array([0.8, 0.4], np.float32)]).tolist()
    [1, 0]
    """
    largest: Any = None
    best: Any = None
    for place, share in enumerate(shares):
        if largest is None:
            largest, best = share.copy(), np.zeros(share.shape, dtype=np.intp)
            continue
        better = share > largest
        largest[better], best[better] = share[better], place
    return np.asarray(best)


def _resampled(image: Float32Array, shape: Shape, scale: Float64Array) -> Float32Array:
    """Interpolate linearly on a grid over the same box, with voxels ``scale`` times as large."""
    if image.shape == shape and (scale == 1).all():
        return image
    return np.asarray(fields.resample_field(np.ascontiguousarray(image)[None], shape, scale, (scale - 1) / 2)[0])
