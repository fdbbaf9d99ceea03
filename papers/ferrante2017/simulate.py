"""Simulated second scan of a real image, by a known deformation without folds.

Tissue moves in two stages, each the flow of a smooth velocity: organs change their volume and move, then the body
changes its posture. A change of volume is a potential flow whose divergence lies in the organ alone; all other motion
is the curl of a vector potential, which keeps volumes. Bones are not rigid and organs do not slide. At last the
contrast of organs, a smooth gain and noise change. Displacements are in voxels, shape (3, X, Y, Z).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Array = NDArray[Any]
MIN_JACOBIAN = 0.25
"""Smallest Jacobian of the deformation; motions are weakened until it holds."""
SQUARINGS = 6
CALIBRATIONS = 3
BORDER_MM = 20.0
"""Width of the rim in which curl motions fade to zero."""
LOCAL_WIDTH_MM = 18.0
GRADIENT = 0.6
"""How much more than the mean the side of a graded organ shrinks that is nearest to the other organs."""


@dataclass(frozen=True)
class OrganChange:
    """Range of the changes of one organ.

    ``volume`` is the range of the factor on its volume, ``motion_mm`` the largest speed of its own motion, ``contrast``
    the standard deviation of the change of its mean intensity. A ``graded`` organ shrinks most on the side that faces
    the other organs, as a gland does next to the target of a dose.
    """

    label: int
    volume: tuple[float, float] = (1.0, 1.0)
    motion_mm: float = 0.0
    contrast: float = 0.0
    graded: bool = False


@dataclass(frozen=True)
class ChangePlan:
    """Changes between two scans: of organs, posture (mm, and width of the motion), smooth gain, and noise."""

    organs: tuple[OrganChange, ...]
    posture_mm: float = 6.0
    posture_width_mm: float = 30.0
    gain: float = 0.02
    noise: float = 15.0


def second_scan(
    image: Array, labels: Array, spacing_mm: Array, plan: ChangePlan, seed: int
) -> tuple[Array, Array, Array]:
    """Return image, labels, and the displacement from the new scan to the original, in voxels.

    The same seed gives the same scan; organs that the label map lacks are left out.
    """
    rng = np.random.default_rng(seed)
    organs = [organ for organ in plan.organs if (labels == organ.label).any()]
    inner = _organ_velocity(labels, organs, spacing_mm, rng)
    rim = _window(labels.shape, spacing_mm)
    outer = plan.posture_mm * _curl_motion(rim, plan.posture_width_mm, spacing_mm, rng)
    strength = 1.0
    while True:  # the new scan's posture is undone first, then the changes of its organs
        moved = compose(flow(strength * inner, spacing_mm), flow(strength * outer, spacing_mm))
        if jacobian(moved).min() >= MIN_JACOBIAN:
            break
        strength *= 0.85
    look = image.astype(np.float64)
    for organ in organs:
        look += organ.contrast * rng.standard_normal() * _soft(labels == organ.label)
    return _scan(look, image, moved, spacing_mm, plan, rng), warp_labels(labels, moved), moved


def compose(outer: Array, inner: Array) -> Array:
    """Return the displacement of the map that applies ``inner`` first."""
    index = np.indices(inner.shape[1:]) + inner
    return inner + np.stack([ndimage.map_coordinates(u, index, order=1, mode="nearest") for u in outer])


def jacobian(displacement: Array) -> Array:
    """Return the determinant of the map at each voxel."""
    gradient = np.stack([np.stack(np.gradient(u)) for u in displacement])
    return np.linalg.det(np.moveaxis(gradient, (0, 1), (-2, -1)) + np.eye(3))


def warp(values: Array, displacement: Array) -> Array:
    """Interpolate a mask linearly; outside of the image it is zero."""
    index = np.indices(values.shape) + displacement
    return ndimage.map_coordinates(values.astype(np.float64), index, order=1, mode="constant")


def warp_labels(labels: Array, displacement: Array) -> Array:
    """Warp a label map: the label with the largest share of the eight neighbours."""
    organs = np.unique(labels[labels != 0])
    shares = np.stack([warp(labels == c, displacement) for c in organs])
    background = np.maximum(1 - shares.sum(axis=0), 0)[None]
    return np.array([0, *organs], dtype=labels.dtype)[np.concatenate([background, shares]).argmax(axis=0)]


def flow(velocity: Array, spacing_mm: Array) -> Array:
    """Follow a stationary velocity in mm for one unit of time, by scaling and squaring."""
    moved = velocity / spacing_mm.reshape(3, 1, 1, 1) / 2**SQUARINGS
    for _ in range(SQUARINGS):
        moved = compose(moved, moved)
    return moved


def _organ_velocity(labels: Array, organs: Sequence[OrganChange], spacing_mm: Array, rng: np.random.Generator) -> Array:
    """Return the velocity of the organs in mm, from the new scan to the original."""
    masks = {organ.label: labels == organ.label for organ in organs}
    centres = {c: np.argwhere(mask).mean(axis=0) * spacing_mm for c, mask in masks.items()}
    middle = np.mean(list(centres.values()), axis=0) if organs else np.zeros(3)
    velocity = np.zeros((3, *labels.shape))
    for organ in organs:
        mask = masks[organ.label]
        factor = rng.uniform(*organ.volume)
        share = _graded(mask, centres[organ.label], middle, spacing_mm) if organ.graded else mask
        if factor != 1:
            velocity -= _volume_change(mask, _potential_flow(_soft(share), spacing_mm), factor, spacing_mm)
        if organ.motion_mm > 0:
            near = ndimage.gaussian_filter(mask.astype(np.float64), LOCAL_WIDTH_MM / spacing_mm)
            near *= _window(mask.shape, spacing_mm) / max(near.max(), 1e-12)
            velocity += organ.motion_mm * _curl_motion(near, LOCAL_WIDTH_MM, spacing_mm, rng)
    return velocity


def _volume_change(mask: Array, source_flow: Array, factor: float, spacing_mm: Array) -> Array:
    """Scale a flow out of an organ until the warped organ has the planned volume."""
    # Out of a sharp source at a fixed place an organ grows by r per unit of time, and into it shrinks by e^r.
    rate = np.log(factor) if factor < 1 else factor - 1
    for _ in range(CALIBRATIONS):
        reached = warp(mask, flow(-rate * source_flow, spacing_mm)).sum() / mask.sum()
        if not 0.2 < reached < 5:
            break  # the flow would fold; the strength of all motions is reduced later
        rate += np.log(factor / reached) * (1.0 if factor < 1 else reached)
    return rate * source_flow


def _potential_flow(source: Array, spacing_mm: Array) -> Array:
    """Return the gradient of ψ with ∇²ψ = source, on a grid twice as large: periodic copies are far away."""
    shape = tuple(2 * n for n in source.shape)
    transforms = (np.fft.fftfreq, np.fft.fftfreq, np.fft.rfftfreq)
    waves = [2 * np.pi * f(n, d) for f, n, d in zip(transforms, shape, spacing_mm, strict=True)]
    k = np.meshgrid(*waves, indexing="ij", sparse=True)
    square = k[0] ** 2 + k[1] ** 2 + k[2] ** 2
    square[0, 0, 0] = 1.0
    potential = np.fft.rfftn(source, s=shape, axes=(0, 1, 2)) / -square
    potential[0, 0, 0] = 0.0
    inside = tuple(slice(n) for n in source.shape)
    return np.stack([np.fft.irfftn(1j * c * potential, s=shape, axes=(0, 1, 2))[inside] for c in k])


def _curl_motion(weight: Array, width_mm: float, spacing_mm: Array, rng: np.random.Generator) -> Array:
    """Return a random motion without divergence, of largest speed 1, weighted before the curl is taken."""
    noise = rng.standard_normal((3, *weight.shape))
    a = [weight * ndimage.gaussian_filter(n, width_mm / spacing_mm, mode="reflect") for n in noise]
    d = [np.gradient(x, *spacing_mm) for x in a]
    curl = np.stack([d[2][1] - d[1][2], d[0][2] - d[2][0], d[1][0] - d[0][1]])
    return curl / max(np.sqrt((curl**2).sum(axis=0)).max(), 1e-12)


def _window(shape: tuple[int, ...], spacing_mm: Array) -> Array:
    """Return a weight of one inside that falls smoothly to zero at the border."""
    out = np.ones(shape)
    for axis, (n, d) in enumerate(zip(shape, spacing_mm, strict=True)):
        t = np.clip(np.minimum(np.arange(n), np.arange(n)[::-1]) * d / BORDER_MM, 0, 1)
        out = out * np.expand_dims(t * t * (3 - 2 * t), [i for i in range(3) if i != axis])
    return out


def _graded(mask: Array, centre: Array, towards: Array, spacing_mm: Array) -> Array:
    """Return the mask with values that rise towards a point, their mean about one."""
    axis = towards - centre
    length = np.linalg.norm(axis)
    out = mask.astype(np.float64)
    if length >= 1e-6:
        along = (np.argwhere(mask) * spacing_mm - centre) @ (axis / length)
        out[mask] += GRADIENT * along / max(np.abs(along).max(), 1e-6)
    return out


def _soft(values: Array) -> Array:
    """Smooth over a voxel and keep the sum."""
    return ndimage.gaussian_filter(values.astype(np.float64), 0.7, mode="constant")


def _scan(
    look: Array, image: Array, moved: Array, spacing_mm: Array, plan: ChangePlan, rng: np.random.Generator
) -> Array:
    """Interpolate the tissue once, then change gain and noise, inside the range of the original."""
    data = ndimage.map_coordinates(look, np.indices(image.shape) + moved, order=3, mode="nearest")
    gain = ndimage.gaussian_filter(rng.standard_normal(data.shape), 40.0 / spacing_mm, mode="reflect")
    gain *= plan.gain / max(gain.std(), 1e-12)
    noise = ndimage.gaussian_filter(rng.standard_normal(data.shape), 0.6)
    noise *= plan.noise / noise.std()
    low, high = image.min(), image.max()
    return np.clip(low + (data - low) * (1 + gain) + noise, low, high)
