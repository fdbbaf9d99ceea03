"""Conversion of coordinate frames to the one inside: LPS millimetres, orthonormal axes."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import damaged
from regweave.types import Float64Array, Geometry

LOGGER = logging.getLogger(__name__)

FRAMES = ("LPS", "RAS")
RAS_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])
KEPT_SHEAR_RAD = 1e-5
"""Below this the matrix is kept as it stands: single precision in the file explains the angle."""
SNAPPED_SHEAR_RAD = 1e-3
"""Below this the axes are made orthonormal: 0.5 mm at the end of a 500 mm axis."""

MAX_ANISOTROPY = 1e4
MIN_SPACING_MM, MAX_SPACING_MM = 1e-9, 1e6
MAX_ORIGIN_MM = 1e9


def ras_to_lps(affine: ArrayLike) -> Float64Array:
    """Turn an affine that ends in RAS millimetres into one that ends in LPS, or back.

    Examples
    --------
    >>> ras_to_lps(np.eye(4)).diagonal()
    array([-1., -1.,  1.,  1.])
    """
    return np.asarray(RAS_LPS @ affine_matrix(affine, "the array") + 0.0)


def affine_matrix(affine: ArrayLike, subject: str) -> Float64Array:
    """Return an affine as a matrix of shape (4, 4) whose last row is 0 0 0 1, or raise E102."""
    try:
        matrix = np.asarray(affine, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise damaged(subject, f"its affine is no matrix of numbers ({error})") from error
    problem = ""
    if matrix.shape != (4, 4):
        problem = f"its affine has shape {matrix.shape}, needed is (4, 4)"
    elif not np.isfinite(matrix).all():
        problem = "its affine holds non-finite numbers"
    elif (matrix[3] != (0, 0, 0, 1)).any():
        problem = f"the last row of its affine is {matrix[3].tolist()}, needed is [0, 0, 0, 1]"
    if problem:
        raise damaged(subject, problem)
    return matrix


def array_affine(affine: ArrayLike | None, spacing_mm: ArrayLike | None, frame: str) -> Float64Array:
    """Return the RAS affine of an array that a user places by an affine or by its spacing.

    Raises
    ------
    UsageError
        E108 where the array has no place, or two.
    """
    if frame not in FRAMES:
        raise UsageError("E108", f"frame is {frame!r}, allowed are {' and '.join(FRAMES)}", "name one of them")
    if (affine is None) == (spacing_mm is None):
        given = "neither affine nor spacing_mm" if affine is None else "both affine and spacing_mm"
        raise UsageError("E108", f"an array does not say where it lies, and {given} is given", "give one of them")
    if affine is None:
        spacing = np.asarray(spacing_mm, dtype=np.float64)
        if spacing.shape != (3,):
            raise UsageError("E108", f"spacing_mm has shape {spacing.shape}, needed is (3,)", "give three numbers")
        affine = np.diag([*spacing, 1.0])
    return ras_to_lps(affine) if frame == "LPS" else affine_matrix(affine, "the array")


def make_geometry(shape: tuple[int, ...], affine: ArrayLike, subject: str) -> Geometry:
    """Build a geometry with orthonormal axes from an index → LPS affine, or say why there is none.

    Axes that are skew by less than 1e-3 rad are replaced by the nearest orthonormal ones (polar
    decomposition); spacing and the centre of the volume stay where they were.

    Parameters
    ----------
    shape : tuple of three ints
    affine : array of shape (4, 4)
    subject : str
        How messages call the image.
    """
    matrix = affine_matrix(affine, subject)
    spacing = np.linalg.norm(matrix[:3, :3], axis=0)
    if (spacing <= 0).any() or abs(np.linalg.det(matrix[:3, :3] / spacing)) < 1e-6:
        message = f"{subject} has axes that do not span space: spacing {spacing.tolist()} mm"
        raise RegweaveError("E111", message, "repair the header; the matrix must be invertible")
    _require_measurable(spacing, matrix[:3, 3], subject)
    direction = matrix[:3, :3] / spacing
    angle = shear_angle(direction)
    if angle >= SNAPPED_SHEAR_RAD:
        message = (
            f"{subject} has skew axes: {np.degrees(angle):.4g}° away from a right angle, "
            f"not snapped (allowed: {np.degrees(SNAPPED_SHEAR_RAD):.2g}°)"
        )
        raise RegweaveError("E111", message, "resample the image onto a grid with perpendicular axes")
    size = (int(shape[0]), int(shape[1]), int(shape[2]))
    if angle < KEPT_SHEAR_RAD:
        return Geometry(size, matrix.copy())
    LOGGER.info("%s: axes snapped to right angles, they were off by %.3g rad", subject, angle)
    return Geometry(size, _snapped(size, matrix, spacing, direction))


def _require_measurable(spacing: Float64Array, origin: Float64Array, subject: str) -> None:
    """Raise E111 for lengths that no scanner makes, and that single precision or memory would not bear."""
    if spacing.max() > MAX_ANISOTROPY * spacing.min():
        message = f"{subject} has voxels of {spacing.tolist()} mm; sides may differ {MAX_ANISOTROPY:g} times at most"
    elif not (spacing.min() >= MIN_SPACING_MM and spacing.max() <= MAX_SPACING_MM):
        message = f"{subject} has a spacing of {spacing.tolist()} mm, allowed is {MIN_SPACING_MM} to {MAX_SPACING_MM:g}"
    elif np.abs(origin).max() > MAX_ORIGIN_MM:
        message = f"{subject} lies at {origin.tolist()} mm, allowed is {MAX_ORIGIN_MM:g} from the origin at most"
    else:
        return
    raise RegweaveError("E111", message, "repair the header; lengths are in millimetres unless it says otherwise")


def shear_angle(direction: Float64Array) -> float:
    """Return the largest deviation of two axes from a right angle, in radians."""
    cosines = direction.T @ direction
    return float(np.arcsin(min(1.0, np.abs(cosines[np.triu_indices(3, 1)]).max())))


def _snapped(
    shape: tuple[int, int, int], matrix: Float64Array, spacing: Float64Array, direction: Float64Array
) -> Float64Array:
    u, _, vt = np.linalg.svd(direction)  # polar decomposition: u·vt is the nearest orthonormal matrix
    centre = (np.asarray(shape) - 1) / 2
    result = np.eye(4)
    result[:3, :3] = (u @ vt) * spacing
    result[:3, 3] = matrix[:3, :3] @ centre + matrix[:3, 3] - result[:3, :3] @ centre
    return result


def itk_affine(image: Any) -> Float64Array:
    """Return the index → LPS affine of a 3-D SimpleITK image."""
    affine = np.eye(4)
    affine[:3, :3] = np.reshape(image.GetDirection(), (3, 3)) * np.asarray(image.GetSpacing())
    affine[:3, 3] = image.GetOrigin()
    return affine


def set_itk_geometry(image: Any, geometry: Geometry) -> None:
    """Place a SimpleITK image on a grid."""
    image.SetSpacing(geometry.spacing_mm.tolist())
    image.SetOrigin(geometry.origin_mm.tolist())
    image.SetDirection(geometry.direction.ravel().tolist())


def describe(geometry: Geometry) -> str:
    """Print a geometry in full precision, for messages in which two of them differ."""
    return (
        f"size {list(geometry.shape)}, origin {geometry.origin_mm.tolist()} mm LPS, "
        f"spacing {geometry.spacing_mm.tolist()} mm, direction {geometry.direction.tolist()}"
    )
