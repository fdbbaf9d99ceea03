"""Initial rigid or affine alignment, from the fixed to the moving image."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from regweave import _core, notices
from regweave.errors import UsageError
from regweave.io.modality import with_modality
from regweave.registration.starts.correlation_ratio import PyramidLevel, coarser
from regweave.spatial.intensity import apply_window, default_window
from regweave.spatial.masking import extrapolated, inside
from regweave.types import Float64Array, Image, Volume

# Voxels along the longest axis of the copies that the affine fit looks at, one after the other.
RESOLUTIONS = (16, 32, 64)
VOLUME_RATIOS = (0.3, 3.0)
CLEAR_GAIN = 0.98
"""A rigid fit must cost less than this share of what the headers cost, or these stay."""
MOST_TURNED_DEG = 40.0
STRUCTURES = "structures"


def initial_affine(fixed: Volume, moving: Volume, method: str) -> Float64Array:
    """Find an affine map to start a registration from.

    Parameters
    ----------
    fixed, moving : Volume
        The images, each on its own grid; of an `Image` with a mask, what lies inside counts.
    method : {"none", "moments", "rigid", "affine", "structures"}
        ``none`` trusts the positions in the headers; ``moments`` shifts the centre of one foreground onto the
        other, for images whose origins mean nothing; ``rigid`` fits rotation and shift, for two scans of one person,
        and bone counts more where both are CT; ``affine`` fits twelve parameters, for images of two people.
        ``structures`` is the same here: what a model's predictor tells comes later
        (`regweave.registration.starts.structures`).

    Returns
    -------
    float array of shape (4, 4)
        Takes LPS millimetres of the fixed image to those of the moving image.

    Warns
    -----
    RegweaveWarning
        W210, where the affine fit is not to be believed and the result is that of ``moments``; W216, where a rigid fit
        is no better than the headers and these are used.

    Examples
    --------
    >>> from regweave.types import Geometry
    >>> image = Volume(np.zeros((4, 4, 4), dtype=np.float32), Geometry((4, 4, 4), np.eye(4)))
    >>> bool((initial_affine(image, image, "none") == np.eye(4)).all())
    True
    """
    if method not in METHODS:
        raise UsageError("E191", f"unknown initial alignment {method!r}", f"available: {', '.join(sorted(METHODS))}")
    return METHODS[method](fixed, moving)


def _none(fixed: Volume, moving: Volume) -> Float64Array:
    return np.eye(4)


def _moments(fixed: Volume, moving: Volume) -> Float64Array:
    return _centre_on_centre(*_windowed(fixed, moving))


def _affine(fixed: Volume, moving: Volume) -> Float64Array:
    windowed = _windowed(fixed, moving)
    start = affine = _centre_on_centre(*windowed)
    for resolution in RESOLUTIONS:
        step_mm = _extent_mm(fixed) / resolution
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


def _rigid(fixed: Volume, moving: Volume) -> Float64Array:
    """Fit from the headers and from the centres; the headers stay where a fit does not clearly gain on them."""
    windowed = _windowed(fixed, moving)
    bone = all(with_modality(image).modality == "ct" for image in (fixed, moving))
    steps_mm = [_extent_mm(fixed) / resolution for resolution in RESOLUTIONS]
    pyramid = [PyramidLevel(*(coarser(image, step, bone=bone) for image in windowed)) for step in steps_mm]
    headers, centres = np.eye(4), _centre_on_centre(*windowed)
    fits = [_fitted(pyramid, start) for start in (headers, centres)]
    cost, best = min(fits, key=lambda fit: fit[0])
    before = pyramid[-1].cost(headers)
    turned = float(np.degrees(np.arccos(np.clip((np.trace(best[:3, :3]) - 1.0) / 2.0, -1.0, 1.0))))
    if cost <= CLEAR_GAIN * before and turned <= MOST_TURNED_DEG:
        return best
    overlaps = bool(np.isfinite(before))
    if turned > MOST_TURNED_DEG or not overlaps:
        notices.warn(
            f"W216: rigid start rejected (cost {before:.4g} with the headers, {cost:.4g} fitted, turned by "
            f"{turned:.0f} degrees, allowed {MOST_TURNED_DEG:g}); {'headers' if overlaps else 'centres of mass'} are "
            "used instead: check that the images show the same body part in the same position"
        )
    return headers if overlaps else centres


def _fitted(pyramid: Sequence[PyramidLevel], start: Float64Array) -> tuple[float, Float64Array]:
    """Cost on the finest level, and the rigid map, of a fit from one start."""
    affine = start
    for resolution in pyramid:
        affine = resolution.fit(affine, rigid=True)
    return pyramid[-1].cost(affine), affine


METHODS: dict[str, Callable[[Volume, Volume], Float64Array]] = {
    "none": _none,
    "moments": _moments,
    "rigid": _rigid,
    "affine": _affine,
    STRUCTURES: _affine,
}


def _windowed(fixed: Volume, moving: Volume) -> tuple[Image, Image]:
    return _in_window(with_modality(fixed)), _in_window(with_modality(moving))


def _in_window(volume: Volume) -> Image:
    """Map the window of the image's own modality to [0, 1]."""
    assert volume.modality is not None
    modality = volume.modality
    found, mask = inside(volume), volume.mask if isinstance(volume, Image) else None
    low, high = default_window(volume.data if found is None else volume.data[found], modality)
    if high <= low:
        return Image(np.zeros_like(volume.data), volume.geometry, mask=mask)
    return Image(apply_window(extrapolated(volume), (low, high)), volume.geometry, mask=mask)


def _extent_mm(volume: Volume) -> float:
    return float((np.array(volume.geometry.shape) * volume.geometry.spacing_mm).max())


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
