"""Phantoms: a head and neck with a known deformation, and a cohort of patients.

Head and neck
-------------
The anatomy is a set of implicit functions in the space of the moving image. The fixed image is the same
anatomy pulled through a smooth diffeomorphism, so its labels are exact and not resampled. Each organ changes
its contrast between the two images in its own way (kept, scaled, inverted, own texture), as between scanners
or modalities: no single intensity measure is right everywhere.

Cohort
------
Each patient is scanned when treatment is planned and once more later. Organs look like those of a head and neck.
Between the two scans each of them moves, and changes its intensities in a way that only some metrics allow for:

``metal``
    The mandible and its neighbourhood are full of black and white voxels, as of dental metal: absolute differences
    are right, squares and products do not survive.
``agent``
    Light and dark change places in and round the parotids, as by a contrast agent: mutual information is right,
    equal intensities and positive correlation pull tissue over the border.
``coil``
    Gain and offset change smoothly over the brainstem, as with another coil: correlation is right, and the texture
    is too faint for the bins of mutual information.
"""

from collections.abc import Callable, Sequence
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


VOXEL_MM = 4.0
EDGE_MM = 1.5  # width of the border between two tissues there
MOVE_MM = (9.0, 12.0)  # range of the movement of an organ there


class _Textures:
    """Smooth periodic textures, as functions of the place on a grid round the origin."""

    def __init__(self, shape: tuple[int, int, int], sigmas: Sequence[float], rng: np.random.Generator) -> None:
        affine = np.diag([VOXEL_MM, VOXEL_MM, VOXEL_MM, 1.0])
        affine[:3, 3] = -VOXEL_MM * (np.array(shape) - 1) / 2
        self.geometry = Geometry(shape, affine)
        self._textures = [_smooth_noise(shape, sigma, rng, "wrap") for sigma in sigmas]

    def texture(self, number: int, points: Float64Array) -> Float64Array:
        index = points / VOXEL_MM + (np.array(self.geometry.shape).reshape(3, 1, 1, 1) - 1) / 2
        return np.asarray(ndimage.map_coordinates(self._textures[number], index, order=3, mode="grid-wrap"))


def _move(rng: np.random.Generator) -> Float64Array:
    direction = rng.standard_normal(3)
    return np.asarray(rng.uniform(*MOVE_MM) * direction / np.linalg.norm(direction)).reshape(3, 1, 1, 1)


METAL_SHARE = 0.45  # share of voxels that metal makes black or white
METAL_REACH_MM = 24.0
AGENT_REACH_MM = 16.0
COIL_REACH_MM = 32.0
MOVE_REACH_MM = 20.0  # distance over which the movement of an organ fades
BODY = 0.40
BODY_RADII_MM = (84.0, 90.0, 140.0)


@dataclass(frozen=True)
class Organ:
    """One structure: its name, the change of its look, and the metric that is right."""

    name: str
    change: str
    right: str
    centre_mm: tuple[float, float, float]


COHORT = {
    1: Organ("brainstem", "coil", "ncc", (0.0, 38.0, 36.0)),
    2: Organ("left parotid", "agent", "mi", (54.0, 20.0, 8.0)),
    3: Organ("right parotid", "agent", "mi", (-54.0, 20.0, 8.0)),
    4: Organ("mandible", "metal", "sad", (0.0, -38.0, -40.0)),
}
"""By label value; x grows to the left, y to the back, z upwards."""
RADII_MM = {1: (19.0, 18.0, 32.0), 2: (17.0, 22.0, 27.0), 3: (17.0, 22.0, 27.0)}
ARCH_MM, ARCH_DEPTH_MM, ARCH_WIDTH_MM = 42.0, 46.0, 13.0
"""Half the width of the mandible's arch, its depth, and half its thickness."""


def _arch(centre: Float64Array, scale: Float64Array) -> Surface:
    """Half an ellipse, open to the back, of equal thickness and height."""
    x0, y0, z0 = centre
    half, depth, width = ARCH_MM * scale[0], ARCH_DEPTH_MM * scale[1], ARCH_WIDTH_MM * scale[2]
    angle = np.linspace(0.0, np.pi, 25)
    line = np.stack([half * np.cos(angle), depth * (0.5 - np.sin(angle)), np.zeros_like(angle)])

    def distance(points: Float64Array) -> Float64Array:
        q = points - np.reshape((x0, y0, z0), (3, 1, 1, 1))
        square = np.full(points.shape[1:], np.inf)
        for place in line.T:
            square = np.minimum(square, ((q - place.reshape(3, 1, 1, 1)) ** 2).sum(axis=0))
        return np.asarray(np.sqrt(square) - width)

    return distance


