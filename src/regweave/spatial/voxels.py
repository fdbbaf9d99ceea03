"""Voxels before images are compared: windows of intensity, masks, the body, and grids shrunk by whole factors."""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave import _core
from regweave.types import Float32Array, Float64Array, Geometry, Image, LabelMap, Modality, Volume

Window = tuple[float, float]

BODY_WINDOW_HU: Window = (-200.0, 300.0)
PERCENTILES = (0.5, 99.5)


def default_window(image: Float32Array, modality: Modality) -> Window:
    """Window of a member that names none: the body for CT, the 0.5–99.5 percentiles otherwise."""
    if modality == "ct":
        return BODY_WINDOW_HU
    low, high = np.percentile(sampled(image), PERCENTILES)
    if high <= low:
        low, high = image.min(), image.max()
    return float(low), float(high)


def sampled(image: Float32Array) -> Float32Array:
    """Every k-th voxel, at least 65536 of them: quantiles of a large image do not need every voxel."""
    values = image.ravel()
    return values[:: max(1, values.size // 65536)]


def apply_window(image: Float32Array, window: Window) -> Float32Array:
    """Map the window to [0, 1] and cut values outside."""
    low, high = window
    values = np.ascontiguousarray(image, dtype=np.float32)
    solid = values if values.ndim == 3 else values.reshape(1, 1, -1)
    return _core.window(solid, low, high).reshape(values.shape)


def inside(image: Volume) -> NDArray[np.bool_] | None:
    """Voxels that a mask lets count, (X, Y, Z); None without a mask, or where it holds the whole image."""
    if not isinstance(image, Image) or image.mask is None:
        return None
    found = image.mask.data != 0
    return None if found.all() else found


def extrapolated(image: Volume) -> Float32Array:
    """Replace voxels outside the mask by the nearest one inside.

    Windows and gradients at the rim of the mask then do not depend on voxels beyond, as at the border of an image.
    """
    if (found := inside(image)) is None:
        return image.data
    nearest = ndimage.distance_transform_edt(~found, return_distances=False, return_indices=True)
    return np.asarray(image.data[tuple(nearest)])


Factors = tuple[int, int, int]


def shrink_geometry(geometry: Geometry, factors: Factors) -> Geometry:
    """Grid of the blocks of ``factors`` voxels; a block's centre is the mean of its voxels' centres."""
    f = np.array(factors)
    x, y, z = (int(n) for n in -(-np.array(geometry.shape) // f))
    affine = geometry.affine.copy()
    affine[:3, :3] = geometry.affine[:3, :3] * f
    affine[:3, 3] = geometry.points((f - 1) / 2)
    return Geometry((x, y, z), affine)


def shrink(image: Float32Array, factors: Factors) -> Float32Array:
    """Mean of each block of voxels; the last block along an axis is filled with the edge voxel."""
    if factors == (1, 1, 1):
        return image
    return _core.block_mean(np.ascontiguousarray(image, dtype=np.float32), factors)


def change_level(u: Float32Array, before: Factors, after: Factors, shape: tuple[int, int, int]) -> Float32Array:
    """Carry a displacement in voxels (3, X, Y, Z) from one shrunken grid to another of the same image."""
    if before == after:
        return u
    b, a = np.array(before, dtype=np.float64), np.array(after, dtype=np.float64)
    scale: Float64Array = a / b
    offset: Float64Array = (a - b) / (2 * b)
    units = (b / a).astype(np.float32)
    if u[0].size < np.prod(shape):  # the smaller of the two is scaled
        return _core.resample_field(_core.scale_channels(u, units), shape, scale, offset)
    return _core.scale_channels(_core.resample_field(u, shape, scale, offset), units)


BINS = 256
ENCLOSED = 2  # A voxel between two of the foreground along this many axes is inside the body, as lungs do


def body_mask(image: Volume, labels: LabelMap | None = None) -> NDArray[np.bool_]:
    """Segment the body from the air by Otsu's threshold, which parts the histogram in two of least variance.

    ``labels`` are structures on the same grid, which always count as body. All True where the image has one value only.
    """
    bright = np.ascontiguousarray(bright_mask(image)).view(np.uint8)
    mask = np.asarray(_core.enclosed(bright, ENCLOSED)).view(np.bool_)
    return mask if labels is None else mask | (labels.data != 0)


def bright_mask(image: Volume) -> NDArray[np.bool_]:
    """Return the voxels above Otsu's threshold; all where the image has one value only."""
    low, high = float(image.data.min()), float(image.data.max())
    if low == high:
        return np.ones(image.data.shape, dtype=bool)
    edges = np.linspace(low, high, BINS + 1)
    counts = _core.histogram(np.ascontiguousarray(image.data, dtype=np.float32), edges)
    share = counts / counts.sum()
    centres = (edges[:-1] + edges[1:]) / 2
    below, mean = np.cumsum(share), np.cumsum(share * centres)
    with np.errstate(divide="ignore", invalid="ignore"):
        between = (mean[-1] * below - mean) ** 2 / (below * (1 - below))
    # Between two far peaks all thresholds are as good: take the middle one, not the edge of the air.
    best = np.flatnonzero(np.isclose(between, np.nanmax(between), rtol=1e-9, atol=0.0))
    return np.asarray(image.data > float(edges[1:][best].mean()))
