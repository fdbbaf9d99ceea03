"""Registration of corresponding points: structures' centres and extents as a start, and landmarks that guide.

Between two people an organ may be farther from its place than the levels search. Each structure that both maps show
gives seven landmarks: its centre, and the points one standard deviation from it along each axis. An affine map is
fitted to them by least squares, and what is left becomes a composition of smooth displacements: regressions with
ever narrower Gaussian kernels (kriging), each weakened until it folds nowhere.

Landmarks of a user guide as far as their accuracy allows. What a map leaves between points and their partners is taken
for a smooth displacement, a Gaussian process, that is observed with the accuracy of the points. Its reach and its size
are the likeliest ones: points that agree with their neighbours move the tissue between them, others their own place,
and points no farther off than their accuracy move little. The start is drawn to the points in this way, and the result,
where they move their surroundings only: what lies farther away the images have aligned better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave import notices
from regweave.errors import UsageError
from regweave.registration.initial import VOLUME_RATIOS
from regweave.spatial.warp import beyond, compose, determinant, resample, warp_points
from regweave.types import Field, Float32Array, Float64Array, Geometry, ImagePair, StructureMaps, Transform

SURE = 0.5  # Probability from which on a voxel counts
LEAST_VOXELS = 8.0  # Voxels, weighed by probability, that a structure must have in both maps
LEAST_STRUCTURES = 2  # With fewer the start does not change
STIFF = 0.5  # Weight of the affine map's distance from the start, against the landmarks of one structure
STRUCTURE_REACHES = (0.2, 0.14, 0.1)  # Standard deviations of the kernels, against the longest side of the fixed image
NOISE = 0.1  # Variance of a landmark's error against that of the displacement: more is smoother
LEAST_OF_STRUCTURES = 0.25  # A displacement is weakened until it shrinks no voxel to less than this
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
    for share in STRUCTURE_REACHES:
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
        if float(determinant(weaker).min()) >= LEAST_OF_STRUCTURES:
            return weaker
        strength *= WEAKER
    return Field.zero(geometry)


def _moved(points: Float64Array, affine: NDArray[Any]) -> Float64Array:
    return np.asarray(points @ affine[:3, :3].T + affine[:3, 3])


REACHES = (0.5, 0.35, 0.25, 0.17, 0.12, 0.08, 0.055, 0.04, 0.025)
"""Standard deviations of the kernel that are compared, against the longest side of the grid."""
NEAR, NEAR_VOXELS = 0.015, 2.5  # the one of a result in the same measure, and in voxels at least
SIZES_MM = tuple(np.geomspace(0.05, 50.0, 31).tolist())  # sizes of the displacement that are compared
LEAST_VOLUME = 0.02  # a step is weakened until it shrinks no voxel to less than this
PASSES, CLOSE_MM = 8, 0.02  # steps at most, and the distance to their goals at which points have arrived
EXACT = 1e-4  # variance, against that of the displacement, with which steps miss their goals
LEAST_NOISE = 1e-8  # the same of points; less would not tell two points at one place from rounding
LEAST_POINTS = 6  # with fewer points, no point is compared with what the others predict
MOST_POINTS = 500  # more would take minutes, by the cube of their number
FAR, LEAST_FAR_MM = 4.0, 5.0
"""A point contradicts the others beyond this multiple of the typical distance from predictions, and this distance."""
LOOSE = 0.1  # variance of a point's error against that of the displacement, where points are compared with predictions


@dataclass(frozen=True)
class PointGuides:
    """Corresponding points (P, 3) in LPS millimetres, and the standard deviation of their places along each axis."""

    fixed: Float64Array
    moving: Float64Array
    accuracy_mm: float
    names: Sequence[str]

    @classmethod
    def of(
        cls, fixed: Float64Array, moving: Float64Array, names: Sequence[str], accuracy_mm: float, pair: ImagePair
    ) -> tuple[PointGuides, NDArray[np.bool_]]:
        """Return the points (P, 3) of a pair that guide, and which these are.

        Raises
        ------
        UsageError
            E116 where no point lies inside both images, or more than `MOST_POINTS` do.

        Warns
        -----
        RegweaveWarning
            W220, where points do not guide: they lie outside an image, or contradict the others.
        """
        apart = [beyond(points, image.geometry) for points, image in ((fixed, pair.fixed), (moving, pair.moving))]
        used = ~(apart[0] | apart[1])
        if not used.any():
            message = f"none of the {len(fixed)} landmarks that are to guide lies inside both images"
            raise UsageError(
                "E116", message, "check that both files are in LPS or RAS as they state, and not exchanged"
            )
        if used.sum() > MOST_POINTS:
            message = f"{used.sum()} landmarks are to guide, at most {MOST_POINTS} can"
            raise UsageError(
                "E116", message, "choose some, by a column guide of a .csv file: 1 for those, 0 for others"
            )
        reasons = dict.fromkeys(np.flatnonzero(~used).tolist(), "outside an image")
        at = np.flatnonzero(used)
        field = pair.initial_field or Field.zero(pair.fixed.geometry)
        back = np.linalg.inv(pair.initial)
        here = warp_points(fixed[at], Transform(field))
        there = moving[at] @ back[:3, :3].T + back[:3, 3]
        for k, off in contradicting(here, there - here, accuracy_mm, reaches_mm(field)).items():
            used[at[k]] = False
            reasons[int(at[k])] = f"{off:.1f} mm from what the others predict"
        if reasons:
            listed = ", ".join(f"{names[n]} ({reason})" for n, reason in sorted(reasons.items()))
            notices.warn(f"W220: landmarks that do not guide: {listed}; correct them, or leave them out")
        return cls(fixed[used], moving[used], accuracy_mm, [names[n] for n in np.flatnonzero(used).tolist()]), used

    def draw(self, transform: Transform) -> Transform:
        """Return a map from fixed to moving points that takes the points, and what is near, to their partners.

        Warns
        -----
        RegweaveWarning
            W227, where points are much farther from their partners than most.
        """
        left = np.linalg.norm(warp_points(self.fixed, transform) - self.moving, axis=1)
        far = left > max(FAR * float(np.median(left)), LEAST_FAR_MM, 3 * self.accuracy_mm)
        if far.any() and len(left) >= LEAST_POINTS:
            listed = ", ".join(f"{self.names[n]} ({left[n]:.1f} mm)" for n in np.flatnonzero(far).tolist())
            notices.warn(f"W227: landmarks that guide are far from where the images lead: {listed}; look at them")
        field = transform.interpolated
        near = max(NEAR * field.geometry.longest_mm, NEAR_VOXELS * float(field.geometry.spacing_mm.max()))
        field = self._drawn(field, transform.affine, [near])
        if transform.knots is None:
            return replace(transform, field=field)
        return replace(transform, field=resample(field, transform.field.geometry), knots=field)

    def start(self, pair: ImagePair) -> ImagePair:
        """Return a pair whose start is drawn to the points."""
        field = pair.initial_field or Field.zero(pair.fixed.geometry)
        return replace(pair, initial_field=self._drawn(field, pair.initial, reaches_mm(field)))

    def _drawn(self, field: Field, affine: Float64Array, reaches: Sequence[float]) -> Field:
        back = np.linalg.inv(affine)
        return drawn(field, self.fixed, self.moving @ back[:3, :3].T + back[:3, 3], self.accuracy_mm, reaches)


def contradicting(
    points: Float64Array, vectors: Float64Array, accuracy_mm: float, reaches: Sequence[float]
) -> dict[int, float]:
    """Distances of vectors (P, 3) from what the others predict, by the index of the point, where they contradict them.

    The worst point is left out, then the rest is compared again.
    """
    kept, found = list(range(len(points))), {}
    while len(kept) >= LEAST_POINTS:
        off, doubt = _predicted_errors(points[kept], vectors[kept], reaches)
        worst = int((off / doubt).argmax())
        least = FAR * float(np.median(off / doubt)) * doubt[worst]
        if off[worst] <= max(least, LEAST_FAR_MM, 3 * accuracy_mm):
            break
        found[kept.pop(worst)] = float(off[worst])
    return found


def _predicted_errors(
    points: Float64Array, vectors: Float64Array, reaches: Sequence[float]
) -> tuple[Float64Array, Float64Array]:
    """Distances of vectors from the regression of the others, and the relative doubt of that, where few are near.

    The reach is that of the smallest median distance.
    """
    centred, apart, best = vectors - np.median(vectors, axis=0), _apart(points), (np.zeros(0), np.zeros(0))
    for reach in reaches:
        inverse = np.linalg.inv(np.exp(-apart / (2 * reach**2)) + LOOSE * np.eye(len(points)))
        certainty = inverse.diagonal()
        off = np.linalg.norm(inverse @ centred / certainty[:, None], axis=1)
        if not len(best[0]) or np.median(off) < np.median(best[0]):
            best = off, 1 / np.sqrt(certainty)
    return best


def drawn(
    found: Field, points: Float64Array, targets: Float64Array, accuracy_mm: float, reaches: Sequence[float]
) -> Field:
    """Return a field that takes points (P, 3) nearer to targets (P, 3), without folds."""
    here = warp_points(points, Transform(found))
    reach, size = likeliest(here, targets - here, accuracy_mm, reaches)
    kernel = np.exp(-_apart(here) / (2 * reach**2))
    noise = max((accuracy_mm / size) ** 2, LEAST_NOISE)
    share = np.linalg.solve(kernel + noise * np.eye(len(here)), kernel)
    goals = here + share.T @ (targets - here)
    for _ in range(PASSES):
        if np.linalg.norm(goals - here, axis=1).max() < CLOSE_MM:
            break
        found = _followed(found, smooth_displacement(here, goals - here, found.geometry, reach, EXACT))
        here = warp_points(points, Transform(found))
    return found


def reaches_mm(field: Field) -> list[float]:
    """Reaches that are compared at the start."""
    return [share * field.geometry.longest_mm for share in REACHES]


def likeliest(
    points: Float64Array, vectors: Float64Array, accuracy_mm: float, reaches: Sequence[float]
) -> tuple[float, float]:
    """Reach and size, in mm, of the smooth displacement that makes vectors (P, 3) at points (P, 3) likeliest."""
    apart, best = _apart(points), (np.inf, 0.0, 0.0)
    for reach in reaches:
        values, axes = np.linalg.eigh(np.exp(-apart / (2 * reach**2)))
        power = ((axes.T @ vectors) ** 2).sum(axis=1)
        for size in SIZES_MM:
            variance = size**2 * values.clip(0) + accuracy_mm**2
            best = min(best, (float((power / variance + 3 * np.log(variance)).sum()), reach, size))
    return best[1:]


def _apart(points: Float64Array) -> Float64Array:
    return np.asarray(((points[:, None] - points[None]) ** 2).sum(axis=-1))


def _followed(found: Field, step: Float32Array) -> Field:
    """Let a step follow a field, weakened until neither folds."""
    least = min(LEAST_VOLUME, float(determinant(found).min()))
    alone, strength = unfolded(step, found.geometry), 1.0
    while strength > 0.01:
        out = compose(Field(alone.data * np.float32(strength), found.geometry), found)
        if float(determinant(out).min()) >= least:
            return out
        strength *= 0.5
    return found
