"""Coordinate frame of an NRRD image: ``space`` names it, directions and origin place the axes in it.

Without ``space``, or with one that names a handedness or a scanner only, left and right are not stated: the axes are
taken as LPS, as ITK does, with warning W207.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regweave import notices
from regweave.errors import RegweaveError
from regweave.io.formats.headers.fields import Fields, contradiction
from regweave.io.formats.headers.nrrd_fields import numbers_or_nan, vectors, words
from regweave.types import Float64Array

SIGNS = {
    "right-anterior-superior": (-1.0, -1.0, 1.0),
    "ras": (-1.0, -1.0, 1.0),
    "left-anterior-superior": (1.0, -1.0, 1.0),
    "las": (1.0, -1.0, 1.0),
    "left-posterior-superior": (1.0, 1.0, 1.0),
    "lps": (1.0, 1.0, 1.0),
}
"""What takes the axes of a space to LPS."""
UNNAMED = {"scanner-xyz", "3d-right-handed", "3d-left-handed"}
TIMED = {f"{name}{'t' if len(name) == 3 else '-time'}" for name in (*SIGNS, *UNNAMED)}
UNIT_MM = {
    "": 1.0, "???": 1.0, "mm": 1.0, "millimeter": 1.0, "millimeters": 1.0, "millimetre": 1.0, "millimetres": 1.0,
    "cm": 10.0, "m": 1e3, "meter": 1e3, "meters": 1e3, "metre": 1e3, "metres": 1e3, "um": 1e-3, "µm": 1e-3,
    "micron": 1e-3, "microns": 1e-3, "micrometer": 1e-3, "micrometers": 1e-3, "nm": 1e-6,
}  # fmt: skip
SAME_SPACING = 0.01


@dataclass(frozen=True)
class Space:
    """The frame that a header names.

    ``signs`` takes it to LPS, None where it does not say where left is; ``vectors_lps`` tells whether components of
    vectors can be taken as they stand.
    """

    name: str
    dimension: int
    signs: tuple[float, float, float] | None
    vectors_lps: bool


def find_space(fields: Fields) -> Space:
    """Read which frame the header names, in words or by its dimension alone."""
    if "space" in fields.values and "space dimension" in fields.values:
        raise contradiction(fields.subject, "space and space dimension exclude each other")
    name = fields.values.get("space", "").lower()
    dimension = fields.whole_number("space dimension", 3)
    if name in TIMED:
        message = f"{fields.subject} lies in a space with time ({name}), needed are three dimensions"
        raise RegweaveError("E103", message, "split the series and pass one volume")
    if name and name not in SIGNS and name not in UNNAMED:
        raise fields.bad("space", f"one of {', '.join([*SIGNS, *sorted(UNNAMED)])}")
    if not 1 <= dimension <= 16:
        raise fields.bad("space dimension", "1 to 16")
    signs = SIGNS.get(name)
    lps = signs in {None, SIGNS["lps"]} and _frame_is_identity(fields, dimension)
    return Space(name, dimension, signs, lps)


def _frame_is_identity(fields: Fields, dimension: int) -> bool:
    if "measurement frame" not in fields.values:
        return True
    frame = vectors(fields, "measurement frame", dimension, dimension)
    return None in frame or np.allclose(np.array(frame, dtype=np.float64), np.eye(dimension), atol=1e-3)


def is_spatial(fields: Fields, n_axes: int) -> list[bool] | None:
    """Tell which axes have a direction in space; None where the header gives no directions."""
    if "space directions" not in fields.values:
        return None
    dimension = fields.whole_number("space dimension", 3)
    return [v is not None for v in vectors(fields, "space directions", n_axes, dimension)]


def find_affine(fields: Fields, space: Space, kept: list[int], n_axes: int) -> Float64Array:
    """Return the map from indices of the first three image axes to LPS millimetres."""
    if "space directions" in fields.values:
        affine = _by_directions(fields, space, kept, n_axes)
    else:
        if "space origin" in fields.values or space.name:
            raise contradiction(fields.subject, "it names a space or an origin there, and no space directions")
        affine = _by_spacings(fields, kept, n_axes)
    if space.signs is None:
        stated = f"its space is '{space.name}'" if space.name else "no space is named"
        notices.warn(f"W207: {fields.subject} does not say where left is ({stated}); LPS axes are used")
    scale = np.array(space.signs or (1.0, 1.0, 1.0)) * _unit_mm(fields, space, kept, n_axes)
    return np.diag([*scale, 1.0]) @ affine


def _by_directions(fields: Fields, space: Space, kept: list[int], n_axes: int) -> Float64Array:
    directions = vectors(fields, "space directions", n_axes, space.dimension)
    steps = np.array([directions[axis] for axis in kept[:3]], dtype=np.float64)
    origin = np.zeros(space.dimension)
    if "space origin" in fields.values:
        found = vectors(fields, "space origin", 1, space.dimension)[0]
        origin = origin if found is None else np.array(found)
    else:
        notices.warn(f"W207: {fields.subject} does not say where it is (no space origin); origin 0 is used")
    if space.dimension < 3 or np.abs(steps[:, 3:]).max(initial=0.0) > 0:
        message = f"{fields.subject} has axes in {space.dimension} dimensions of space, needed are 3"
        raise RegweaveError("E103", message, "write the volume in a space of three dimensions")
    _require_spacings(fields, steps, kept, n_axes)
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = steps[:, :3].T, origin[:3]
    return affine


def _require_spacings(fields: Fields, steps: Float64Array, kept: list[int], n_axes: int) -> None:
    """Refuse spacings that are not the lengths of the directions."""
    if "spacings" not in fields.values:
        return
    spacings = numbers_or_nan(fields, "spacings", n_axes)
    for axis, length in zip(kept[:3], np.linalg.norm(steps, axis=1), strict=True):
        stated = spacings[axis]
        if stated is not None and abs(stated - length) > SAME_SPACING * length:
            reason = f"spacing {stated:g} of axis {axis}, and a direction of length {length:g}"
            raise contradiction(fields.subject, reason)


def _by_spacings(fields: Fields, kept: list[int], n_axes: int) -> Float64Array:
    """Place the axes by spacings and axis mins, as in files from before there was a space."""
    stated = numbers_or_nan(fields, "spacings", n_axes) if "spacings" in fields.values else [None] * n_axes
    spacings = [1.0 if stated[axis] is None else abs(float(stated[axis] or 0.0)) for axis in kept[:3]]
    if "axis maxs" in fields.values or ("axis mins" in fields.values and "spacings" not in fields.values):
        message = f"{fields.subject} is placed by axis mins and maxs, which programs read in different ways"
        raise RegweaveError("E103", message, "write it with space directions and space origin")
    mins = numbers_or_nan(fields, "axis mins", n_axes) if "axis mins" in fields.values else [None] * n_axes
    cells = words(fields, "centerings", n_axes) if "centerings" in fields.values else ["cell"] * n_axes
    affine = np.diag([*spacings, 1.0])
    for row, axis in enumerate(kept[:3]):
        first = mins[axis]
        if first is not None:
            affine[row, 3] = first + (0.0 if cells[axis] == "node" else spacings[row] / 2)
    return affine


def _unit_mm(fields: Fields, space: Space, kept: list[int], n_axes: int) -> Float64Array:
    """Return what takes the unit of each axis to millimetres: of the space, or of the axes where there is no space."""
    in_space = "space directions" in fields.values
    key = "space units" if in_space else "units"
    if in_space and "units" in fields.values:
        names = words(fields, "units", n_axes)
        if any(UNIT_MM.get(names[axis]) != 1.0 for axis in kept[:3]):
            raise contradiction(fields.subject, "units of axes that lie in a space, which has units of its own")
    if key not in fields.values:
        return np.ones(3)
    names = words(fields, key, space.dimension if in_space else n_axes)
    units = [UNIT_MM.get(names[axis]) for axis in (range(3) if in_space else kept[:3])]
    if None in units:
        raise fields.bad(key, "mm, um, cm or m for each axis")
    return np.array(units, dtype=np.float64)
