"""Comparison of voxel grids: whether two are one, and whether they meet at all."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
from pathlib import Path

import numpy as np

from regweave.errors import RegweaveError
from regweave.io.geometry import describe
from regweave.types import Float64Array, Geometry

LOGGER = logging.getLogger(__name__)

SAME_GRID_VOXELS = 0.01
HASH_UNIT = 1e-5
SAME_VIEW = 0.8
"""Share of the larger field of view that a mask and its image must have in common for resampling to be proposed."""
MIN_OVERLAP = 0.1
SAMPLES_PER_AXIS = 24


def corner_offset_voxels(image: Geometry, other: Geometry) -> float:
    """Return the largest distance between equal corners of two grids of one shape, in voxels of the first."""
    offset = other.corners_mm() - image.corners_mm()
    index = np.linalg.solve(image.affine[:3, :3], offset.T)
    return float(np.linalg.norm(index, axis=0).max())


def same_grid(image: Geometry, other: Geometry) -> bool:
    """Tell whether two grids are one, up to 0.01 voxel at each corner."""
    return image.shape == other.shape and corner_offset_voxels(image, other) <= SAME_GRID_VOXELS


def same_voxels(image: Geometry, other: Geometry) -> bool:
    """Tell whether two grids have the same voxels in space, in whatever order they are stored, up to 0.01 voxel.

    Examples
    --------
    >>> box = Geometry((4, 5, 6), np.eye(4))
    >>> mirrored = Geometry((5, 4, 6), np.array([[0, -1, 0, 3], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]]))
    >>> same_voxels(box, mirrored), same_voxels(box, Geometry((4, 5, 7), np.eye(4)))
    (True, False)
    """
    turn = np.rint(np.linalg.solve(image.affine[:3, :3], other.affine[:3, :3]))
    if not (np.abs(turn).sum(axis=0) == 1).all() or not (np.abs(turn).sum(axis=1) == 1).all():
        return False
    order = np.abs(turn).argmax(axis=0)
    if [image.shape[axis] for axis in order] != list(other.shape):
        return False
    affine = np.eye(4)
    affine[:3, :3] = image.affine[:3, :3] @ turn
    first = [image.shape[axis] - 1 if turn[axis].sum() < 0 else 0 for axis in range(3)]
    affine[:3, 3] = image.points(np.array(first, dtype=np.float64))
    return same_grid(Geometry(other.shape, affine), other)


def grid_hash(geometry: Geometry) -> str:
    """SHA-256 of a grid, the same for every order in which its voxels can be stored.

    The axes are brought to the order and the signs nearest to left, posterior, superior; hashed are the size and, in
    units of 1e-5 of the smallest spacing, the position of the first voxel and the steps.

    Examples
    --------
    >>> box = Geometry((4, 5, 6), np.eye(4))
    >>> mirrored = Geometry((5, 4, 6), np.array([[0, -1, 0, 3], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]]))
    >>> grid_hash(box) == grid_hash(mirrored)
    True
    """
    orders = itertools.permutations(range(3))
    nearest = max(orders, key=lambda order: sum(abs(geometry.direction[i, axis]) for i, axis in enumerate(order)))
    steps = geometry.affine[:3, list(nearest)]
    flipped = np.sign(np.diag(steps)) < 0
    first = np.zeros(3)
    first[list(nearest)] = np.where(flipped, np.array(geometry.shape)[list(nearest)] - 1, 0)
    unit = geometry.spacing_mm.min() * HASH_UNIT
    numbers = np.rint(np.column_stack([np.where(flipped, -steps, steps), geometry.points(first)]) / unit) + 0.0
    text = json.dumps([[geometry.shape[axis] for axis in nearest], float(f"{unit:.4g}"), numbers.tolist()])
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def check_same_grid(image: Geometry, mask: Geometry, path: str | Path) -> Geometry:
    """Return the geometry that a mask shares with its image, or raise E112.

    Parameters
    ----------
    image, mask : Geometry
    path : path
        Name of the mask in messages.

    Returns
    -------
    Geometry
        The image's own, which the mask adopts: headers that differ in the last digits mean the same grid.
    """
    if image.shape == mask.shape:
        offset = corner_offset_voxels(image, mask)
        if offset <= SAME_GRID_VOXELS:
            if offset > 0:
                LOGGER.info("'%s': header off by %.3g voxel, the image's header is used", path, offset)
            return image
        difference = f"corners differ by up to {offset:.6g} voxels, allowed {SAME_GRID_VOXELS}"
    else:
        difference = f"sizes {list(mask.shape)} and {list(image.shape)} differ"
    message = (
        f"'{path}' is not on the grid of its image: {difference}\n  image: {describe(image)}\n  mask:  {describe(mask)}"
    )
    volumes = [abs(np.linalg.det(g.affine[:3, :3])) * np.prod(g.shape) for g in (image, mask)]
    shared = overlap_fraction(image, mask, np.eye(4)) * min(volumes) / max(volumes)
    if shared >= SAME_VIEW:
        hint = (
            "if it was drawn on this image, resample it: regweave warp labels MASK --transform identity "
            "--reference IMAGE -o OUT"
        )
    else:
        message += f"\n  only {shared:.0%} of their fields of view is common: this mask belongs to another image"
        hint = "give the mask that was drawn on this image"
    raise RegweaveError("E112", message, hint)


def overlap_fraction(fixed: Geometry, moving: Geometry, matrix: Float64Array) -> float:
    """Return which part of the smaller volume lies inside the other one.

    Parameters
    ----------
    fixed, moving : Geometry
    matrix : float array of shape (4, 4)
        Takes LPS millimetres of the fixed image to those of the moving image.

    Examples
    --------
    >>> box = Geometry((10, 10, 10), np.eye(4))
    >>> shift = np.eye(4)
    >>> shift[0, 3] = 5.0
    >>> overlap_fraction(box, box, shift)
    0.5
    """
    fixed_index_to_mm = matrix @ fixed.affine
    fixed_volume = abs(np.linalg.det(fixed_index_to_mm[:3, :3])) * np.prod(fixed.shape)
    moving_volume = abs(np.linalg.det(moving.affine[:3, :3])) * np.prod(moving.shape)
    if fixed_volume <= moving_volume:
        return _part_inside(fixed.shape, moving.shape, np.linalg.inv(moving.affine) @ fixed_index_to_mm)
    return _part_inside(moving.shape, fixed.shape, np.linalg.inv(fixed_index_to_mm) @ moving.affine)


def _part_inside(inner: tuple[int, ...], outer: tuple[int, ...], index_map: Float64Array) -> float:
    """Sample the inner box, whose voxels are unit cells, and count the samples inside the outer box."""
    axes = [(np.arange(SAMPLES_PER_AXIS) + 0.5) / SAMPLES_PER_AXIS * n - 0.5 for n in inner]
    index = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
    mapped = index @ index_map[:3, :3].T + index_map[:3, 3]
    inside = (mapped >= -0.5) & (mapped <= np.asarray(outer) - 0.5)
    return float(inside.all(axis=1).mean())


def check_overlap(fixed: Geometry, moving: Geometry, matrix: Float64Array, *, minimum: float = MIN_OVERLAP) -> float:
    """Return the overlap, or raise E120 where it is below the limit."""
    overlap = overlap_fraction(fixed, moving, matrix)
    if overlap >= minimum:
        return overlap
    centre = np.append(fixed.corners_mm().mean(axis=0), 1.0)
    distance = np.linalg.norm((matrix @ centre)[:3] - moving.corners_mm().mean(axis=0))
    message = (
        f"fixed and moving image overlap by {overlap:.1%} of the smaller one, needed {minimum:.0%}; "
        f"their centres are {distance:.1f} mm apart"
    )
    raise RegweaveError("E120", message, "start from the images themselves with --init moments")
