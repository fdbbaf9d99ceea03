"""Phantom of a head and neck with a known deformation.

The anatomy is a set of implicit functions in the space of the moving image. The fixed image is the same
anatomy pulled through a smooth diffeomorphism, so its labels are exact and not resampled. Each organ changes
its contrast between the two images in a different way (kept, scaled, inverted, other texture), as between scanners
or modalities: no single intensity measure fits everywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import ndimage

from regweave.types import Field, Float64Array, Geometry, Image, ImagePair, LabelArray, LabelMap, Volume

MIN_JACOBIAN = 0.3  # smallest volume change that the true deformation may have

Surface = Callable[[Float64Array], Float64Array]
Look = Callable[["_Tissue", Float64Array], Float64Array]


@dataclass(frozen=True)
class PhantomPair:
    """Two images with labels; ``true_field`` takes a fixed point to the moving point of the same tissue."""

    pair: ImagePair
    true_field: Field


@dataclass(frozen=True)
class _Tissue:
    """Look of one structure: its mean in each image, and its texture."""

    moving: float
    fixed: float
    texture: float = 30.0
    gain: float = 1.0  # of the shared texture in the fixed image
    own: float = 0.0  # amplitude of a texture that only the fixed image has


_AIR = _Tissue(0.0, 0.0, texture=0.0)
_BODY = _Tissue(350.0, 390.0, texture=40.0, gain=1.2)
_ORGANS: dict[int, tuple[str, _Tissue]] = {
    1: ("brainstem", _Tissue(450.0, 430.0, gain=-1.0)),  # inverted texture, fainter edge
    2: ("cord", _Tissue(540.0, 640.0, gain=1.5)),  # gain and offset
    3: ("mandible", _Tissue(900.0, 900.0)),  # kept
    4: ("left parotid", _Tissue(230.0, 250.0, own=70.0)),  # kept mean, other texture
    5: ("right parotid", _Tissue(260.0, 300.0, gain=-1.0, own=20.0)),  # inverted texture, fainter edge, own texture
    6: ("airway", _Tissue(40.0, 40.0, texture=5.0)),  # kept
}


def _ellipsoid(centre: ArrayLike, radii: ArrayLike) -> Surface:
    c, r = (np.reshape(v, (3, 1, 1, 1)) for v in (centre, radii))
    scale = float(np.min(r))
    return lambda q: (np.sqrt((((q - c) / r) ** 2).sum(0)) - 1.0) * scale


def _tube(y: float, slope: float, z_range: tuple[float, float], radius: float) -> Surface:
    """Tube along z in the mid-plane, at depth ``y + slope · z²``."""
    low, high = z_range

    def surface(q: Float64Array) -> Float64Array:
        depth = y + slope * q[2] ** 2
        beyond = np.maximum(np.maximum(low - q[2], q[2] - high), 0.0)
        return np.asarray(np.sqrt(q[0] ** 2 + (q[1] - depth) ** 2 + beyond**2) - radius)

    return surface


def _horseshoe(q: Float64Array) -> Float64Array:
    """Arch open towards the back, with ends that rise towards the ears."""
    arc, thickness, back = 0.46, 0.085, 0.05
    height = -0.35 + 0.55 * np.maximum(q[1] + 0.3, 0.0)
    rho = np.hypot(q[0], np.minimum(q[1] + 0.12, back + 0.12))
    beyond = np.maximum(q[1] - back, 0.0)
    return np.asarray(np.sqrt((rho - arc) ** 2 + ((q[2] - height) / 1.4) ** 2 + beyond**2) - thickness)


_SURFACES = {
    1: _ellipsoid((0.0, 0.22, 0.50), (0.15, 0.15, 0.26)),
    2: _tube(0.36, -0.12, (-0.80, 0.10), 0.085),
    3: _horseshoe,
    4: _ellipsoid((0.57, 0.20, 0.02), (0.13, 0.19, 0.26)),
    5: _ellipsoid((-0.57, 0.20, 0.02), (0.13, 0.19, 0.26)),
    6: _tube(-0.02, 0.12, (-0.85, 0.15), 0.11),
}
"""Implicit function of each organ, negative inside; x to the left, y to the back, z up, in [-1, 1]."""


class _Anatomy:
    """The moving space: which tissue is at a point, and its texture there."""

    def __init__(self, half_mm: Float64Array, geometry: Geometry, rng: np.random.Generator) -> None:
        self._half_mm = half_mm.reshape(3, 1, 1, 1)
        self._waves = rng.normal(0.0, 4.0, (6, 3)), rng.uniform(0, 2 * np.pi, 6), rng.normal(0, 0.012, (6, 3))
        self._geometry = geometry
        self._texture = _smooth_noise(geometry.shape, 1.5, rng)
        self._softness = float(np.min(geometry.spacing_mm / half_mm)) / 3.0

    def _wobble(self, points: Float64Array) -> Float64Array:
        """Take points to unit coordinates with a smooth random shift, which makes surfaces irregular."""
        q = points / self._half_mm
        for k, phase, amplitude in zip(*self._waves, strict=True):
            q = q + amplitude.reshape(3, 1, 1, 1) * np.sin(np.tensordot(k, points / self._half_mm, 1) + phase)
        return np.asarray(q)

    def labels(self, points: Float64Array) -> LabelArray:
        """Organ at each point (3, ...), 0 where there is none."""
        q = self._wobble(points)
        depth = np.stack([surface(q) for surface in _SURFACES.values()])
        return np.where(depth.min(0) < 0, depth.argmin(0) + 1, 0).astype(np.uint8)

    def image(self, points: Float64Array, look: Look) -> Float64Array:
        """Intensity at each point (3, ...), tissues blended over about one voxel at their borders."""
        q = self._wobble(points)
        origin_mm, spacing_mm = (v.reshape(3, 1, 1, 1) for v in (self._geometry.origin_mm, self._geometry.spacing_mm))
        texture = ndimage.map_coordinates(self._texture, (points - origin_mm) / spacing_mm, order=1, mode="nearest")
        image = look(_AIR, texture)
        body = _ellipsoid((0.0, 0.0, 0.0), (0.80, 0.88, 1.05))
        for surface, tissue in [(body, _BODY), *((s, _ORGANS[c][1]) for c, s in _SURFACES.items())]:
            share = 0.5 - 0.5 * np.tanh(surface(q) / self._softness)
            image = image + share * (look(tissue, texture) - image)
        return image


def _smooth_noise(
    shape: tuple[int, int, int], sigma: float, rng: np.random.Generator, mode: str = "nearest"
) -> Float64Array:
    noise = ndimage.gaussian_filter(rng.standard_normal(shape), sigma, mode=mode)
    return np.asarray(noise / noise.std())


def _grid(geometry: Geometry) -> Float64Array:
    """LPS millimetres of each voxel, shape (3, X, Y, Z)."""
    index = np.stack(np.meshgrid(*(np.arange(n) for n in geometry.shape), indexing="ij"), axis=-1)
    return np.moveaxis(geometry.points(index.astype(np.float64)), -1, 0)


def _diffeomorphism(
    geometry: Geometry, half_mm: Float64Array, max_displacement_mm: float, rng: np.random.Generator
) -> Float64Array:
    """Sum of Gaussian pushes, widened until no volume shrinks below ``MIN_JACOBIAN``; shape (3, X, Y, Z)."""
    lattice = np.stack(np.meshgrid(*[(-0.6, 0.0, 0.6)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    centres = (lattice + rng.uniform(-0.2, 0.2, lattice.shape)) * half_mm
    pushes = rng.standard_normal(lattice.shape)
    pushes /= np.linalg.norm(pushes, axis=1, keepdims=True)
    width_mm = 0.33 * float(half_mm.min())
    points = _grid(geometry)
    while True:
        u = np.zeros_like(points)
        for centre, push in zip(centres, pushes, strict=True):
            distance2 = ((points - centre.reshape(3, 1, 1, 1)) ** 2).sum(0)
            u += push.reshape(3, 1, 1, 1) * np.exp(-distance2 / (2 * width_mm**2))
        u *= max_displacement_mm / np.sqrt((u**2).sum(0)).max()
        gradient = np.stack([np.stack(np.gradient(component, *geometry.spacing_mm)) for component in u])
        if np.linalg.det(np.moveaxis(gradient, (0, 1), (-2, -1)) + np.eye(3)).min() > MIN_JACOBIAN:
            return u
        width_mm *= 1.15


def _volume(image: Float64Array, geometry: Geometry, noise: float, rng: np.random.Generator) -> Volume:
    data = np.maximum(image + noise * rng.standard_normal(geometry.shape), 0.0)
    return Volume(np.ascontiguousarray(data, dtype=np.float32), geometry)


def make_phantom(
    seed: int = 0,
    shape: tuple[int, int, int] = (64, 64, 64),
    spacing_mm: tuple[float, float, float] = (3.0, 3.0, 3.0),
    max_displacement_mm: float = 15.0,
) -> PhantomPair:
    """Make a pair of images with six organs and a known deformation.

    The seed chooses shapes, textures, deformation and noise; the same seed gives the same bits. The anatomy fills
    every field of view.

    Examples
    --------
    >>> phantom = make_phantom(shape=(24, 24, 24), spacing_mm=(8.0, 8.0, 8.0))
    >>> phantom.pair.fixed.data.shape, phantom.pair.moving_labels.name(3)
    ((24, 24, 24), 'mandible')
    """
    rng = np.random.default_rng(seed)
    spacing = np.asarray(spacing_mm, dtype=np.float64)
    half_mm = (np.asarray(shape) - 1) * spacing / 2
    # The moving grid is shifted, so that a mix-up of indices and millimetres shows.
    fixed, moving = (
        Geometry(shape, np.vstack([np.column_stack([np.diag(spacing), origin_mm]), np.eye(4)[3]]))
        for origin_mm in (-half_mm, -half_mm + 0.5 * spacing)
    )

    anatomy = _Anatomy(half_mm, moving, rng)
    u = _diffeomorphism(fixed, half_mm, max_displacement_mm, rng).astype(np.float32)
    fixed_points, moving_points = _grid(fixed) + u, _grid(moving)

    own = _smooth_noise(shape, 1.5, rng)
    bias = 1.0 + 0.05 * _smooth_noise(shape, 0.2 * min(shape), rng)
    fixed_image = bias * anatomy.image(fixed_points, lambda t, x: t.fixed + t.gain * t.texture * x + t.own * own)
    moving_image = anatomy.image(moving_points, lambda t, x: t.moving + t.texture * x)

    names = {value: name for value, (name, _) in _ORGANS.items()}
    pair = ImagePair(
        Image.of(_volume(bias * fixed_image, fixed, 12.0, rng), LabelMap(anatomy.labels(fixed_points), fixed, names)),
        Image.of(_volume(moving_image, moving, 12.0, rng), LabelMap(anatomy.labels(moving_points), moving, names)),
    )
    return PhantomPair(pair, Field(np.ascontiguousarray(u), fixed))
