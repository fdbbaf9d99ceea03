"""Phantoms with a planted optimum: in each structure another metric is right, and the others have theirs elsewhere.

``noise``
    Absolute differences are right: more than half of the voxels of the organ and round it are replaced by random greys,
    which squares and products, and so correlation, do not survive, and which fill every bin of mutual information.
``inverted``
    Mutual information is right: light and dark change places, so that equal intensities and positive correlation
    pull tissue over the border.
``bias``
    Correlation is right: gain and offset change smoothly over the organ and its neighbourhood, and the texture of both
    is too faint for the bins of mutual information.
"""

import numpy as np

from cohort import EDGE_MM, _coil, _move, _Textures
from phantoms import _grid
from regweave.types import Float64Array, Image, ImagePair, LabelArray, LabelMap, Volume

PLANTED = {1: "noise", 2: "inverted", 3: "bias"}
PLANTED_RIGHT = {"noise": "sad", "inverted": "mi", "bias": "ncc"}
"""Metric that is right in each organ, by construction."""
CENTRES_MM = {1: (-44.0, 26.0, 0.0), 2: (44.0, 26.0, 0.0), 3: (0.0, -42.0, 0.0)}
RADIUS_MM = 24.0
REACH_MM = 44.0
NOISE_SHARE = 0.6


class _Planted(_Textures):
    """Shapes and textures of one patient, as functions of the place."""

    def __init__(self, rng: np.random.Generator, shape: tuple[int, int, int]) -> None:
        self.shapes = {o: RADIUS_MM * rng.uniform(0.85, 1.1, 3) for o in PLANTED}
        super().__init__(shape, (1.6, 1.1, 1.1, 3.0), rng)

    def inside(self, organ: int, points: Float64Array) -> Float64Array:
        """Soft mask of an organ: an ellipsoid with a wavy surface."""
        q = points - np.reshape(CENTRES_MM[organ], (3, 1, 1, 1))
        radii = self.shapes[organ].reshape(3, 1, 1, 1)
        distance = (np.sqrt(((q / radii) ** 2).sum(axis=0)) - 1) * radii.min() + 2.5 * self.texture(3, points)
        return np.asarray(1 / (1 + np.exp(distance / EDGE_MM)))

    def labels(self, points: Float64Array) -> LabelArray:
        masks = np.stack([np.full(points.shape[1:], 0.5), *(self.inside(o, points) for o in PLANTED)])
        return np.asarray(masks.argmax(axis=0), dtype=np.uint8)


def planted_pair(seed: int, shape: tuple[int, int, int] = (48, 48, 48)) -> ImagePair:
    """Make one pair of images with labels; the seed chooses shapes, textures, noise and deformation.

    Examples
    --------
    >>> planted_pair(0, (24, 24, 24)).fixed_labels.values()
    [1, 2, 3]
    """
    rng = np.random.default_rng(seed)
    patient = _Planted(rng, shape)
    geometry, grid = patient.geometry, _grid(patient.geometry)
    moves = {o: _move(rng) for o in PLANTED}
    field = sum(moves[o] * _bump(o, grid, 32.0) for o in PLANTED)
    images = (_image(patient, grid + field, fixed=True), _image(patient, grid, fixed=False))
    volumes = [Volume(_noisy(image, grid, rng).astype(np.float32), geometry) for image in images]
    labels = [LabelMap(patient.labels(p), geometry, PLANTED) for p in (grid + field, grid)]
    return ImagePair(Image.of(volumes[0], labels[0]), Image.of(volumes[1], labels[1]))


def _noisy(image: Float64Array, grid: Float64Array, rng: np.random.Generator) -> Float64Array:
    """Add weak noise everywhere, and voxels of random grey round the first organ."""
    out = image + 0.012 * rng.standard_normal(image.shape)
    hit = rng.random(image.shape) < NOISE_SHARE * _near(1, grid)
    out[hit] = rng.random(int(hit.sum()))
    return np.asarray(out)


def _image(patient: _Planted, points: Float64Array, *, fixed: bool) -> Float64Array:
    """Look at the tissue at some points."""
    masks = {o: patient.inside(o, points) for o in PLANTED}
    faint = 1 - 0.65 * _bump(3, points, 34.0)
    image = 0.40 + 0.05 * faint * patient.texture(0, points)
    noise = 0.75 + 0.03 * patient.texture(1, points)
    inverted = 0.40 + (-0.16 if fixed else 0.16) * (1 + 0.5 * patient.texture(2, points))
    bias = 0.42 + 0.05 * faint * patient.texture(2, points)
    for organ, look in ((1, noise), (2, inverted), (3, bias)):
        image = image * (1 - masks[organ]) + look * masks[organ]
    if fixed:
        image = _coil(image, _bump(3, points, 30.0), points)
    return np.asarray(image)


def _near(organ: int, points: Float64Array) -> Float64Array:
    """One in and round an organ, falling to zero further out."""
    q = points - np.reshape(CENTRES_MM[organ], (3, 1, 1, 1))
    return np.asarray(np.exp(-(((q**2).sum(axis=0) / REACH_MM**2) ** 4)))


def _bump(organ: int, points: Float64Array, sigma_mm: float) -> Float64Array:
    q = points - np.reshape(CENTRES_MM[organ], (3, 1, 1, 1))
    return np.asarray(np.exp(-(q**2).sum(axis=0) / (2 * sigma_mm**2)))
