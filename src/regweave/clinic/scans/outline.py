"""Patient outline of today, found in the scan and drawn on its slices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave.clinic.scans.patient import BODY_HU, tissue_values
from regweave.contours.outline import outlines
from regweave.io.dicom.values import Series
from regweave.spatial.warp import warp_labels
from regweave.types import Contour, Field, Float64Array, Geometry, LabelMap, Structure, Transform, Volume

FAR = 1000.0


def draw_outline(structure: Structure, today: Series, body: NDArray[np.bool_], grid: Geometry) -> Structure:
    """Draw the patient's outline where the scan falls below `BODY_HU`, to a fraction of a pixel.

    Parameters
    ----------
    structure : Structure
        Gives number, name, type and colour.
    today : Series
    body : boolean array
        The patient on ``grid``: tells it from the couch, and fills it.
    """
    image = tissue_values(today.image)
    known = warp_labels(LabelMap(body.astype(np.uint8), grid), Transform(Field.zero(image.geometry))).data != 0
    contours: list[Contour] = []
    step = today.grid.spacing_mm
    u, v = (np.arange(float(n)) * s for n, s in zip(today.grid.size, step, strict=True))
    for k, one in enumerate(today.slices):
        plane = _plane_of(image, one.position_mm)
        if plane is None or not known[..., plane].any():
            continue
        level = _level(image.data[..., plane], known[..., plane])
        for ring in outlines(level.T, u, v):
            points = one.position_mm + np.outer(ring[:, 0], today.grid.row) + np.outer(ring[:, 1], today.grid.column)
            contours.append(Contour(points, image=k))
    return replace(structure, contours=tuple(contours))


def _plane_of(image: Volume, position_mm: Float64Array) -> int | None:
    """Plane of the even grid that is nearest to a slice."""
    back = np.linalg.inv(image.geometry.affine)
    k = round(float((back @ [*position_mm, 1.0])[2]))
    return k if 0 <= k < image.geometry.shape[2] else None


def _level(plane: NDArray[np.float32], inside: NDArray[np.bool_]) -> Float64Array:
    """Negative inside the patient; its zero lies where the skin's edge falls below the limit."""
    core = ndimage.binary_erosion(inside, iterations=2, border_value=1)
    near = ndimage.binary_dilation(inside, iterations=2)
    level = BODY_HU - plane.astype(np.float64)
    return np.asarray(np.where(core, -FAR, np.where(near, level, FAR)))
