"""Voxel grids in LPS millimetres: conversion of frames, comparison, and the canonical order of axes."""

import hashlib
import itertools
import json
import logging
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regweave import _core
from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import damaged
from regweave.types import Float64Array, Geometry, Image, LabelMap, Volume

LOGGER = logging.getLogger(__name__)

FRAMES = ("LPS", "RAS")
RAS_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])
KEPT_SHEAR_RAD = 1e-5  # Below this the matrix is not changed: single precision in the file explains the angle
SNAPPED_SHEAR_RAD = 1e-3  # Below this the axes are made orthonormal: 0.5 mm at the end of a 500 mm axis

MAX_ANISOTROPY = 1e4
MIN_SPACING_MM, MAX_SPACING_MM = 1e-9, 1e6
MAX_ORIGIN_MM = 1e9


def ras_to_lps(affine: ArrayLike) -> Float64Array:
    """Turn an affine that ends in RAS millimetres into one that ends in LPS, or back."""
    return np.asarray(RAS_LPS @ affine_matrix(affine, "the array") + 0.0)


def affine_matrix(affine: ArrayLike, subject: str) -> Float64Array:
    """Return an affine as a matrix of shape (4, 4) whose last row is 0 0 0 1, or raise E102."""
    try:
        matrix = np.asarray(affine, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise damaged(subject, f"its affine is no matrix of numbers ({error})") from error
    problem = ""
    if matrix.shape != (4, 4):
        problem = f"its affine has shape {matrix.shape}, needed is (4, 4)"
    elif not np.isfinite(matrix).all():
        problem = "its affine holds non-finite numbers"
    elif (matrix[3] != (0, 0, 0, 1)).any():
        problem = f"the last row of its affine is {matrix[3].tolist()}, needed is [0, 0, 0, 1]"
    if problem:
        raise damaged(subject, problem)
    return matrix


def array_affine(affine: ArrayLike | None, spacing_mm: ArrayLike | None, frame: str) -> Float64Array:
    """Return the RAS affine of an array that a user places by an affine or by its spacing."""
    if frame not in FRAMES:
        raise UsageError("E108", f"frame is {frame!r}, allowed are {' and '.join(FRAMES)}", "name one of them")
    if (affine is None) == (spacing_mm is None):
        given = "neither affine nor spacing_mm" if affine is None else "both affine and spacing_mm"
        raise UsageError("E108", f"an array does not say where it lies, and {given} is given", "give one of them")
    if affine is None:
        spacing = np.asarray(spacing_mm, dtype=np.float64)
        if spacing.shape != (3,):
            raise UsageError("E108", f"spacing_mm has shape {spacing.shape}, needed is (3,)", "give three numbers")
        affine = np.diag([*spacing, 1.0])
    return ras_to_lps(affine) if frame == "LPS" else affine_matrix(affine, "the array")


def affine_of(axes: ArrayLike, origin: ArrayLike) -> Float64Array:
    """Return the affine of three axes, the columns of a matrix (3, 3), and the place of the first voxel."""
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = axes, origin
    return affine


def make_geometry(shape: tuple[int, ...], affine: ArrayLike, subject: str) -> Geometry:
    """Build a geometry with orthonormal axes from an index → LPS affine, or raise E111.

    Axes that are skew by less than 1e-3 rad are replaced by the nearest orthonormal ones (polar decomposition); spacing
    and centre of the volume do not change. ``subject`` names the image in messages.
    """
    matrix = affine_matrix(affine, subject)
    spacing = np.linalg.norm(matrix[:3, :3], axis=0)
    if (spacing <= 0).any() or abs(np.linalg.det(matrix[:3, :3] / spacing)) < 1e-6:
        message = f"{subject} has axes that do not span space: spacing {spacing.tolist()} mm"
        raise RegweaveError("E111", message, "repair the header; the matrix must be invertible")
    message = ""
    if spacing.max() > MAX_ANISOTROPY * spacing.min():
        message = f"{subject} has voxels of {spacing.tolist()} mm; sides may differ {MAX_ANISOTROPY:g} times at most"
    elif not (spacing.min() >= MIN_SPACING_MM and spacing.max() <= MAX_SPACING_MM):
        message = f"{subject} has a spacing of {spacing.tolist()} mm, allowed is {MIN_SPACING_MM} to {MAX_SPACING_MM:g}"
    elif np.abs(matrix[:3, 3]).max() > MAX_ORIGIN_MM:
        place = matrix[:3, 3].tolist()
        message = f"{subject} lies at {place} mm, allowed is {MAX_ORIGIN_MM:g} from the origin at most"
    if message:
        raise RegweaveError("E111", message, "repair the header; lengths are in millimetres unless it says otherwise")
    direction = matrix[:3, :3] / spacing
    angle = shear_angle(direction)
    if angle >= SNAPPED_SHEAR_RAD:
        message = f"{subject} has skew axes: {np.degrees(angle):.4g}° away from a right angle, "
        message += f"not snapped (allowed: {np.degrees(SNAPPED_SHEAR_RAD):.2g}°)"
        raise RegweaveError("E111", message, "resample the image onto a grid with perpendicular axes")
    size = (int(shape[0]), int(shape[1]), int(shape[2]))
    if angle < KEPT_SHEAR_RAD:
        return Geometry(size, matrix.copy())
    LOGGER.info("%s: axes snapped to right angles, they were off by %.3g rad", subject, angle)
    u, _, vt = np.linalg.svd(direction)  # polar decomposition: u·vt is the nearest orthonormal matrix
    axes, centre = (u @ vt) * spacing, (np.asarray(size) - 1) / 2
    return Geometry(size, affine_of(axes, matrix[:3, :3] @ centre + matrix[:3, 3] - axes @ centre))


def shear_angle(direction: Float64Array) -> float:
    """Return the largest deviation of two axes from a right angle, in radians."""
    cosines = direction.T @ direction
    return float(np.arcsin(min(1.0, np.abs(cosines[np.triu_indices(3, 1)]).max())))


def set_itk_geometry(image: Any, geometry: Geometry) -> None:
    """Place a SimpleITK image on a grid."""
    image.SetSpacing(geometry.spacing_mm.tolist())
    image.SetOrigin(geometry.origin_mm.tolist())
    image.SetDirection(geometry.direction.ravel().tolist())


def describe(geometry: Geometry) -> str:
    """Print a geometry in full precision, for messages in which two of them differ."""
    return (
        f"size {list(geometry.shape)}, origin {geometry.origin_mm.tolist()} mm LPS, "
        f"spacing {geometry.spacing_mm.tolist()} mm, direction {geometry.direction.tolist()}"
    )


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
    """Return whether two grids are equal, up to 0.01 voxel at each corner."""
    return image.shape == other.shape and corner_offset_voxels(image, other) <= SAME_GRID_VOXELS


def same_voxels(image: Geometry, other: Geometry) -> bool:
    """Return whether two grids have the same voxels in space, in any order of storage, up to 0.01 voxel."""
    turn = np.rint(np.linalg.solve(image.affine[:3, :3], other.affine[:3, :3]))
    if not (np.abs(turn).sum(axis=0) == 1).all() or not (np.abs(turn).sum(axis=1) == 1).all():
        return False
    order = np.abs(turn).argmax(axis=0)
    if [image.shape[axis] for axis in order] != list(other.shape):
        return False
    first = [image.shape[axis] - 1 if turn[axis].sum() < 0 else 0 for axis in range(3)]
    affine = affine_of(image.affine[:3, :3] @ turn, image.points(np.array(first, dtype=np.float64)))
    return same_grid(Geometry(other.shape, affine), other)


def grid_hash(geometry: Geometry) -> str:
    """SHA-256 of a grid, the same for every order in which its voxels can be stored.

    The axes are brought to the order and the signs nearest to left, posterior, superior; hashed are the size and, in
    units of 1e-5 of the smallest spacing, the position of the first voxel and the steps.
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
    """Return the geometry that a mask shares with its image, or raise E112; ``path`` names the mask in messages.

    It is the image's own: headers that differ in the last digits mean the same grid.
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
        hint = "if it was drawn on this image, resample it: regweave warp labels MASK --transform identity "
        hint += "--reference IMAGE -o OUT"
    else:
        message += f"\n  only {shared:.0%} of their fields of view is common: this mask belongs to another image"
        hint = "give the mask that was drawn on this image"
    raise RegweaveError("E112", message, hint)


def overlap_fraction(fixed: Geometry, moving: Geometry, matrix: Float64Array) -> float:
    """Return the share of the smaller volume inside the other one; ``matrix`` maps fixed to moving millimetres."""
    boxes = [(fixed.shape, matrix @ fixed.affine), (moving.shape, moving.affine)]
    (inner, there), (outer, place) = sorted(boxes, key=lambda box: abs(np.linalg.det(box[1][:3, :3])) * np.prod(box[0]))
    # Voxels of the smaller box are unit cells; samples of it are counted.
    axes = [(np.arange(SAMPLES_PER_AXIS) + 0.5) / SAMPLES_PER_AXIS * n - 0.5 for n in inner]
    index = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
    index_map = np.linalg.inv(place) @ there
    mapped = index @ index_map[:3, :3].T + index_map[:3, 3]
    inside = (mapped >= -0.5) & (mapped <= np.asarray(outer) - 0.5)
    return float(inside.all(axis=1).mean())


def check_overlap(fixed: Geometry, moving: Geometry, matrix: Float64Array) -> float:
    """Return the overlap, or raise E120 where it is below the limit."""
    overlap = overlap_fraction(fixed, moving, matrix)
    if overlap >= MIN_OVERLAP:
        return overlap
    centre = np.append(fixed.corners_mm().mean(axis=0), 1.0)
    distance = np.linalg.norm((matrix @ centre)[:3] - moving.corners_mm().mean(axis=0))
    message = f"fixed and moving image overlap by {overlap:.1%} of the smaller one, needed {MIN_OVERLAP:.0%}; "
    message += f"their centres are {distance:.1f} mm apart"
    raise RegweaveError("E120", message, "start from the images themselves with --init moments")


TIE = 1e-6  # Sums of cosines that differ by less are equal: single precision in a header explains it
DIGITS = 6
"""Digits that a canonical matrix keeps below the leading one of the spacing: storages differ in the last bits."""


OnGrid = TypeVar("OnGrid", Volume, Image, LabelMap)


@dataclass(frozen=True)
class Orientation:
    """Axis permutation and flips of a stored grid.

    ``order`` has the stored axis along L, P and S; ``steps`` 1, or -1 where that axis runs the other way.
    """

    stored: Geometry
    order: tuple[int, int, int]
    steps: tuple[int, int, int]

    @classmethod
    def of(cls, geometry: Geometry) -> Self:
        """Find the axes nearest L, P and S."""
        order = nearest_axes(geometry.direction)
        x, y, z = (1 if geometry.direction[world, axis] >= 0 else -1 for world, axis in enumerate(order))
        return cls(geometry, order, (x, y, z))

    @cached_property
    def canonical(self) -> Geometry:
        """The same voxels with axes along L, P and S."""
        shape = [self.stored.shape[axis] for axis in self.order]
        place = np.zeros((4, 4))
        place[3, 3] = 1.0
        for new, (axis, step, n) in enumerate(zip(self.order, self.steps, shape, strict=True)):
            place[axis, new] = step
            place[axis, 3] = 0 if step > 0 else n - 1
        unit = 10.0 ** (np.floor(np.log10(self.stored.spacing_mm.min())) - DIGITS)
        affine = np.rint(self.stored.affine @ place / unit) * unit + 0.0
        affine[3] = (0.0, 0.0, 0.0, 1.0)
        return Geometry((shape[0], shape[1], shape[2]), np.asarray(affine, dtype=np.float64))

    def to_canonical(self, values: NDArray[Any]) -> NDArray[Any]:
        """Bring values (..., X, Y, Z) from the stored order to the canonical one; float32 by a kernel."""
        still, lead = self.order == (0, 1, 2) and self.steps == (1, 1, 1), values.ndim - 3
        if values.dtype == np.float32 and values.flags.c_contiguous and values.size and not still:
            found = _core.arrange(values.reshape(-1, *values.shape[lead:]), self.order, self.steps)
            return found.reshape(*values.shape[:lead], *found.shape[1:])
        turned = values.transpose(*range(lead), *(lead + axis for axis in self.order))
        back = tuple(lead + axis for axis, step in enumerate(self.steps) if step < 0)
        return np.ascontiguousarray(np.flip(turned, back))

    def to_stored(self, values: NDArray[Any]) -> NDArray[Any]:
        """Bring values (..., X, Y, Z) from the canonical order back to the stored one."""
        x, y, z = (int(axis) for axis in np.argsort(self.order))
        steps = self.steps[x], self.steps[y], self.steps[z]
        return Orientation(self.canonical, (x, y, z), steps).to_canonical(values)

    def turned(self, found: OnGrid) -> OnGrid:
        """Return an image or labels of the stored grid in canonical order."""
        return replace(found, data=self.to_canonical(found.data), geometry=self.canonical)

    def as_stored(self, found: OnGrid) -> OnGrid:
        """Return an image or labels in canonical order on the stored grid."""
        return replace(found, data=self.to_stored(found.data), geometry=self.stored)


def nearest_axes(direction: Float64Array) -> tuple[int, int, int]:
    """Image axis for each of L, P and S: the assignment with the largest sum of absolute cosines.

    Between equals, as at a turn of 45°, the one whose matrix of axes comes last in lexicographic order is taken:
    that rule sees the lines in space, not the order in which a file lists them.
    """
    best: tuple[float, list[float], tuple[int, int, int]] | None = None
    for order in itertools.permutations(range(3)):
        axes = direction[:, order]
        axes = axes * np.where(np.diagonal(axes) < 0, -1.0, 1.0)
        total, matrix = float(np.diagonal(axes).sum()), np.round(axes.ravel(), DIGITS).tolist()
        if best is None or total > best[0] + TIE or (total > best[0] - TIE and matrix > best[1]):
            best = (total, matrix, (order[0], order[1], order[2]))
    assert best is not None
    return best[2]
