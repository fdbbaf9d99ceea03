"""Generated images to try the package with: CT of a head and neck, CT of a chest, T1 MR of a brain.

They need no data and no download. Each anatomy is a list of layers, painted one over the other. A layer is the signed
distance to a surface, negative inside, as a function of the place in LPS mm. Fixed image and labels are the same layers
at deformed places, so nothing is resampled. The seed chooses sizes, folds, vessels, deformation and noise; the same
seed gives the same bits.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import ndimage
from scipy.spatial import cKDTree

from regweave.io import write_image, write_labels
from regweave.jobs.table import FILES, PairFiles, write_pairs
from regweave.types import Float64Array, Geometry, Image, ImagePair, LabelMap, Volume

SHIFT_MM = {"head and neck": 20.0, "chest": 26.0, "brain": 12.0}  # largest displacement
NOISE = {"head and neck": 12.0, "chest": 14.0, "brain": 12.0}
FIELD_MM = {"head and neck": (200.0, 230.0, 250.0), "chest": (340.0, 250.0, 280.0), "brain": (160.0, 190.0, 150.0)}
STRUCTURES = {
    "head and neck": ("brain", "brainstem", "spinal cord", "left parotid", "right parotid", "mandible", "airway"),
    "chest": ("left lung", "right lung", "heart", "aorta", "liver", "spinal cord"),
    "brain": ("ventricles", "grey matter", "white matter", "thalamus", "cerebellum"),
}
"""Names of the labels 1, 2, … of each anatomy."""
LEAST_JACOBIAN = 0.35


class Layer(NamedTuple):
    """A tissue inside a surface; ``label`` is 0 for none, and None where the label below stays."""

    distance: Float64Array
    value: float
    grain: float = 0.0
    label: int | None = 0


Anatomy = Callable[[Float64Array], Iterator[Layer]]


def _ball(q: Float64Array, centre: ArrayLike, radii: ArrayLike) -> Float64Array:
    c, r = (np.reshape(v, (3, 1, 1, 1)) for v in (centre, radii))
    return np.asarray((np.sqrt((((q - c) / r) ** 2).sum(0)) - 1.0) * float(np.min(r)))


def _rod(q: Float64Array, line: ArrayLike, radius: float | Float64Array) -> Float64Array:
    """Distance to a line of points in mm, whose radius may change along it."""
    points = np.asarray(line, dtype=np.float64)
    radii = np.broadcast_to(np.asarray(radius, dtype=np.float64), len(points))
    steps = np.maximum(1, np.ceil(np.linalg.norm(np.diff(points, axis=0), axis=1) / 2.0).astype(int))
    at = np.concatenate([i + np.arange(n) / n for i, n in enumerate(steps)] + [np.array([len(points) - 1.0])])
    index = np.arange(len(points))
    dense = np.stack([np.interp(at, index, points[:, k]) for k in range(3)], axis=1)
    return _beads(q, dense, np.interp(at, index, radii))


def _beads(q: Float64Array, centres: Float64Array, radii: Float64Array, reach_mm: float = 14.0) -> Float64Array:
    """Distance to balls; beyond ``reach_mm`` it is that."""
    far = reach_mm + float(radii.max())
    distance, nearest = cKDTree(centres).query(q.reshape(3, -1).T, distance_upper_bound=far)
    radius = np.append(radii, 0.0)[nearest]
    return np.asarray(np.minimum(distance, far) - radius).reshape(q.shape[1:])


def _both(a: Float64Array, b: Float64Array) -> Float64Array:
    """Inside of both surfaces."""
    return np.maximum(a, b)


def _head_neck(rng: np.random.Generator) -> Anatomy:
    size = rng.uniform(0.94, 1.05, 3).reshape(3, 1, 1, 1)
    gland = rng.uniform(0.85, 1.15, (2, 3))
    skew = rng.uniform(-3.0, 3.0, 4)

    def layers(points: Float64Array) -> Iterator[Layer]:
        q = points / size
        x, y, z = q
        skull = _ball(q, (0.0, 2.0, 66.0), (72.0, 90.0, 70.0))
        face = np.minimum(_ball(q, (0.0, -28.0, 2.0), (69.0, 68.0, 72.0)), _ball(q, (0, -44, -46), (54.0, 52.0, 36.0)))
        neck = np.hypot(x / 1.1, y - 20.0) - 60.0 - 0.012 * np.maximum(-z - 62.0, 0.0) ** 2
        nose = _ball(q, (0.0, -98.0, 12.0), (11.0, 15.0, 17.0))
        body = np.minimum(np.minimum(np.minimum(skull, face), nose), _both(neck, z - 40.0))
        yield Layer(body, -90.0, 6.0)
        yield Layer(body + 6.0, 55.0, 9.0)
        for side in (-1.0, 1.0):
            neck_muscle = [(side * 50, 24, 8), (side * 44, 6, -50), (side * 22, -22, -110)]
            yield Layer(_rod(q, neck_muscle, 13.0), -80.0, 6.0)
            yield Layer(_rod(q, neck_muscle, 10.0), 62.0, 6.0)
            yield Layer(_rod(q, [(side * 30, 8, 0), (side * 30, 8, -125)], 4.5), 190.0)
            yield Layer(_rod(q, [(side * 23, 2, 5), (side * 22, -2, -125)], 3.5), 150.0)
            yield Layer(_ball(q, (side * 28, 44, -70), (24.0, 16.0, 60.0)), 62.0, 10.0)
        yield from _skull_and_brain(q, skull)
        yield from _spine(q)
        for k, side in enumerate((1.0, -1.0)):
            centre = (side * 48 + skew[k], 9 + skew[2 + k], -18)
            wave = 1.8 * np.sin(z / 6.0 + k) * np.cos(y / 7.0)
            gap = _ball(q, centre, np.array([15.0, 20.0, 27.0]) * gland[k]) + wave
            yield Layer(gap, -75.0, 6.0)
            yield Layer(gap + 2.2, 12.0, 16.0, 4 + k)
        yield from _jaw_and_airway(q)

    return layers


def _skull_and_brain(q: Float64Array, skull: Float64Array) -> Iterator[Layer]:
    x, y, z = q
    skull_base = _both(skull + 5.0, -(z - 2.0 - 0.22 * (y - 20.0)))
    yield Layer(_both(skull + 5.0, -(z + 6.0 - 0.22 * (y - 20.0))), 950.0, 60.0)
    yield Layer(skull_base + 7.0, 34.0, 5.0, 1)
    fissure = _both(np.abs(x) - 1.4, skull_base + 9.0)
    yield Layer(fissure, 6.0, 0.0, None)
    gyri = np.abs(np.sin(x / 5.0 + 1.3 * np.sin(z / 9.0)) + np.sin(y / 5.5 + 1.4 * np.sin(x / 8.0)) + np.sin(z / 5.0))
    yield Layer(_both(_both(gyri - 0.22, skull_base + 7.5), -skull_base - 19.0), 12.0, 0.0, None)
    for side in (-1.0, 1.0):
        horn = [(side * 12, -26, 62), (side * 16, 0, 68), (side * 22, 26, 58)]
        yield Layer(_rod(q, horn, np.array([7.0, 6.0, 7.0])), 4.0, 0.0, None)
        yield Layer(_ball(q, (side * 31, -66, 26), (17.0, 18.0, 16.0)), 480.0, 40.0)
        yield Layer(_ball(q, (side * 31, -69, 26), (14.5, 17.0, 13.5)), -70.0)
        yield Layer(_ball(q, (side * 31, -72, 26), (11.5, 12.0, 11.5)), 8.0)
        yield Layer(_ball(q, (side * 20, -48, 2), (13.0, 17.0, 15.0)), 420.0, 30.0)
        yield Layer(_ball(q, (side * 20, -48, 2), (11.0, 15.0, 13.0)), -950.0)
        yield Layer(_ball(q, (side * 50, 18, 10), (15.0, 15.0, 12.0)), 520.0, 160.0)
    stem = [(0, 14, 26), (0, 19, 10), (0, 27, -8)]
    yield Layer(_rod(q, stem, np.array([17.0, 18.0, 13.0])), 0.0, 4.0, None)
    yield Layer(_rod(q, stem, np.array([13.0, 14.0, 10.0])), 62.0, 10.0, 2)


def _spine(q: Float64Array) -> Iterator[Layer]:
    """Vertebrae with discs, an arch behind the canal, and the cord in it."""
    x, y, z = q
    bow = 20.0 + 9.0 * np.cos((z + 60.0) / 55.0)  # front of the vertebrae
    level = np.abs((z + 400.0) % 20.0 - 10.0)
    vertebra = _both(np.hypot(x, (y - bow) * 1.15) - 13.0, z + 12.0)
    yield Layer(vertebra, 95.0, 8.0)
    yield Layer(_both(vertebra, 2.5 - level), 380.0, 60.0)
    canal = np.hypot(x, y - bow - 24.0)
    yield Layer(_both(_both(np.abs(canal - 13.0) - 3.2, 4.0 - level), z + 14.0), 430.0, 50.0)
    spine = _both(_both(np.abs(x) - 2.6, np.abs(y - bow - 43.0) - 8.0), _both(5.0 - level, z + 14.0))
    yield Layer(spine, 400.0, 50.0)
    yield Layer(_both(canal - 10.5, z + 6.0), 14.0)
    yield Layer(_both(canal - 6.0, z + 8.0), 42.0, 4.0, 3)


def _jaw_and_airway(q: Float64Array) -> Iterator[Layer]:
    x, y, z = q
    # The mandible is an arch with rising branches; the teeth are on it.
    arch = np.hypot(x, np.minimum(y + 42.0, 36.0))
    rise = np.maximum(y + 26.0, 0.0)
    height = -56.0 + 0.9 * rise
    behind = np.maximum(y + 8.0, 0.0)
    radial = np.hypot(arch - 45.0, behind)
    jaw = np.sqrt((radial / 1.0) ** 2 + ((z - height) / (2.0 + rise / 22.0)) ** 2) - 6.0
    yield Layer(jaw, 900.0, 90.0, 6)
    yield Layer(_both(jaw + 3.0, np.abs(z - height) - 5.0), 480.0, 60.0, None)
    molar = np.abs(np.arctan2(x, -(y + 42.0)) * 45.0 % 9.0 - 4.5)
    teeth = _both(_both(np.abs(arch - 43.0) - 4.0, np.abs(z + 34.0) - 9.0), _both(3.6 - (4.5 - molar), y + 28.0))
    yield Layer(teeth, 1500.0, 120.0)
    yield Layer(_ball(q, (0, -38, -40), (32.0, 32.0, 18.0)), 58.0, 12.0)
    yield Layer(_rod(q, [(-20, -30, -78), (0, -48, -78), (20, -30, -78)], 3.0), 420.0)
    yield Layer(_both(np.abs(np.hypot(x / 1.1, y + 12.0) - 17.0) - 2.2, np.abs(z + 100.0) - 14.0), 140.0, 40.0)
    tube = [(0, -78, 4), (0, -40, 6), (0, -14, -2), (0, -6, -30), (0, -8, -70), (0, -12, -125)]
    yield Layer(_rod(q, tube, np.array([7.0, 9.0, 9.0, 8.0, 9.0, 10.0])), -980.0, 0.0, 7)


def _chest(rng: np.random.Generator) -> Anatomy:
    size = rng.uniform(0.94, 1.05, 3).reshape(3, 1, 1, 1)
    trees = {side: _tree(rng, side) for side in (1.0, -1.0)}

    def layers(points: Float64Array) -> Iterator[Layer]:
        q = points / size
        x, y, z = q
        narrow = 1.0 - 0.22 * np.clip((z - 30.0) / 90.0, 0.0, 1.5)  # towards the neck
        wall = (np.sqrt((x / (134.0 * narrow)) ** 2 + (y / (92.0 * narrow)) ** 2) - 1.0) * 92.0
        yield Layer(wall - 22.0, -95.0, 6.0)
        yield Layer(wall - 12.0, 55.0, 9.0)
        # Ribs fall towards the front.
        level = np.abs((z - 0.42 * y + 400.0) % 24.0 - 12.0)
        ribs = np.hypot((wall - 3.5) / 0.8, 12.0 - level) - 4.6
        yield Layer(_both(ribs, -y - 76.0), 620.0, 80.0)
        yield Layer(_both(_both(np.abs(x) - 15.0, np.abs(y + 97.0) - 5.0), np.abs(z - 10.0) - 70.0), 260.0, 50.0)
        yield Layer(wall + 2.0, 30.0, 8.0)
        dome = [-58.0 - 0.006 * ((x - s * 62.0) ** 2 + (y + 5.0) ** 2) for s in (1.0, -1.0)]
        heart = _ball(q, (24.0, -32.0, -14.0), (54.0, 44.0, 56.0))
        spine_hump = np.hypot(x, y - 82.0) - 38.0
        middle = np.abs(x + 4.0) - (24.0 - 0.06 * (z - 20.0) + 0.08 * np.maximum(y, 0.0))
        lungs = [_both(_both(wall + 4.0, dome[k] + 8.0 * k - z), -np.minimum(heart - 4.0, spine_hump)) for k in (0, 1)]
        for k, s in enumerate((1.0, -1.0)):
            apex = _ball(q, (s * 62.0, 14.0, -40.0), (72.0, 110.0, 178.0))
            lung = _both(_both(_both(lungs[k], -middle), -s * x), apex)
            yield Layer(lung, -860.0, 16.0, 1 + k)
            centres, radii = trees[s]
            vessels = _beads(q, centres, radii, 6.0)
            yield Layer(_both(vessels, lung + 1.0), 40.0, 0.0, None)
        for k, s in enumerate((1.0, -1.0)):
            below = _both(_both(wall + 5.0, z - dome[k] - 8.0 * k + 4.0), -s * x)
            liver = k == 1
            yield Layer(below, 92.0 if liver else 45.0, 9.0 if liver else 20.0, 5 if liver else 0)
        yield Layer(_ball(q, (46.0, -30.0, -104.0), (44.0, 34.0, 30.0)), 20.0, 12.0)
        yield Layer(_ball(q, (40.0, -46.0, -94.0), (24.0, 16.0, 16.0)), -880.0)
        yield Layer(heart, 60.0, 8.0, 3)
        yield Layer(_ball(q, (30.0, -34.0, -18.0), (36.0, 27.0, 36.0)), 170.0, 8.0, 3)
        yield Layer(_ball(q, (-10.0, -36.0, -8.0), (19.0, 22.0, 28.0)), 150.0, 8.0, 3)
        level = np.abs((z + 400.0) % 26.0 - 13.0)
        vertebra = np.hypot(x, (y - 66.0) * 1.1) - 18.0
        yield Layer(vertebra, 90.0, 8.0)
        yield Layer(_both(vertebra, 3.0 - level), 330.0, 60.0)
        canal = np.hypot(x, y - 95.0)
        yield Layer(_both(np.abs(canal - 14.0) - 3.5, 5.0 - level), 430.0, 50.0)
        yield Layer(_both(_both(np.abs(x) - 3.0, np.abs(y - 114.0) - 12.0), 6.0 - level), 420.0, 50.0)
        yield Layer(canal - 11.0, 14.0)
        yield Layer(canal - 6.5, 42.0, 4.0, 6)
        bow = [(6, -34, 20), (2, -34, 50), (4, -14, 66), (14, 20, 62), (22, 46, 44), (22, 50, 0), (18, 50, -130)]
        yield Layer(_rod(q, bow, np.array([14.0, 14.0, 13.0, 12.5, 12.0, 11.0, 10.0])), 210.0, 6.0, 4)
        trunk = [(8, -26, 12), (14, -14, 30), (34, 2, 30)]
        yield Layer(_rod(q, trunk, 11.0), 180.0, 6.0, None)
        yield Layer(_rod(q, [(-20, -30, -10), (-20, -22, 40), (-24, -18, 120)], 9.0), 150.0, 6.0, None)
        yield Layer(_rod(q, [(4, 30, 130), (4, 34, 40), (4, 40, -130)], 5.0), 40.0)
        yield Layer(_rod(q, [(0, 4, 140), (0, 12, 40)], 8.5), -980.0)
        for s in (-1.0, 1.0):
            yield Layer(_rod(q, [(0, 12, 42), (s * 24, 18, 22), (s * 42, 22, 10)], np.array([8.0, 6.5, 5.0])), -980.0)

    return layers


def _tree(rng: np.random.Generator, side: float) -> tuple[Float64Array, Float64Array]:
    """Vessels of a lung: branches that divide from the hilum, as balls along them."""
    centres, radii = [], []
    ways = rng.normal(0, 1, (16, 3)) + np.array([side * 0.6, 0.0, -0.1])
    open_ends = [(np.array([side * 34.0, 18.0, 8.0]), way, rng.uniform(3.6, 5.2)) for way in ways]
    while open_ends:
        at, heading, radius = open_ends.pop()
        heading = heading / np.linalg.norm(heading)
        length = rng.uniform(4.0, 6.5) * radius
        for step in np.arange(0.0, length, 1.2):
            centres.append(at + step * heading)
            radii.append(radius * (1 - 0.22 * step / length))
        if radius > 1.1:
            spread = np.cross(heading, rng.standard_normal(3))
            for way in (-1.0, 1.0):
                bent = heading + way * rng.uniform(0.35, 0.6) * spread / np.linalg.norm(spread)
                open_ends.append((at + length * heading, bent, radius * rng.uniform(0.7, 0.8)))
    return np.array(centres), np.array(radii)


def _brain(rng: np.random.Generator) -> Anatomy:
    size = rng.uniform(0.95, 1.04, 3).reshape(3, 1, 1, 1)
    waves = rng.normal(0, 1, (26, 3))
    waves *= (2 * np.pi / rng.uniform(17.0, 27.0, 26) / np.linalg.norm(waves, axis=1))[:, None]
    phases = rng.uniform(0, 2 * np.pi, 26)

    def layers(points: Float64Array) -> Iterator[Layer]:
        q = points / size
        x, y, z = q
        # Sulci are the zero level of a sum of plane waves: sheets that meander, about 11 mm apart.
        wave = sum(np.sin(np.tensordot(k, q, 1) + p) for k, p in zip(waves, phases, strict=True)) / np.sqrt(13.0)
        dome = _both(_ball(q, (0.0, 0.0, 2.0), (66.0, 84.0, 66.0)), -_ball(q, (0.0, 6.0, -62.0), (78.0, 80.0, 52.0)))
        temporal = np.minimum(*(_ball(q, (s * 41.0, -8.0, -22.0), (21.0, 44.0, 21.0)) for s in (-1.0, 1.0)))
        gap = np.abs(z + 4.0 - 0.25 * y + 0.12 * (np.abs(x) - 50.0)) - 1.2 - 8.0 * (np.abs(x) < 28.0)
        cerebrum = _both(np.minimum(dome, temporal), 1.3 - np.abs(x))
        cerebrum = _both(cerebrum, -_both(gap, _both(np.abs(y + 12.0) - 30.0, 36.0 - np.abs(x))))  # Sylvian fissure
        yield Layer(np.minimum(dome, temporal) - 2.5, 95.0, 4.0)
        sheet = np.abs(wave) * 4.6
        depth = -cerebrum
        open_mm = np.clip(1.5 - 0.08 * depth, 0.35, 1.5)
        sulcus = _both(sheet - open_mm, depth - 15.0)
        grey = _both(cerebrum, -sulcus)
        yield Layer(grey, 520.0, 14.0, 2)
        inward = np.minimum(depth, np.hypot(sheet, np.maximum(depth - 14.0, 0.0)))
        white = _both(grey, 3.9 - inward)
        yield Layer(white, 880.0, 12.0, 3)
        bridge = _both(_ball(q, (0.0, 0.0, 15.0), (26.0, 42.0, 12.0)), -_ball(q, (0.0, 2.0, 8.0), (40.0, 38.0, 13.0)))
        yield Layer(bridge, 890.0, 10.0, 3)
        for s in (-1.0, 1.0):
            yield Layer(_rod(q, [(s * 26, -20, 4), (s * 27, 10, 2)], 7.0), 620.0, 12.0, 2)
            yield Layer(_ball(q, (s * 10, 8, 3), (8.5, 15.0, 9.0)), 630.0, 10.0, 4)
            horn = [(s * 12, -34, 8), (s * 8, -14, 15), (s * 10, 12, 17), (s * 20, 34, 8), (s * 28, 22, -10)]
            yield Layer(_rod(q, horn, np.array([5.5, 5.0, 5.0, 6.5, 3.5])), 110.0, 4.0, 1)
        yield Layer(_ball(q, (0, 6, -2), (1.8, 15.0, 10.0)), 110.0, 4.0, 1)
        bark = _ball(q, (0.0, 46.0, -42.0), (48.0, 30.0, 24.0))
        yield Layer(bark - 2.5, 95.0, 4.0, None)
        leaf = np.abs(np.hypot(y - 34.0, z + 36.0) % 6.2 - 3.1) - 0.75
        yield Layer(bark, 95.0, 4.0, 5)
        yield Layer(_both(bark, -_both(leaf, -bark - 9.0)), 540.0, 14.0, 5)
        yield Layer(_both(bark + 9.0, np.abs(x) - 34.0), 780.0, 12.0, 5)
        stem = [(0, 16, -6), (0, 16, -30), (0, 24, -70)]
        yield Layer(_rod(q, stem, np.array([13.0, 15.0, 9.0])), 780.0, 8.0)

    return layers


ANATOMIES = {"head and neck": _head_neck, "chest": _chest, "brain": _brain}


def pair(seed: int = 0, kind: str = "head and neck", *, voxel_mm: float = 4.0) -> ImagePair:
    """Return two generated images of one anatomy with their structures; the fixed one is deformed.

    Parameters
    ----------
    seed : int
        Chooses sizes, folds, vessels, deformation and noise.
    kind : str
        ``head and neck`` or ``chest`` (CT), or ``brain`` (T1 MR).
    voxel_mm : float
        Side of a voxel.

    Examples
    --------
    >>> import regweave as rw
    >>> rw.examples.pair(kind="brain", voxel_mm=8.0).moving_labels
    LabelMap(20 × 24 × 19 voxels of 8 × 8 × 8 mm, ventricles, grey matter, white matter, thalamus, cerebellum)
    """
    rng = np.random.default_rng([seed, list(ANATOMIES).index(kind)])
    geometry = _geometry(kind, voxel_mm)
    points = grid_points(geometry)
    layers = ANATOMIES[kind](rng)
    moved = points + _displacement(points, geometry, SHIFT_MM[kind], rng)
    grain = _noise(geometry.shape, max(0.6, 2.0 / voxel_mm), rng)
    fixed, moving = (Image.of(*paint(kind, layers, place, geometry, grain, rng)) for place in (moved, points))
    return ImagePair(fixed, moving)


PATIENT_LABELS = ("brainstem", "left parotid", "right parotid", "mandible")
"""Structures of a patient that move, labels 1 to 4."""
PATIENT_VOXEL_MM = 4.0
_MOVE_MM, _MOVE_REACH_MM = 11.0, 18.0


def patient(seed: int, voxel_mm: float = PATIENT_VOXEL_MM) -> ImagePair:
    """Return two CT scans of one head and neck, the later one fixed, in which each organ changes in another way.

    Four organs move by up to 11 mm. Dental metal draws other streaks into each scan. A contrast agent exchanges light
    and dark in and near the parotids of the later scan. There gain and offset drift near the brainstem, as by beam
    hardening. No single metric is right for all of these changes.
    """
    rng = np.random.default_rng(seed)
    geometry = _geometry("head and neck", voxel_mm)
    points, layers = grid_points(geometry), _head_neck(rng)
    kept = {STRUCTURES["head and neck"].index(name) + 1: n for n, name in enumerate(PATIENT_LABELS, start=1)}
    moved = points + _displacement(points, geometry, 8.0, rng)
    near = {k: np.exp(-np.square(np.maximum(d, 0.0) / _MOVE_REACH_MM) / 2) for k, d in _depths(layers, points).items()}
    total = np.maximum(1.0, sum(near[k] for k in kept))  # weights of at most 1 keep the map one to one
    for k, value in kept.items():
        move = rng.standard_normal(3) * (0.3 if value == 4 else 1.0, 1.0, 1.0)
        move *= rng.uniform(0.75, 1.0) * _MOVE_MM / np.linalg.norm(move)
        moved = moved + near[k] / total * move.reshape(3, 1, 1, 1)
    grain = _noise(geometry.shape, 1.0, rng)
    scans: list[Image] = []
    for place in (moved, points):
        volume, labels = paint("head and neck", layers, place, geometry, grain, rng)
        image = volume.data.astype(np.float64)
        if place is moved:
            image = _agent_and_drift(image, _depths(layers, place), place)
        image = np.clip(image + _streaks(place, rng), -1024.0, 3000.0)
        few = np.array([kept.get(value, 0) for value in range(labels.data.max() + 1)], dtype=np.uint8)[labels.data]
        names = dict(enumerate(PATIENT_LABELS, start=1))
        scans.append(Image.of(Volume(image.astype(np.float32), geometry), LabelMap(few, geometry, names)))
    return ImagePair(scans[0], scans[1])


def _depths(layers: Anatomy, points: Float64Array) -> dict[int, Float64Array]:
    return {layer.label: layer.distance for layer in layers(points) if layer.label}


def _agent_and_drift(image: Float64Array, depth: dict[int, Float64Array], points: Float64Array) -> Float64Array:
    for gland in (4, 5):
        near = np.exp(-((np.maximum(depth[gland], 0.0) / 16.0) ** 4))
        image = np.where((image > -300.0) & (image < 250.0), image + 2.6 * near * (10.0 - image), image)
    near = np.exp(-((np.maximum(depth[2], 0.0) / 32.0) ** 2))
    drift = image * (1 - 0.5 * near) + 160.0 * near * (1 + 0.6 * np.sin(points[0] / 14.0 + points[2] / 19.0))
    return np.where(image > -300.0, drift, image)


def _streaks(points: Float64Array, rng: np.random.Generator) -> Float64Array:
    """Bright and dark rays from four teeth, fading with the distance."""
    out = np.zeros(points.shape[1:])
    for angle in rng.uniform(0.2, np.pi - 0.2, 4):
        x, y = points[0] - 43.0 * np.cos(angle), points[1] + 42.0 + 43.0 * np.sin(angle)
        turn = np.arctan2(y, x)
        rays = sum(
            np.sin(n * turn + phase) for n, phase in zip((7, 11, 17, 23, 29), rng.uniform(0, 6.3, 5), strict=True)
        )
        out += np.sign(rays) * np.abs(rays) ** 1.5 * np.exp(-np.hypot(x, y) / 40.0)
    return np.asarray(200.0 * out * np.exp(-(((points[2] + 38.0) / 16.0) ** 4)))


def _geometry(kind: str, voxel_mm: float) -> Geometry:
    x, y, z = (round(mm / voxel_mm) for mm in FIELD_MM[kind])
    shape = x, y, z
    affine = np.diag([voxel_mm, voxel_mm, voxel_mm, 1.0])
    affine[:3, 3] = -voxel_mm * (np.array(shape) - 1) / 2
    return Geometry(shape, affine)


def grid_points(geometry: Geometry) -> Float64Array:
    """LPS millimetres of each voxel, shape (3, X, Y, Z)."""
    index = np.stack(np.meshgrid(*(np.arange(n) for n in geometry.shape), indexing="ij"), axis=-1)
    return np.moveaxis(geometry.points(index.astype(np.float64)), -1, 0)


def paint(
    kind: str, layers: Anatomy, points: Float64Array, geometry: Geometry, grain: Float64Array, rng: np.random.Generator
) -> tuple[Volume, LabelMap]:
    """Paint the layers at some points, one over the other."""
    air = 0.0 if kind == "brain" else -1000.0
    edge_mm = 0.3 * float(geometry.spacing_mm.min())
    index = (points - geometry.origin_mm.reshape(3, 1, 1, 1)) / geometry.spacing_mm.reshape(3, 1, 1, 1)
    texture = ndimage.map_coordinates(grain, index, order=1, mode="nearest")
    image = np.full(geometry.shape, air)
    labels = np.zeros(geometry.shape, dtype=np.uint8)
    for layer in layers(points):
        share = 1 / (1 + np.exp(np.clip(layer.distance / edge_mm, -30.0, 30.0)))
        image += share * (layer.value + layer.grain * texture - image)
        if layer.label is not None:
            labels[layer.distance < 0] = layer.label
    image += NOISE[kind] * rng.standard_normal(geometry.shape)
    if kind != "brain":
        image = np.clip(image, -1024.0, 3000.0)
    names = dict(enumerate(STRUCTURES[kind], start=1))
    return Volume(np.ascontiguousarray(image, dtype=np.float32), geometry), LabelMap(labels, geometry, names)


def _noise(shape: tuple[int, ...], sigma: float, rng: np.random.Generator) -> Float64Array:
    noise = ndimage.gaussian_filter(rng.standard_normal(shape), sigma)
    return np.asarray(noise / noise.std())


def _displacement(
    points: Float64Array, geometry: Geometry, largest_mm: float, rng: np.random.Generator
) -> Float64Array:
    """Smooth displacements without a fold: noise, blurred more until no volume shrinks below ``LEAST_JACOBIAN``."""
    sigma_mm = 0.11 * float((geometry.spacing_mm * geometry.shape).min())
    noise = rng.standard_normal(points.shape)
    while True:
        u = np.stack([ndimage.gaussian_filter(part, sigma_mm / geometry.spacing_mm) for part in noise])
        u *= largest_mm / np.sqrt((u**2).sum(0)).max()
        slopes = np.stack([np.stack(np.gradient(part, *geometry.spacing_mm)) for part in u])
        if np.linalg.det(np.moveaxis(slopes, (0, 1), (-2, -1)) + np.eye(3)).min() > LEAST_JACOBIAN:
            return u
        sigma_mm *= 1.2


def write_list(path: Path, made: Iterable[tuple[str, str, ImagePair]]) -> Path:
    """Write pairs, each with its name and patient, beside a new list of them, and the names of their labels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    listed, names = [], {}
    for name, patient_name, one in made:
        files = {column: path.parent / f"{patient_name}_{column}.nii.gz" for column in FILES}
        for side in ("fixed", "moving"):
            write_image(files[side], getattr(one, side))
            labels: LabelMap = getattr(one, f"{side}_labels")
            write_labels(files[f"{side}_labels"], labels)
            names = {str(value): text for value, text in labels.names.items()}
        listed.append(PairFiles(id=name, group=patient_name, **files))
    (path.parent / "labels.json").write_text(json.dumps(names) + "\n", encoding="utf-8")
    write_pairs(path, listed)
    return path


def pairs(folder: str | Path, n: int = 3, *, seed: int = 0, kind: str = "head and neck") -> Path:
    """Write generated pairs and their list, ``pairs.csv``, into a folder, and return the list.

    Parameters
    ----------
    folder : path
        New or empty folder.
    n : int
        Number of pairs, each of another patient.
    seed : int
        Seed of the first pair.
    kind : str
        Anatomy, as for `pair`.
    """
    made = ((f"pair{number}", f"p{number}", pair(number, kind)) for number in range(seed, seed + n))
    return write_list(Path(folder) / "pairs.csv", made)
