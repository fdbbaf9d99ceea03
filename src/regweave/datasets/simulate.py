"""Simulated follow-up of a real image, by a known deformation.

Tissue is moved in two stages, each the flow of a smooth velocity and so without tears or folds: organs change their
volume and wriggle, then the body changes its posture. Growth and shrinkage are potential flows whose divergence lies in
the organ alone; every other motion is the curl of a vector potential and keeps volumes. Bones are not kept rigid and
organs do not slide. The image then gets another contrast, a smooth gain and noise, as a scan of another day has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave import notices
from regweave.measures.inverse import ACCEPTABLE_MM, SHARE
from regweave.spatial import compose, determinant, invert, to_field, to_voxels, warp_image, warp_labels
from regweave.types import Field, Float64Array, Geometry, LabelMap, Transform, Volume

MIN_JACOBIAN = 0.25
"""No volume shrinks below this, anywhere; motions are made smaller until it holds."""
SQUARINGS = 6
CALIBRATIONS = 3
BORDER_MM = 20.0
"""Width of the rim in which curl motions fade to nothing."""
LOCAL_WIDTH_MM = 18.0
GRADIENT = 0.6
"""How much more than the mean the side of an organ nearest to the high dose shrinks."""


@dataclass(frozen=True)
class OrganChange:
    """Range of changes of one organ between two scans.

    Parameters
    ----------
    label : int
        Its value in the label map; an organ that is not there is left out.
    volume : (low, high)
        Factor on its volume, drawn evenly.
    motion_mm : float
        Largest velocity of its own motion over one unit of time, about the largest displacement.
    contrast : float
        Standard deviation of the change of its mean intensity.
    graded : bool
        Shrink most on the side that faces the other organs that change, as a gland does next to the target of a dose.
    """

    label: int
    volume: tuple[float, float] = (1.0, 1.0)
    motion_mm: float = 0.0
    contrast: float = 0.0
    graded: bool = False


@dataclass(frozen=True)
class ChangePlan:
    """Plan of the changes between two scans: to organs, to the posture, and to the image.

    Parameters
    ----------
    organs : tuple of OrganChange
        Organs that change.
    posture_mm, posture_width_mm : float
        Largest displacement of the whole body's motion, and how far it reaches.
    gain : float
        Standard deviation of a smooth factor on intensities above the image's minimum.
    noise : float
        Standard deviation of the noise, in units of the image.
    """

    organs: tuple[OrganChange, ...]
    posture_mm: float = 6.0
    posture_width_mm: float = 30.0
    gain: float = 0.02
    noise: float = 15.0


@dataclass(frozen=True)
class TimePoint:
    """A simulated scan.

    Parameters
    ----------
    image, labels : Volume, LabelMap
        On the grid of the original.
    field : Field
        Takes a point of the new scan to the point of the original that shows the same tissue.
    strength : float
        Share of the planned motion that keeps every volume above `MIN_JACOBIAN`; 1 unless the plan was too wild.
    """

    image: Volume
    labels: LabelMap
    field: Field
    strength: float


def second_time_point(image: Volume, labels: LabelMap, plan: ChangePlan, seed: int) -> TimePoint:
    """Make another scan of the same patient.

    Parameters
    ----------
    image, labels : Volume, LabelMap
        A real scan and its organs, on one grid.
    plan : ChangePlan
        What may change.
    seed : int
        Chooses everything that is random; the same seed gives the same bits.

    Examples
    --------
    >>> from regweave.datasets.phantom import make_phantom
    >>> pair = make_phantom(shape=(24, 24, 24), spacing_mm=(8.0, 8.0, 8.0)).pair
    >>> plan = ChangePlan((OrganChange(4, volume=(0.6, 0.7)),))
    >>> later = second_time_point(pair.moving, pair.moving_labels, plan, seed=1)
    >>> bool((later.labels.data == 4).sum() < (pair.moving_labels.data == 4).sum())
    True
    """
    rng = np.random.default_rng(seed)
    present = [organ for organ in plan.organs if (labels.data == organ.label).any()]
    inner = _organ_velocity(labels, present, rng)
    outer = _posture_velocity(labels.geometry, plan, rng)
    field, strength = _flow(inner, outer, labels.geometry)
    look = _contrast(image, labels, present, rng)
    data = _scan(look, image, field, plan, rng)
    return TimePoint(
        Volume(data, image.geometry), warp_labels(labels, Transform(field)), Field(field.data, image.geometry), strength
    )


def between(first: Field, second: Field) -> Field:
    """Return the field from the grid of one time point to another, where both fields lead to the same original.

    Points p of the first go to q of the second with ``second(q) = first(p)``.
    """
    inversion = invert(Transform(second), second.geometry)
    share = float((inversion.residual_mm > ACCEPTABLE_MM).mean())
    if share > SHARE:  # what is planted here passes for the truth
        text = f"W202: a planted field has no exact inverse at {share:.2%} of the voxels; do not measure errors there"
        notices.warn(text)
    return compose(inversion.transform.field, first)


def _organ_velocity(labels: LabelMap, organs: Sequence[OrganChange], rng: np.random.Generator) -> Float64Array:
    """Velocity of the organs along the image axes, in mm, from the new scan to the original."""
    spacing_mm = labels.geometry.spacing_mm
    centres = {o.label: _centre(labels.data == o.label, spacing_mm) for o in organs}
    middle = np.mean(list(centres.values()), axis=0) if organs else np.zeros(3)
    velocity = np.zeros((3, *labels.geometry.shape))
    for organ in organs:
        mask = labels.data == organ.label
        factor = rng.uniform(*organ.volume)
        share = _gradient(mask, centres[organ.label], middle, spacing_mm) if organ.graded else mask.astype(np.float64)
        if factor != 1:
            velocity -= _volume_change(mask, _potential_flow(_soft(share), spacing_mm), factor, labels.geometry)
        if organ.motion_mm > 0:
            near = ndimage.gaussian_filter(mask.astype(np.float64), LOCAL_WIDTH_MM / spacing_mm)
            near *= _window(mask.shape, spacing_mm) / max(float(near.max()), 1e-12)
            velocity += organ.motion_mm * _curl_motion(near, LOCAL_WIDTH_MM, spacing_mm, rng)
    return velocity


def _volume_change(mask: NDArray[np.bool_], flow: Float64Array, factor: float, geometry: Geometry) -> Float64Array:
    """Scale a flow out of an organ until the organ, carried along, has the wanted volume."""
    # Out of a sharp source that stays in place an organ grows by r per unit of time, and into it shrinks by e^r.
    rate = np.log(factor) if factor < 1 else factor - 1
    soft = Volume(mask.astype(np.float32), geometry)
    for _ in range(CALIBRATIONS):
        back = Transform(_exponential(-rate * flow, geometry))
        found = float(warp_image(soft, back).data.sum()) / float(mask.sum())
        if not 0.2 < found < 5:
            break  # the flow would fold; `_flow` will weaken it
        rate += np.log(factor / found) * (1.0 if factor < 1 else found)
    return np.asarray(rate * flow)


def _posture_velocity(geometry: Geometry, plan: ChangePlan, rng: np.random.Generator) -> Float64Array:
    window = _window(geometry.shape, geometry.spacing_mm)
    return plan.posture_mm * _curl_motion(window, plan.posture_width_mm, geometry.spacing_mm, rng)


def _flow(inner: Float64Array, outer: Float64Array, geometry: Geometry) -> tuple[Field, float]:
    """Undo the posture, then the changes of organs; all is made weaker until no volume shrinks below the limit."""
    strength = 1.0
    while True:
        field = compose(_exponential(strength * inner, geometry), _exponential(strength * outer, geometry))
        if float(determinant(field).min()) >= MIN_JACOBIAN:
            return field, strength
        strength *= 0.85


def _exponential(velocity: Float64Array, geometry: Geometry) -> Field:
    """Flow along a stationary velocity for one unit of time, by scaling and squaring."""
    voxels = velocity / geometry.spacing_mm.reshape(3, 1, 1, 1) / 2**SQUARINGS
    field = to_field(np.ascontiguousarray(voxels, dtype=np.float32), geometry)
    for _ in range(SQUARINGS):
        field = compose(field, field)
    return field


def _potential_flow(source: Float64Array, spacing_mm: Float64Array) -> Float64Array:
    """Gradient of ψ with ∇²ψ = source on a grid twice as large, so that copies of the source are far away."""
    shape = tuple(2 * n for n in source.shape)
    k = _frequencies(shape, spacing_mm)
    square = np.asarray(k[0] ** 2 + k[1] ** 2 + k[2] ** 2)
    square[0, 0, 0] = 1.0
    potential = np.fft.rfftn(source, s=shape, axes=(0, 1, 2)) / -square
    potential[0, 0, 0] = 0.0
    inside = tuple(slice(n) for n in source.shape)
    return np.stack([np.fft.irfftn(1j * c * potential, s=shape, axes=(0, 1, 2))[inside] for c in k])


def _frequencies(shape: tuple[int, ...], spacing_mm: Float64Array) -> list[Float64Array]:
    """Angular frequencies of a real transform along each axis, shaped to broadcast."""
    transforms = (np.fft.fftfreq, np.fft.fftfreq, np.fft.rfftfreq)
    k = [2 * np.pi * f(n, d) for f, n, d in zip(transforms, shape, spacing_mm, strict=True)]
    return [np.asarray(x).reshape([-1 if i == axis else 1 for i in range(3)]) for axis, x in enumerate(k)]


def _curl_motion(
    weight: Float64Array, width_mm: float, spacing_mm: Float64Array, rng: np.random.Generator
) -> Float64Array:
    """Random motion without divergence where a weight is; its largest speed is 1."""
    noise = rng.standard_normal((3, *weight.shape))
    a = [weight * ndimage.gaussian_filter(n, width_mm / spacing_mm, mode="reflect") for n in noise]
    d = [np.gradient(x, *spacing_mm) for x in a]
    curl = np.stack([d[2][1] - d[1][2], d[0][2] - d[2][0], d[1][0] - d[0][1]])
    return np.asarray(curl / max(float(np.sqrt((curl**2).sum(axis=0)).max()), 1e-12))


def _window(shape: tuple[int, ...], spacing_mm: Float64Array) -> Float64Array:
    """One inside, falling smoothly to zero at the border."""
    out = np.ones(shape)
    for axis, (n, d) in enumerate(zip(shape, spacing_mm, strict=True)):
        edge = np.minimum(np.arange(n), np.arange(n)[::-1]) * d
        t = np.clip(edge / BORDER_MM, 0, 1)
        out = out * (t * t * (3 - 2 * t)).reshape([-1 if i == axis else 1 for i in range(3)])
    return out


def _centre(mask: NDArray[np.bool_], spacing_mm: Float64Array) -> Float64Array:
    return np.asarray(np.argwhere(mask).mean(axis=0) * spacing_mm)


def _gradient(
    mask: NDArray[np.bool_], centre: Float64Array, towards: Float64Array, spacing_mm: Float64Array
) -> Float64Array:
    """Mask whose values rise towards a point, with a mean of one in it."""
    axis = towards - centre
    length = float(np.linalg.norm(axis))
    if length < 1e-6:
        return mask.astype(np.float64)
    at = np.argwhere(mask) * spacing_mm - centre
    along = at @ (axis / length)
    out = np.zeros(mask.shape)
    out[mask] = 1 + GRADIENT * along / max(float(np.abs(along).max()), 1e-6)
    return out


def _soft(values: Float64Array) -> Float64Array:
    """Smooth over a voxel and keep the sum."""
    return np.asarray(ndimage.gaussian_filter(values, 0.7, mode="constant"))


def _contrast(image: Volume, labels: LabelMap, organs: Sequence[OrganChange], rng: np.random.Generator) -> Float64Array:
    out = image.data.astype(np.float64)
    for organ in organs:
        out += organ.contrast * rng.standard_normal() * _soft((labels.data == organ.label).astype(np.float64))
    return out


def _scan(
    look: Float64Array, image: Volume, field: Field, plan: ChangePlan, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Interpolate the tissue once where the new scan has it; then gain and noise. Nothing leaves the original range."""
    index = np.indices(image.geometry.shape) + to_voxels(field)
    data = ndimage.map_coordinates(look, index, order=3, mode="nearest")
    low, high = float(image.data.min()), float(image.data.max())
    spread = 40.0 / image.geometry.spacing_mm
    gain = ndimage.gaussian_filter(rng.standard_normal(data.shape), spread, mode="reflect")
    gain *= plan.gain / max(float(gain.std()), 1e-12)
    noise = ndimage.gaussian_filter(rng.standard_normal(data.shape), 0.6)
    noise *= plan.noise / float(noise.std())
    return np.asarray(np.clip(low + (data - low) * (1 + gain) + noise, low, high), dtype=np.float32)