class _Patient(_Textures):
    """One anatomy: shapes, textures and movements, as functions of the place in the planning scan."""

    def __init__(self, rng: np.random.Generator, shape: tuple[int, int, int]) -> None:
        super().__init__(shape, (1.6, 1.1, 3.0), rng)
        self.moves = {value: _move(rng) for value in COHORT}
        self.centres = {v: np.array(o.centre_mm) + rng.uniform(-4.0, 4.0, 3) for v, o in COHORT.items()}
        scales = {v: rng.uniform(0.85, 1.1, 3) for v in COHORT}
        self._distances = {v: _ellipsoid(self.centres[v], np.array(r) * scales[v]) for v, r in RADII_MM.items()}
        self._distances |= {v: _arch(self.centres[v], scales[v]) for v in COHORT if v not in RADII_MM}
        self._body = _ellipsoid(np.zeros(3), np.array(BODY_RADII_MM) * rng.uniform(0.95, 1.05, 3))

    def distances(self, points: Float64Array) -> dict[int, Float64Array]:
        """Signed distance to each organ's wavy surface, about, negative inside."""
        waves = 2.5 * self.texture(2, points)
        return {value: distance(points) + waves for value, distance in self._distances.items()}

    def body(self, points: Float64Array) -> Float64Array:
        return _inside(self._body(points) + 2.5 * self.texture(2, points))

    def moved(self, points: Float64Array) -> Float64Array:
        """Take a place in the later scan to that of the same tissue in the planning scan."""
        # Tissue moves as the organs near it do: weights that sum to at most one keep the map one to one.
        depths = {v: np.maximum(distance(points), 0.0) for v, distance in self._distances.items()}
        near = {v: np.exp(-(depth**2) / (2 * MOVE_REACH_MM**2)) for v, depth in depths.items()}
        total = np.maximum(1.0, sum(near.values()))
        return np.asarray(points + sum(near[v] / total * self.moves[v] for v in near))


def cohort_pair(seed: int, shape: tuple[int, int, int] = (48, 48, 48)) -> ImagePair:
    """Make the two scans of one patient, with labels: the later one is fixed, the planning one is moving.

    The seed chooses shapes, textures, movements and noise; the same seed gives the same bits. Voxels have 4 mm.

    Examples
    --------
    >>> cohort_pair(0, (40, 40, 40)).fixed_labels.name(4)
    'mandible'
    """
    rng = np.random.default_rng(seed)
    patient = _Patient(rng, shape)
    planning = _grid(patient.geometry)
    later = patient.moved(planning)
    fixed, moving = (_scan(patient, p, rng, later=p is later) for p in (later, planning))
    return ImagePair(Image.of(*fixed), Image.of(*moving))


def _scan(patient: _Patient, points: Float64Array, rng: np.random.Generator, *, later: bool) -> tuple[Volume, LabelMap]:
    """Look at the tissue at some points."""
    distances = patient.distances(points)
    fine = patient.texture(1, points)
    looks = {"coil": BODY + 0.06 + 0.035 * fine, "agent": BODY + 0.16 * (1 + 0.5 * fine), "metal": 0.75 + 0.03 * fine}
    body = patient.body(points)
    image = body * (BODY + 0.05 * patient.texture(0, points))
    for value, organ in COHORT.items():
        share = _inside(distances[value])
        image = image * (1 - share) + looks[organ.change] * share
    for value, organ in COHORT.items():
        image = _changed(organ.change, image, distances[value], points, rng, later)
    image = image + 0.012 * rng.standard_normal(image.shape)
    names = {value: organ.name for value, organ in COHORT.items()}
    depth = np.stack([np.zeros_like(distances[1]), *(distances[value] for value in COHORT)])
    labels = np.array([0, *COHORT])[depth.argmin(axis=0)].astype(np.uint8)
    return Volume(image.astype(np.float32), patient.geometry), LabelMap(labels, patient.geometry, names)


def _changed(
    change: str,
    image: Float64Array,
    distance: Float64Array,
    points: Float64Array,
    rng: np.random.Generator,
    later: bool,
) -> Float64Array:
    """Change the intensities in and round an organ: metal in both scans, the others in the later one."""
    outside = np.maximum(distance, 0.0)
    if change == "metal":
        hit = rng.random(image.shape) < METAL_SHARE * np.exp(-((outside / METAL_REACH_MM) ** 8))
        return np.where(hit, rng.integers(0, 2, image.shape), image)
    if not later:
        return image
    if change == "agent":
        tissue = np.clip(image / BODY, 0.0, 1.0)  # air stays dark
        return np.asarray(image + 2 * np.exp(-((outside / AGENT_REACH_MM) ** 4)) * tissue * (BODY - image))
    return _coil(image, np.exp(-(np.maximum(distance + 12.0, 0.0) ** 2) / (2 * (COIL_REACH_MM - 8.0) ** 2)), points)


def _coil(image: Float64Array, near: Float64Array, points: Float64Array) -> Float64Array:
    """Change gain and offset where ``near`` is not 0."""
    return np.asarray(image * (1 - 0.35 * near) + 0.28 * near * (1 + 0.3 * np.sin(points[0] / 17.0)))


def _inside(distance: Float64Array) -> Float64Array:
    return np.asarray(1 / (1 + np.exp(np.clip(distance / EDGE_MM, -30.0, 30.0))))
