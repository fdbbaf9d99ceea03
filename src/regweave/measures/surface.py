"""Distance between the surfaces of two masks, in millimetres.

The surface of a mask is its border voxels: those with one of six neighbours outside the mask, or outside the
image. A distance goes from the centre of a border voxel of one mask to the nearest such centre of the other.
Tools that walk a mesh or weight by area give other numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import ndimage

from regweave.types import Float64Array

BoolArray = NDArray[np.bool_]


def surface_distances_mm(a: ArrayLike, b: ArrayLike, spacing_mm: ArrayLike) -> tuple[Float64Array, Float64Array]:
    """Return the distance of each border voxel of one mask to the other mask's border.

    Parameters
    ----------
    a, b : boolean arrays of shape (X, Y, Z)
        Masks on one grid.
    spacing_mm : three floats
        Distance between voxels along each axis.

    Returns
    -------
    tuple of two float arrays
        From a to b and from b to a; both empty where a mask is empty.

    Examples
    --------
    >>> a, b = np.zeros((2, 3, 3, 5), dtype=bool)
    >>> a[1, 1, 1] = b[1, 1, 3] = True
    >>> [d.tolist() for d in surface_distances_mm(a, b, (1.0, 1.0, 2.0))]
    [[4.0], [4.0]]
    """
    first, second = np.asarray(a, dtype=bool), np.asarray(b, dtype=bool)
    if first.shape != second.shape:
        raise ValueError(f"masks have shapes {first.shape} and {second.shape}; resample one onto the other")
    if not (first.any() and second.any()):
        return np.empty(0), np.empty(0)
    box = ndimage.find_objects((first | second).astype(np.uint8))[0]
    border_a, border_b = _border(first[box]), _border(second[box])
    return _distances(border_a, border_b, spacing_mm), _distances(border_b, border_a, spacing_mm)


def hd95_mm(a: ArrayLike, b: ArrayLike, spacing_mm: ArrayLike) -> float:
    """Compute the 95 % Hausdorff distance: the larger of the two directed 95th percentiles.

    Parameters
    ----------
    a, b : boolean arrays of shape (X, Y, Z)
        Masks on one grid.
    spacing_mm : three floats
        Distance between voxels along each axis.

    Returns
    -------
    float
        Millimetres; NaN where a mask is empty.

    Examples
    --------
    >>> cube = np.ones((3, 3, 3), dtype=bool)
    >>> hd95_mm(cube, cube, (1.0, 1.0, 1.0))
    0.0
    """
    there, back = surface_distances_mm(a, b, spacing_mm)
    if there.size == 0:
        return float("nan")
    return float(max(np.percentile(there, 95), np.percentile(back, 95)))


def assd_mm(a: ArrayLike, b: ArrayLike, spacing_mm: ArrayLike) -> float:
    """Compute the average symmetric surface distance: the mean of the two directed means.

    Parameters
    ----------
    a, b : boolean arrays of shape (X, Y, Z)
        Masks on one grid.
    spacing_mm : three floats
        Distance between voxels along each axis.

    Returns
    -------
    float
        Millimetres; NaN where a mask is empty.

    Examples
    --------
    >>> cube = np.ones((3, 3, 3), dtype=bool)
    >>> assd_mm(cube, cube, (1.0, 1.0, 1.0))
    0.0
    """
    there, back = surface_distances_mm(a, b, spacing_mm)
    if there.size == 0:
        return float("nan")
    return float((there.mean() + back.mean()) / 2.0)


def _border(mask: BoolArray) -> BoolArray:
    # A cut made by the box is as good as the image's end: just outside the box there is no mask.
    return np.asarray(mask & ~ndimage.binary_erosion(mask, border_value=0))


def _distances(source: BoolArray, target: BoolArray, spacing_mm: ArrayLike) -> Float64Array:
    distance = ndimage.distance_transform_edt(~target, sampling=np.asarray(spacing_mm, dtype=np.float64))
    return np.asarray(distance[source], dtype=np.float64)
