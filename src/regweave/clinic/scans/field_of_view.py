"""Field of view of a scan: the round part of its slices that was measured, and whether it cuts the patient."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave.types import Float64Array, Geometry, Volume

LEAST_PADDING = 0.05
"""A scan whose slices hold less padding than this share shows all that they cover."""
ROUND_PIXELS = 1.0
"""How far the rim of a field of view may lie from a circle, root mean square: patients are not as round."""
RIM_MM = 6.0
"""Values as near to the rim as this are not trusted."""
CUT_SHARE = 0.02
"""Share of the rim that shows the patient where the field of view cuts it."""


def field_of_view(image: Volume) -> NDArray[np.bool_] | None:
    """Find the circle outside of which all slices hold one and the same value: nothing was measured there.

    Parameters
    ----------
    image : Volume
        A scan as it was read; its last axis runs along the slices.

    Returns
    -------
    boolean array of shape (X, Y), or None
        Measured pixels; None where the slices are measured whole, or the padding is not round.

    Examples
    --------
    >>> x, y = np.indices((40, 40)) - 19.5
    >>> data = np.where((np.hypot(x, y) < 15)[..., None], x[..., None], -1000.0).repeat(3, axis=2).astype(np.float32)
    >>> seen = field_of_view(Volume(data, Geometry((40, 40, 3), np.eye(4)), "ct"))
    >>> bool(seen[20, 20]), bool(seen[1, 1])
    (True, False)
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
    """Tell whether the border of padding is part of a circle, by the circle that fits it best."""
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
    """Return the measured pixels that lie at least `RIM_MM` from the rim of the field of view."""
    return np.asarray(ndimage.distance_transform_edt(seen, sampling=spacing_mm[:2]) > RIM_MM)


def cuts_patient(seen: NDArray[np.bool_], body: NDArray[np.bool_], spacing_mm: Float64Array) -> bool:
    """Tell whether the patient reaches the rim of a field of view, both on one grid."""
    rim = seen & ~trusted(seen, spacing_mm)
    return bool(rim.any() and body[rim].mean() >= CUT_SHARE)
