"""Rigid parts of a map: bones and devices, which a registration bends, are moved as they are.

Inside a part the map becomes the rigid motion that fits it best. What this changes is carried on outside by a membrane
that fades, so the tissue around follows the part, and what lies farther away stays as it was found.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave import _core
from regweave.spatial.voxels import shrink
from regweave.spatial.warp import determinant, voxel_matrix, warp_labels, warp_points
from regweave.types import Field, Float32Array, Float64Array, Geometry, IntArray, LabelMap, Transform

MOST_POINTS = 20_000  # Points of a part to which a motion is fitted
FADE_MM, FADE_SHARE = 5.0, 1.5  # Length over which a change fades: at least this, and this share of the change
LONGER = (1.0, 2.0, 4.0)  # Factors of it; the first without folds is used
ROUNDS = 4  # Times at most that voxels which show another part than they move with, or one where none, are given to it
REPAIRS = (1, 2, 3, 4, 6, 8, 12, 16)  # Widths in voxels, one after the other, by which surroundings of folds grow
REACH = 6.0  # Lengths after which it has faded
SWEEPS = 20  # Relaxations of a membrane on each of its grids
LEAST_VOLUME = 0.1  # No voxel may shrink to less than this


def rigid_fit(points: Float64Array, moved: Float64Array) -> Float64Array:
    """Return the rotation and shift (4, 4) that take points (n, 3) nearest to others, by least squares."""
    middle, there = points.mean(axis=0), moved.mean(axis=0)
    u, _, v = np.linalg.svd((moved - there).T @ (points - middle))
    turn = u @ np.diag([1.0, 1.0, np.sign(np.linalg.det(u @ v))]) @ v
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = turn, there - turn @ middle
    return affine


def keep_rigid(transform: Transform, parts: LabelMap) -> tuple[Transform, dict[int, float], set[int]]:
    """Make a map from fixed to moving points rigid inside parts of the moving image.

    Parameters
    ----------
    transform : Transform
    parts : LabelMap
        Parts by number, each of which keeps its shape.

    Returns
    -------
    Transform, dict, set
        The map, without knots; how far it was from rigid in each part, root mean square in mm; and the parts that are
        as they were, since their motions would fold what lies between them.
    """
    motions, bent = motions_of(transform, parts)
    folding = set[int]()
    least = min(LEAST_VOLUME, float(determinant(transform.field).min()))
    while kept := {value: motion for value, motion in motions.items() if value not in folding}:
        for longer in LONGER:
            made, volume, owner = _with_motions(transform, parts, kept, least, longer)
            if float(volume.min()) >= least:
                return made, bent, folding
        near = owner[ndimage.binary_dilation(volume < least, iterations=2)]
        counts = np.bincount(near[near > 0], minlength=2)
        folding.add(int(counts.argmax()) if counts.any() else min(kept))
    return transform, bent, folding


def _with_motions(
    transform: Transform, parts: LabelMap, motions: dict[int, Float64Array], least: float, longer: float
) -> tuple[Transform, Float32Array, IntArray]:
    """Return a map with these motions of parts, volumes of its voxels, and the part that each voxel moves with."""
    grid = transform.field.geometry
    owner = owners(grid, parts, motions)
    for _ in range(ROUNDS):
        change = _change(transform, owner, motions)
        size_mm = float(np.sqrt((change[:, owner > 0] ** 2).sum(axis=0).mean()))
        fade_mm = longer * max(FADE_MM, FADE_SHARE * size_mm)
        field = Field(transform.field.data + faded(change, owner > 0, grid, fade_mm), grid)
        field, volume = _without_folds(field, owner > 0, least)
        made = replace(transform, field=field, knots=None)
        shown = warp_labels(parts, made).data
        if not (more := (owner != shown) & np.isin(shown, list(motions))).any():
            break
        owner[more] = shown[more]
    return made, volume, owner


def _without_folds(field: Field, fixed: NDArray[np.bool_], least: float) -> tuple[Field, Float32Array]:
    """Let a membrane span ever wider surroundings of folds, all but what is fixed; return the volumes of voxels too."""
    volume, near = determinant(field), np.zeros(fixed.shape, dtype=bool)
    for width in REPAIRS:
        if not (bad := volume < least).any():
            break
        near |= ndimage.binary_dilation(bad, np.ones((3, 3, 3)), iterations=width)
        kept = fixed | ~near
        spanned = [_membrane(part, kept, field.geometry.spacing_mm, np.inf) for part in field.data]
        field = Field(np.stack(spanned), field.geometry)
        volume = determinant(field)
    return field, volume


def motions_of(transform: Transform, parts: LabelMap) -> tuple[dict[int, Float64Array], dict[int, float]]:
    """Rigid motion of each part that the fixed image shows, and what it leaves of the map, root mean square in mm."""
    where, motions, bent = warp_labels(parts, transform), {}, {}
    for value, box in enumerate(ndimage.find_objects(where.data), start=1):
        if box is not None:
            index = np.argwhere(where.data[box] == value) + [side.start for side in box]
            points = where.geometry.points(index[:: max(1, len(index) // MOST_POINTS)].astype(np.float64))
            there = warp_points(points, transform)
            motions[value] = motion = rigid_fit(points, there)
            left = points @ motion[:3, :3].T + motion[:3, 3] - there
            bent[value] = float(np.sqrt((left**2).sum(axis=1).mean()))
    return motions, bent


def owners(grid: Geometry, parts: LabelMap, motions: dict[int, Float64Array]) -> IntArray:
    """Part that each voxel of the fixed grid moves with, 0 for none.

    A motion takes these voxels into its part, or the map is interpolated from them at a voxel of it.
    """
    owner, corners = np.zeros(grid.shape, dtype=np.int32), []
    for value, box in enumerate(ndimage.find_objects(parts.data), start=1):
        if box is None or value not in motions:
            continue
        mask = parts.data[box] == value
        first = np.array([side.start for side in box])
        back = np.linalg.inv(motions[value])
        places = parts.geometry.points((np.argwhere(mask) + first).astype(np.float64))
        at = np.floor(grid.index(places @ back[:3, :3].T + back[:3, 3])).astype(int)
        low = np.clip(at.min(axis=0) - 1, 0, grid.shape)
        high = np.clip(at.max(axis=0) + 3, 0, grid.shape)
        if (high <= low).any():
            continue
        matrix = voxel_matrix(grid, parts.geometry, motions[value])
        offset = matrix[:, 3] + matrix[:, :3] @ low - first
        inner = ndimage.affine_transform(mask.view(np.uint8), matrix[:, :3], offset, tuple(high - low), order=0)
        owner[tuple(slice(a, b) for a, b in zip(low, high, strict=True))][inner > 0] = value
        corners.append((value, np.unique(at, axis=0)))
    margin = np.zeros_like(owner)
    for value, at in corners:
        for corner in np.ndindex(2, 2, 2):
            index = (at + corner)[((at + corner >= 0) & (at + corner < grid.shape)).all(axis=1)]
            margin[tuple(index.T)] = value
    return np.where(owner > 0, owner, margin)


def _change(transform: Transform, owner: IntArray, motions: dict[int, Float64Array]) -> Float32Array:
    """Change of the displacement (3, X, Y, Z) that makes it rigid where a part owns a voxel."""
    change, back = np.zeros_like(transform.field.data), np.linalg.inv(transform.affine)
    for value, box in enumerate(ndimage.find_objects(owner), start=1):
        if box is not None:
            index = (np.argwhere(owner[box] == value) + [side.start for side in box]).T
            points = transform.field.geometry.points(index.T.astype(np.float64))
            matrix = back @ motions[value]
            wanted = points @ (matrix[:3, :3] - np.eye(3)).T + matrix[:3, 3]
            change[:, *index] = wanted.T - transform.field.data[:, *index]
    return change


def faded(values: Float32Array, known: NDArray[np.bool_], grid: Geometry, fade_mm: float) -> Float32Array:
    """Carry values (3, X, Y, Z) on from where they are known, as a membrane that fades over a length to 0."""
    out = np.zeros_like(values)
    held = np.argwhere(known)
    margin = np.ceil(REACH * fade_mm / grid.spacing_mm).astype(int)
    low, high = held.min(axis=0) - margin, held.max(axis=0) + margin + 1
    box = tuple(slice(max(a, 0), b) for a, b in zip(low.tolist(), high.tolist(), strict=True))
    part = known[box]
    for axis in range(3):
        out[axis][box] = _membrane(values[axis][box], part, grid.spacing_mm, fade_mm)
    return out


def _membrane(values: Float32Array, known: NDArray[np.bool_], spacing_mm: Float64Array, fade_mm: float) -> Float32Array:
    """Solve ∇²v = v / fade² round known values, on ever finer grids; no flux leaves the box."""
    found = np.zeros_like(values)
    x, y, z = (2 if n > 4 else 1 for n in values.shape)
    factors = x, y, z
    if max(factors) > 1:
        share = shrink(known.astype(np.float32), factors)
        mean = shrink(np.where(known, values, np.float32(0)), factors) / np.maximum(share, np.float32(1e-6))
        coarse = _membrane(mean.astype(np.float32, copy=False), share > 0, spacing_mm * factors, fade_mm)
        f = np.array(factors)
        found = _core.resample_field(coarse[None], values.shape, 1 / f, (1 - f) / (2 * f))[0]
    weights = 1 / spacing_mm**2
    total = np.float32(2 * weights.sum() + 1 / fade_mm**2)
    for _ in range(SWEEPS):
        found[known] = values[known]
        pulled = np.zeros_like(found)
        for axis, weight in enumerate(weights.astype(np.float32) / total):
            along, to = np.moveaxis(found, axis, 0), np.moveaxis(pulled, axis, 0)
            to[1:] += weight * along[:-1]
            to[:-1] += weight * along[1:]
            to[0] += weight * along[0]
            to[-1] += weight * along[-1]
        found = pulled
    found[known] = values[known]
    return found
