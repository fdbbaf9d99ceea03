"""Patients of the frozen results: a head and neck scanned twice, in which each organ changes its intensities.

``metal``
    The mandible and its neighbourhood are full of black and white voxels: absolute differences are right.
``agent``
    Light and dark change places in and round the parotids: mutual information is right.
``coil``
    Gain and offset change smoothly over the brainstem: correlation is right.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from phantoms import Surface, _ellipsoid, _grid, _smooth_noise
from regweave.types import Float64Array, Geometry, Image, ImagePair, LabelMap, Volume

VOXEL_MM = 4.0
EDGE_MM = 1.5
"""Width of the border between two tissues there."""
MOVE_MM = (9.0, 12.0)
"""Range of the movement of an organ there."""


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


METAL_SHARE = 0.45
"""Share of voxels that metal makes black or white."""
METAL_REACH_MM = 24.0
AGENT_REACH_MM = 16.0
COIL_REACH_MM = 32.0
MOVE_REACH_MM = 20.0
"""Distance over which the movement of an organ fades."""
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
