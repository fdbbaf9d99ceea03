"""Patient outline in a CT: the body without couch, mask and air, slice by slice."""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave import notices
from regweave.types import Float32Array, Float64Array, Geometry, LabelMap, Volume

BODY_HU = -300.0  # Voxels above this are no air: skin, fat and everything denser, and boards and couches too
AIR_HU = -1000.0
METAL_HU = 4000.0
LEAST_OVERFLOW = 0.02
OVERFLOWN_HU = -400.0  # Value of overflown numbers: air by `BODY_HU`, yet speckled soft tissue averages to body
THIN_MM = 5.0  # What is thinner than this in a slice, a couch's shell or a thermoplastic mask, is no body
LEAST_SHARE = 0.05  # Parts smaller than this share of the largest, a couch's rail, are no body; arms are larger
LEAST_BODY = 0.02  # A patient fills at least this share of the scan, or what was found is none
END_MM = 15.0  # Depth at either end of a scan where air beside the body may be a gap of the scan rather than air


def tissue_values(image: Volume) -> Volume:
    """Return a CT with values of tissue: padding becomes air, and so do overflown numbers (W217).

    Scanners fill the region beyond their field of view with -2000 or less. Some exports write negative values as the
    largest number of their type; many voxels above any metal are therefore taken as air.
    """
    data = np.maximum(image.data, np.float32(AIR_HU))
    overflown = data > METAL_HU
    share = float(overflown.mean())
    if share > LEAST_OVERFLOW:
        notices.warn(
            f"W217: {share:.0%} of the voxels of a CT are above {METAL_HU:g} HU, which no tissue or metal is: its "
            "negative values seem to have overflown; they are taken as air. Export the series again if you can"
        )
        data[overflown] = OVERFLOWN_HU
    return Volume(data, image.geometry, image.modality)


def patient_mask(image: Volume) -> NDArray[np.bool_] | None:
    """Segment the patient in a CT whose last axis runs along the slices, without couch, mask and other supports.

    Filled in each slice, so lungs and windpipe are inside; None if there is no body.
    """
    dense = image.data > BODY_HU
    ball = _disc(image.geometry, THIN_MM / 2.0)
    # A body that touches the border of a slice must not be worn away there.
    core = ndimage.binary_erosion(dense, ball, border_value=1)
    core = ndimage.binary_dilation(core, ball)
    parts, count = ndimage.label(core)
    if count == 0:
        return None
    sizes = np.bincount(parts.ravel())[1:]
    kept = np.flatnonzero(sizes >= LEAST_SHARE * sizes.max()) + 1
    body = np.isin(parts, kept) if len(kept) < count else core
    body = np.stack([ndimage.binary_fill_holes(body[..., k]) for k in range(body.shape[2])], axis=2)
    return body if body.mean() >= LEAST_BODY else None


def without_couch(image: Volume, body: NDArray[np.bool_]) -> Volume:
    """Return a CT with air outside the patient, so that only the patient is registered."""
    near = ndimage.binary_dilation(body, _disc(image.geometry, float(image.geometry.spacing_mm[:2].max())))
    data: Float32Array = np.where(near, image.data, np.float32(AIR_HU)).astype(np.float32, copy=False)
    return Volume(data, image.geometry, image.modality)


def trusted_region(image: Volume, body: NDArray[np.bool_]) -> LabelMap | None:
    """Mask out air at the ends of a scan where the body is cut off; None if nothing is masked.

    Where a column along the slices holds body, and air from there to the end of the scan, the scan may simply end
    inside the patient: resampled series have such gaps. Air within `END_MM` of the end is therefore not compared.
    """
    planes = max(1, round(END_MM / float(image.geometry.spacing_mm[2])))
    planes = min(planes, body.shape[2] // 2)
    holds: NDArray[np.bool_] = np.asarray(body.any(axis=2))
    gap = np.zeros(body.shape, dtype=bool)
    for flip in (False, True):
        seen = body[..., ::-1] if flip else body
        shown = gap[..., ::-1] if flip else gap
        below = ~np.logical_or.accumulate(seen, axis=2)[..., :planes]
        shown[..., :planes] |= below & holds[..., None]
    if not gap.any():
        return None
    return LabelMap((~gap).astype(np.uint8), image.geometry)


def _disc(geometry: Geometry, radius_mm: float) -> NDArray[np.bool_]:
    """In-plane disc as a structuring element; at least its centre and four neighbours."""
    spacing = geometry.spacing_mm[:2]
    reach = [max(1, int(radius_mm / s)) for s in spacing]
    x, y = np.meshgrid(*(np.arange(-r, r + 1) * s for r, s in zip(reach, spacing, strict=True)), indexing="ij")
    radius = max(radius_mm, float(spacing.max()))
    disc: NDArray[np.bool_] = np.hypot(x, y)[..., None] <= radius + 1e-6
    return disc


LEAST_PADDING = 0.05  # A scan whose slices hold less padding than this share shows all that they cover
ROUND_PIXELS = 1.0
"""How far the rim of a field of view may lie from a circle, root mean square: patients are not as round."""
RIM_MM = 6.0  # Values nearer to the rim than this are ignored
CUT_SHARE = 0.02  # Share of the rim that shows the patient where the field of view cuts it


def field_of_view(image: Volume) -> NDArray[np.bool_] | None:
    """Find the circle outside of which all slices hold one and the same value, where nothing was measured.

    Returns the measured pixels (X, Y); None if the slices are measured whole, or the padding is not round.
    """
    data, padding = image.data, image.data[0, 0, 0]
    same = (data[..., 0] == padding) & (data[..., -1] == padding)
    if same.mean() < LEAST_PADDING:
        return None
    same &= (data == padding).all(axis=2)
    parts, _ = ndimage.label(same)
    corners = {int(parts[x, y]) for x in (0, -1) for y in (0, -1)} - {0}
    outside = np.isin(parts, list(corners))
    if outside.mean() < LEAST_PADDING or outside.all() or not _round(outside, image.geometry):
        return None
    return np.asarray(~outside)


def _round(outside: NDArray[np.bool_], geometry: Geometry) -> bool:
    """Whether the border of padding is part of a circle, by the best-fitting circle."""
    spacing = geometry.spacing_mm[:2]
    rim = outside & ndimage.binary_dilation(~outside)
    points = np.argwhere(rim) * spacing
    middle = points.mean(axis=0)
    x, y = (points - middle).T
    found: Float64Array = np.linalg.lstsq(np.stack([x, y, np.ones_like(x)], axis=1), x**2 + y**2, rcond=None)[0]
    centre, radius = found[:2] / 2, np.sqrt(max(found[2] + (found[:2] ** 2).sum() / 4, 0.0))
    off = np.hypot(x - centre[0], y - centre[1]) - radius
    return bool(np.sqrt((off**2).mean()) <= ROUND_PIXELS * spacing.max())


def trusted(seen: NDArray[np.bool_], spacing_mm: Float64Array) -> NDArray[np.bool_]:
    """Return the measured pixels at least `RIM_MM` from the rim of the field of view."""
    return np.asarray(ndimage.distance_transform_edt(seen, sampling=spacing_mm[:2]) > RIM_MM)


def cuts_patient(seen: NDArray[np.bool_], body: NDArray[np.bool_], spacing_mm: Float64Array) -> bool:
    """Whether the patient extends to the rim of a field of view, both on one grid."""
    rim = seen & ~trusted(seen, spacing_mm)
    return bool(rim.any() and body[rim].mean() >= CUT_SHARE)
