"""Initial rigid or affine alignment, from the fixed to the moving image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from regweave import _core, notices
from regweave.errors import UsageError
from regweave.io.modality import with_modality
from regweave.spatial.voxels import apply_window, default_window, extrapolated, inside, shrink, shrink_geometry
from regweave.spatial.warp import voxel_matrix
from regweave.types import Float32Array, Float64Array, Image, IntArray, Volume

# Voxels along the longest axis of the copies that the affine fit looks at, one after the other.
RESOLUTIONS = (16, 32, 64)
ALONE = (*RESOLUTIONS, 128)  # The same where the fit is the whole result
VOLUME_RATIOS = (0.3, 3.0)
CLEAR_GAIN = 0.98  # A rigid fit must cost less than this share of what the headers cost, or these stay
MOST_TURNED_DEG = 40.0
STRUCTURES = "structures"


def initial_affine(fixed: Volume, moving: Volume, method: str, *, alone: bool = False) -> Float64Array:
    """Find an affine map (4, 4) from fixed to moving LPS millimetres to start a registration from.

    Of an `Image` with a mask, the inside counts. ``none`` uses the positions in the headers; ``moments`` shifts
    the centre of one foreground onto the other, for images whose origins mean nothing; ``rigid`` fits rotation and
    shift, for two scans of one person, and bone counts more where both are CT; ``affine`` fits twelve parameters, for
    images of two people. ``structures`` is the same here: `regweave.registration.landmarks` follows. Where the
    fit is ``alone`` the whole result, it goes on to finer copies, and a rigid one need not clearly gain on the headers.
    """
    if method not in METHODS:
        raise UsageError("E191", f"unknown initial alignment {method!r}", f"available: {', '.join(sorted(METHODS))}")
    return METHODS[method](fixed, moving, alone)


def _affine(fixed: Volume, moving: Volume, alone: bool) -> Float64Array:
    windowed = _windowed(fixed, moving)
    start = affine = _centre_on_centre(*windowed)
    for resolution in ALONE if alone else RESOLUTIONS:
        step_mm = fixed.geometry.longest_mm / resolution
        level = PyramidLevel(*(coarser(image, step_mm) for image in windowed))
        affine = level.fit(affine)
    ratio = float(np.linalg.det(affine[:3, :3]))
    before, after = level.cost(start), level.cost(affine)
    if VOLUME_RATIOS[0] <= ratio <= VOLUME_RATIOS[1] and after <= before < np.inf:
        return affine
    notices.warn(
        f"W210: affine start rejected (volume ratio {ratio:.3g}, allowed {VOLUME_RATIOS[0]} to "
        f"{VOLUME_RATIOS[1]}; cost {before:.4g} before, {after:.4g} after); centres of mass are used "
        "instead: check that the images show the same body part"
    )
    return start


def _rigid(fixed: Volume, moving: Volume, alone: bool) -> Float64Array:
    """Fit from the headers and from the centres; the headers stay where a fit does not clearly gain on them."""
    windowed = _windowed(fixed, moving)
    bone = all(with_modality(image).modality == "ct" for image in (fixed, moving))
    steps_mm = [fixed.geometry.longest_mm / resolution for resolution in (ALONE if alone else RESOLUTIONS)]
    pyramid = [PyramidLevel(*(coarser(image, step, bone=bone) for image in windowed)) for step in steps_mm]
    headers, centres = np.eye(4), _centre_on_centre(*windowed)
    fits = []
    for start in (headers, centres):
        affine = start
        for level in pyramid:
            affine = level.fit(affine, rigid=True)
        fits.append((pyramid[-1].cost(affine), affine))
    cost, best = min(fits, key=lambda fit: fit[0])
    before = pyramid[-1].cost(headers)
    turned = float(np.degrees(np.arccos(np.clip((np.trace(best[:3, :3]) - 1.0) / 2.0, -1.0, 1.0))))
    if cost <= (1.0 if alone else CLEAR_GAIN) * before and turned <= MOST_TURNED_DEG:
        return best
    overlaps = bool(np.isfinite(before))
    if turned > MOST_TURNED_DEG or not overlaps:
        notices.warn(
            f"W216: rigid start rejected (cost {before:.4g} with the headers, {cost:.4g} fitted, turned by "
            f"{turned:.0f} degrees, allowed {MOST_TURNED_DEG:g}); {'headers' if overlaps else 'centres of mass'} are "
            "used instead: check that the images show the same body part in the same position"
        )
    return headers if overlaps else centres


METHODS: dict[str, Callable[[Volume, Volume, bool], Float64Array]] = {
    "none": lambda *_: np.eye(4),
    "moments": lambda fixed, moving, _: _centre_on_centre(*_windowed(fixed, moving)),
    "rigid": _rigid,
    "affine": _affine,
    STRUCTURES: _affine,
}


def _windowed(*volumes: Volume) -> list[Image]:
    """Map the window of the own modality of each image to [0, 1]."""
    made = []
    for volume in map(with_modality, volumes):
        assert volume.modality is not None
        found, mask = inside(volume), volume.mask if isinstance(volume, Image) else None
        low, high = default_window(volume.data if found is None else volume.data[found], volume.modality)
        flat = high <= low
        data = np.zeros_like(volume.data) if flat else apply_window(extrapolated(volume), (low, high))
        made.append(Image(data, volume.geometry, mask=mask))
    return made


def _centre_on_centre(fixed: Volume, moving: Volume) -> Float64Array:
    affine = np.eye(4)
    affine[:3, 3] = _centre_of_mass(moving) - _centre_of_mass(fixed)
    return affine


def _centre_of_mass(volume: Volume) -> Float64Array:
    """LPS centre of the intensities above the mean, inside the mask; the middle of the grid where there are none."""
    found, level = inside(volume), float(volume.data.mean())
    data = volume.data if found is None else np.where(found, volume.data, np.float32(level))
    along = _core.profiles(np.ascontiguousarray(data, dtype=np.float32), level)
    total = along[0].sum()
    if total == 0.0:
        return volume.geometry.points((np.array(volume.geometry.shape) - 1.0) / 2.0)
    return volume.geometry.points(np.array([(m * np.arange(m.size)).sum() / total for m in along]))


N_BINS = 32
# Scale of the Cauchy function, of an intensity range of 1: beyond it a residual loses weight.
OUTLIER = 0.1
LEAST_OVERLAP = 0.3
# Bone in the window of the body, and how many times more than soft tissue, which deforms, it counts in a rigid fit.
BONE = 0.8
BONE_WEIGHT = 5.0
TINY = 1e-9
SMALL = 1e-4  # Step of the differences that give the change of a map with a motion


Match = tuple[float, Float64Array, Float64Array, Float64Array]
"""Cost of a map, its matrix (3, 4) between voxels, residuals and weights of the voxels, (V,)."""


@dataclass(frozen=True, repr=False)
class Coarse(Volume):
    """Shrunken image with the share of each voxel inside its mask, and how much more than others it counts."""

    weight: Float32Array | None = None
    emphasis: Float32Array | None = None


class PyramidLevel:
    """One resolution of a rigid or affine fit by Gauss–Newton steps on a robust correlation ratio.

    A table predicts the moving image from the fixed one: one moving intensity for each of 32 fixed ones. The residual
    of the table is the cost. No relation between the two scales is assumed, so scanners and modalities may differ. Maps
    are (3, 4) and take centred fixed voxels in [-1, 1] to moving voxels; intensities are in [0, 1].

    Roche et al. (1998), "The correlation ratio as a new similarity measure for multimodal image registration"; (2000),
    "Generalized correlation ratio for rigid registration of 3D ultrasound with MR".
    """

    def __init__(self, fixed: Coarse, moving: Coarse) -> None:
        self.fixed, self.moving = fixed, moving
        shape = fixed.geometry.shape
        self.still = np.zeros((3, *shape), dtype=np.float32)
        self.bins: IntArray = np.minimum(fixed.data * N_BINS, N_BINS - 1).astype(np.int32).ravel()
        self.foreground = (fixed.data > fixed.data.mean()).ravel()
        if fixed.weight is not None:
            self.foreground &= fixed.weight.ravel() >= 0.5
        flat = np.zeros_like(moving.data)  # along an axis of one voxel
        along = (np.gradient(moving.data, axis=a) if n > 1 else flat for a, n in enumerate(moving.geometry.shape))
        self.gradient = np.stack(tuple(along)).astype(np.float32, copy=False)
        centre, scale = (np.array(shape) - 1.0) / 2.0, max(shape) / 2.0
        self.to_centred = np.diag([1.0 / scale] * 3 + [1.0])
        self.to_centred[:3, 3] = -centre / scale

    def fit(self, affine: Float64Array, max_iter: int = 40, *, rigid: bool = False) -> Float64Array:
        """Improve an LPS affine map; the result never costs more than the start at this level.

        With ``rigid`` the steps are rotations and shifts, so that a rigid start stays rigid.
        """
        theta = self.to_theta(affine)
        match = self.match(theta)
        damping = 1e-3
        for _ in range(max_iter):
            if not np.isfinite(match[0]):
                break
            hessian, slope = self.normal_equations(match)
            if rigid:
                motions = self.motions(affine)
                hessian, slope = motions.T @ hessian @ motions, motions.T @ slope
            found = None
            while found is None and damping < 1e3:
                floor = TINY * np.trace(hessian) + TINY  # holds still what no voxel determines
                damped = hessian + np.diag(damping * np.diag(hessian) + floor)
                step = np.asarray(-np.linalg.solve(damped, slope), dtype=np.float64)
                stepped = self.to_theta(self.moved(affine, step)) if rigid else theta + step.reshape(3, 4)
                trial = self.match(stepped)
                found = trial if trial[0] < match[0] else None
                damping *= 0.1 if found else 10.0
            if found is None:
                break
            gain = match[0] - found[0]
            affine = self.moved(affine, step) if rigid else affine
            theta, match, damping = stepped, found, max(damping, 1e-6)
            if gain < 1e-5 * match[0]:
                break
        if rigid:
            return affine
        in_voxels = np.vstack([theta @ self.to_centred, [0.0, 0.0, 0.0, 1.0]])
        return np.asarray(self.moving.geometry.affine @ in_voxels @ np.linalg.inv(self.fixed.geometry.affine))

    def motions(self, affine: Float64Array) -> Float64Array:
        """Change of the centred map (12, 6) with three rotations about the middle of the image and three shifts."""
        here = self.to_theta(affine)
        steps = SMALL * np.eye(6)
        return np.stack([(self.to_theta(self.moved(affine, s)) - here).ravel() / SMALL for s in steps], axis=1)

    def moved(self, affine: Float64Array, motion: Float64Array) -> Float64Array:
        """Return a map that is turned by ``motion[:3]`` about the image of the middle, then shifted by a length.

        Rotations are in radians, shifts in units of half the longest side: so both move the border alike.
        """
        shape = np.array(self.fixed.geometry.shape)
        half_mm = float((shape * self.fixed.geometry.spacing_mm).max()) / 2.0
        middle = self.fixed.geometry.points((shape - 1.0) / 2.0)
        centre = affine[:3, :3] @ middle + affine[:3, 3]
        turned = np.eye(4)
        turned[:3, :3] = _rotation(motion[:3])
        turned[:3, 3] = centre - turned[:3, :3] @ centre + motion[3:] * half_mm
        return np.asarray(turned @ affine)

    def cost(self, affine: Float64Array) -> float:
        """Share of the moving image that an LPS affine map leaves unexplained; infinite without overlap."""
        return self.match(self.to_theta(affine))[0]

    def to_theta(self, affine: Float64Array) -> Float64Array:
        """Return an LPS map as (3, 4) between centred fixed voxels and moving voxels."""
        in_voxels = voxel_matrix(self.fixed.geometry, self.moving.geometry, affine)
        return np.asarray(in_voxels @ np.linalg.inv(self.to_centred))

    def match(self, theta: Float64Array) -> Match:
        """Warp the moving image and compare it with what the fixed one predicts."""
        matrix = np.ascontiguousarray(theta @ self.to_centred)
        valid = _core.warp_valid(self.moving.geometry.shape, matrix, self.still).ravel().astype(np.float64)
        if self.moving.weight is not None:
            valid *= _core.warp(self.moving.weight, matrix, self.still, 0.0, True).ravel()
        if self.fixed.weight is not None:
            valid *= self.fixed.weight.ravel()
        if valid[self.foreground].sum() < LEAST_OVERLAP * self.foreground.sum():
            return np.inf, matrix, valid, valid
        if self.fixed.emphasis is not None:
            valid *= self.fixed.emphasis.ravel()
        warped = _core.warp(self.moving.data, matrix, self.still, 0.0, True).ravel().astype(np.float64)
        residual = warped - self.table(warped, valid)[self.bins]
        weight = valid / (1.0 + (residual / OUTLIER) ** 2)
        residual = warped - self.table(warped, weight)[self.bins]
        spread = warped - (warped * valid).sum() / valid.sum()
        cost = _cauchy(residual, valid) / max(_cauchy(spread, valid), TINY)
        return cost, matrix, residual, weight

    def table(self, values: Float64Array, weight: Float64Array) -> Float64Array:
        """Weighted mean of the values for each fixed intensity, shape (32,)."""
        total = np.bincount(self.bins, weight, N_BINS)
        return np.asarray(np.bincount(self.bins, values * weight, N_BINS) / np.maximum(total, TINY))

    def normal_equations(self, match: Match) -> tuple[Float64Array, Float64Array]:
        """Return the Gauss–Newton matrix (12, 12) and right-hand side (12,); the table follows the map."""
        shape = self.fixed.geometry.shape
        _, matrix, residual, weight = match
        bins, weight, residual = self.bins.reshape(shape), weight.reshape(shape), residual.reshape(shape)
        return _core.normal_equations(self.gradient, matrix, bins, weight, residual, N_BINS)


def coarser(volume: Volume, step_mm: float, *, bone: bool = False) -> Coarse:
    """Average blocks of voxels so that they measure about ``step_mm``; with ``bone`` the bright ones count more."""
    x, y, z = (max(1, round(step_mm / spacing)) for spacing in volume.geometry.spacing_mm.tolist())
    factors = (x, y, z)
    found = inside(volume)
    weight = None if found is None else shrink(found.astype(np.float32), factors)
    bright = None if not bone else 1.0 + (BONE_WEIGHT - 1.0) * shrink((volume.data >= BONE).astype(np.float32), factors)
    return Coarse(
        shrink(volume.data, factors), shrink_geometry(volume.geometry, factors), weight=weight, emphasis=bright
    )


def _cauchy(residual: Float64Array, weight: Float64Array) -> float:
    return float((np.log1p((residual / OUTLIER) ** 2) * weight).sum())


def _rotation(vector: Float64Array) -> Float64Array:
    """Rotation matrix about a vector by its length in radians (Rodrigues)."""
    angle = float(np.linalg.norm(vector))
    if angle == 0.0:
        return np.eye(3)
    x, y, z = vector / angle
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    return np.asarray(np.eye(3) + np.sin(angle) * cross + (1.0 - np.cos(angle)) * (cross @ cross))
