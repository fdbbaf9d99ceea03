"""Start from structure maps: landmark registration of the structures' centres and extents, affine and then smooth.

Between two people an organ may be farther from its place than the levels search. Each structure that both maps show
gives seven landmarks: its centre, and the points one standard deviation from it along each axis. An affine map is
fitted to them by least squares, and what is left becomes a composition of smooth displacements: regressions with
ever narrower Gaussian kernels (kriging), each weakened until it folds nowhere.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave import notices
from regweave.registration.initial import VOLUME_RATIOS
from regweave.spatial.warp import compose, determinant, warp_points
from regweave.types import Field, Float32Array, Float64Array, Geometry, ImagePair, StructureMaps, Transform

SURE = 0.5  # Probability from which on a voxel counts
LEAST_VOXELS = 8.0  # Voxels, weighed by probability, that a structure must have in both maps
LEAST_STRUCTURES = 2  # With fewer the start does not change
STIFF = 0.5  # Weight of the affine map's distance from the start, against the landmarks of one structure
REACHES = (0.2, 0.14, 0.1)  # Standard deviations of the kernels, against the longest side of the fixed image
NOISE = 0.1  # Variance of a landmark's error against that of the displacement: more is smoother
LEAST_VOLUME = 0.25  # A displacement is weakened until it shrinks no voxel to less than this
WEAKER = 0.85


def started_from_structures(pair: ImagePair) -> ImagePair:
    """Return the pair with an affine start and a deformable one that superpose its structures.

    Guides come first, then maps of the moving labels, then those of the image. Warns W210, where fewer than two
    structures are found in both images, or the affine fit changes the volume too much; the pair is returned as it was.
    """
    fixed_maps, shown = pair.fixed.maps, pair.moving.label_maps or pair.moving.maps
    if pair.guides is not None:
        fixed_maps, shown = pair.guides.fixed, pair.guides.moving
    assert fixed_maps is not None
    assert shown is not None
    (here, seen), (there, seen_there) = landmarks_of(fixed_maps), landmarks_of(shown)
    both = seen & seen_there
    if both.sum() < LEAST_STRUCTURES:
        notices.warn(
            f"W210: start from structures rejected (structures found in both images: {both.sum()}, needed "
            f"{LEAST_STRUCTURES}); the start before it is used"
        )
        return pair
    fixed, moving = here[both].reshape(-1, 3), there[both].reshape(-1, 3)
    affine = pair.initial @ fitted_affine(fixed, _moved(moving, np.linalg.inv(pair.initial)))
    ratio = float(np.linalg.det(affine[:3, :3]))
    if not VOLUME_RATIOS[0] <= ratio <= VOLUME_RATIOS[1]:
        notices.warn(
            f"W210: start from structures rejected (volume ratio {ratio:.3g}, allowed {VOLUME_RATIOS[0]} to "
            f"{VOLUME_RATIOS[1]}); the start before it is used: a structure may have been made out in the wrong place"
        )
        return pair
    field = composed_displacement(fixed, _moved(moving, np.linalg.inv(affine)), pair.fixed.geometry)
    return replace(pair, initial=affine, initial_field=field)


def landmarks_of(maps: StructureMaps) -> tuple[Float64Array, NDArray[np.bool_]]:
    """Landmarks (K, 7, 3) in LPS millimetres of the largest connected part of K structures, and which are there."""
    points = np.zeros((len(maps.classes), 7, 3))
    found = np.zeros(len(maps.classes), dtype=bool)
    for k, share in enumerate(maps.shares):
        parts, n_parts = ndimage.label(share >= SURE)
        if n_parts == 0:
            continue
        sizes = ndimage.sum_labels(share, parts, np.arange(1, n_parts + 1))
        index = np.argwhere(parts == 1 + int(np.argmax(sizes)))
        mass = share[tuple(index.T)].astype(np.float64)
        if mass.sum() < LEAST_VOXELS:
            continue
        places = maps.geometry.points(index.astype(np.float64))
        centre = mass @ places / mass.sum()
        extent = np.sqrt(mass @ (places - centre) ** 2 / mass.sum())
        points[k] = centre + np.concatenate([np.zeros((1, 3)), np.diag(extent), -np.diag(extent)])
        found[k] = True
    return points, found


def fitted_affine(fixed: Float64Array, moving: Float64Array) -> Float64Array:
    """Least squares with a penalty on the distance from the identity; takes points (N, 3) to points (N, 3)."""
    middle = fixed.mean(axis=0)
    size = float(np.sqrt(((fixed - middle) ** 2).sum(axis=1).mean()))
    design = np.column_stack([(fixed - middle) / size, np.ones(len(fixed))])
    penalty = STIFF * 7 * np.diag([1.0, 1.0, 1.0, 0.0])
    change = np.linalg.solve(design.T @ design + penalty, design.T @ (moving - fixed))
    affine = np.eye(4)
    affine[:3, :3] += change[:3].T / size
    affine[:3, 3] = change[3] - change[:3].T @ middle / size
    return affine


def composed_displacement(points: Float64Array, targets: Float64Array, geometry: Geometry) -> Field:
    """Take points (N, 3) towards targets (N, 3) by displacements that follow one another."""
    found = Field.zero(geometry)
    for share in REACHES:
        step = unfolded(smooth_displacement(points, targets - points, geometry, share * geometry.longest_mm), geometry)
        points = warp_points(points, Transform(step))
        found = compose(step, found)
    return found


def smooth_displacement(
    points: Float64Array, vectors: Float64Array, geometry: Geometry, reach: float, noise: float = NOISE
) -> Float32Array:
    """Regression of vectors (N, 3) at points (N, 3) with a Gaussian kernel, at every voxel of a grid: (3, X, Y, Z)."""
    along = (points - geometry.origin_mm) @ geometry.direction  # millimetres along the axes of the grid
    apart = ((along[:, None] - along[None]) ** 2).sum(axis=-1)
    weights = np.linalg.solve(np.exp(-apart / (2 * reach**2)) + noise * np.eye(len(points)), vectors)
    axes = [np.arange(n) * mm for n, mm in zip(geometry.shape, geometry.spacing_mm, strict=True)]
    x, y, z = (np.exp(-((a - along[:, [k]]) ** 2) / (2 * reach**2)) for k, a in enumerate(axes))
    plane = (x[:, :, None] * y[:, None, :]).reshape(len(points), -1)
    found = [((weights[:, [k]] * plane).T @ z).reshape(geometry.shape) for k in range(3)]
    return np.stack(found).astype(np.float32)


def unfolded(field: Float32Array, geometry: Geometry) -> Field:
    """Weaken a displacement (3, X, Y, Z) in millimetres until every voxel keeps a part of its volume."""
    strength = 1.0
    while strength > 0.01:
        weaker = Field(field * np.float32(strength), geometry)
        if float(determinant(weaker).min()) >= LEAST_VOLUME:
            return weaker
        strength *= WEAKER
    return Field.zero(geometry)


def _moved(points: Float64Array, affine: NDArray[Any]) -> Float64Array:
    return np.asarray(points @ affine[:3, :3].T + affine[:3, 3])
