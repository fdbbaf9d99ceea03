"""Transforms in memory: matrices and objects of SimpleITK, checked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.errors import RegweaveError, UsageError
from regweave.io.libraries import sitk
from regweave.io.readers import is_a
from regweave.io.transforms.displacement import component_first
from regweave.io.write import sitk_image
from regweave.types import Field, Float64Array, Geometry, Transform

LARGEST_DISPLACEMENT_MM = 1e5
LARGEST_SCALE, LARGEST_SHIFT_MM = 1e3, 1e7
"""Beyond these a matrix is an error of a program: a magnification of a thousand, a shift of a hundred kilometres."""
ANYWHERE = Geometry((2, 2, 2), np.eye(4))
"""Grid of the zero field of a linear transform that nobody gave a grid for; its value holds everywhere."""


def as_transform(source: Any, geometry: Geometry | None) -> Transform:
    """Take a (4, 4) matrix between LPS millimetres, a SimpleITK transform or a Transform.

    Parameters
    ----------
    source : object
    geometry : Geometry, optional
        Grid on which a transform that is not linear is sampled.

    Raises
    ------
    UsageError
        E115 for anything else.
    RegweaveError
        E115 a matrix that cannot be inverted, no grid to sample on, a transform that is not of three dimensions.
    """
    if isinstance(source, Transform):
        return source
    if is_a(source, "SimpleITK", "Transform"):
        return _from_sitk(source, geometry)
    if hasattr(source, "__array__") or isinstance(source, list | tuple):
        matrix = np.asarray(source, dtype=np.float64)
        if matrix.shape != (4, 4) or matrix[3].tolist() != [0, 0, 0, 1]:
            found = f"shape {matrix.shape}" if matrix.shape != (4, 4) else f"the last row {matrix[3].tolist()}"
            message = f"the matrix of a transform has {found}, needed are (4, 4) and the last row 0, 0, 0, 1"
            raise UsageError("E115", message, "give a matrix from fixed to moving LPS millimetres")
        return Transform(Field.zero(geometry or ANYWHERE), require_matrix(matrix, "the matrix"))
    message = f"cannot read a transform from an object of type {type(source).__module__}.{type(source).__qualname__}"
    raise UsageError("E115", message, "give a path, a (4, 4) matrix in LPS, a SimpleITK transform or a Transform")


def _from_sitk(source: Any, geometry: Geometry | None) -> Transform:
    if source.GetDimension() != 3:
        message = f"the SimpleITK transform has {source.GetDimension()} dimensions, needed are 3"
        raise RegweaveError("E115", message, "give a transform of volumes")
    if source.IsLinear():
        matrix = require_matrix(linear_matrix(source), "the matrix of the SimpleITK transform")
        return Transform(Field.zero(geometry or ANYWHERE), matrix)
    if geometry is None:
        message = "the SimpleITK transform is not linear and has no grid of its own"
        raise RegweaveError("E115", message, "name the geometry on which it is sampled")
    return Transform(sample(source, geometry, "the SimpleITK transform"))


def linear_matrix(transform: Any) -> Float64Array:
    """Return the (4, 4) matrix of a linear SimpleITK transform."""
    matrix = np.eye(4)
    origin = np.asarray(transform.TransformPoint((0.0, 0.0, 0.0)))
    if hasattr(transform, "GetMatrix"):
        matrix[:3, :3] = np.reshape(transform.GetMatrix(), (3, 3))
    else:
        matrix[:3, :3] = np.stack([np.asarray(transform.TransformPoint(e)) - origin for e in np.eye(3).tolist()], 1)
    matrix[:3, 3] = origin
    return matrix


def require_matrix(matrix: Float64Array, subject: str) -> Float64Array:
    """Return a matrix that can be inverted and that some image can mean, or raise E115."""
    if not np.isfinite(matrix).all() or abs(np.linalg.det(matrix)) < 1e-12:
        message = f"{subject} cannot be inverted or is not finite: {matrix.tolist()}"
        raise RegweaveError("E115", message, "give an invertible transform")
    if np.abs(matrix[:3, :3]).max() > LARGEST_SCALE or np.abs(matrix[:3, 3]).max() > LARGEST_SHIFT_MM:
        allowed = f"{LARGEST_SCALE:g} in its linear part and {LARGEST_SHIFT_MM:g} mm in its shift"
        message = f"{subject} is beyond physical sense: {matrix[:3].tolist()}, allowed are up to {allowed}"
        raise RegweaveError("E115", message, "compute the transform again")
    return matrix


def require_sense(vectors: NDArray[Any], geometry: Geometry, subject: str) -> None:
    """Refuse displacements that no image can mean: beyond a hundred metres and beyond the image."""
    longest = float(np.abs(vectors).max())
    allowed = max(LARGEST_DISPLACEMENT_MM, float((geometry.spacing_mm * geometry.shape).max()))
    if longest > allowed:
        message = f"{subject} holds displacements of {longest:.3g} mm, allowed are up to {allowed:.3g} mm"
        raise RegweaveError("E115", message, "compute the transform again")


def sample(transform: Any, geometry: Geometry, subject: str) -> Field:
    """Evaluate a SimpleITK transform at the voxels of a grid."""
    image = sitk.TransformToDisplacementField(
        transform,
        sitk.sitkVectorFloat64,
        list(geometry.shape),
        geometry.origin_mm.tolist(),
        geometry.spacing_mm.tolist(),
        geometry.direction.ravel().tolist(),
    )
    vectors = sitk.GetArrayViewFromImage(image)
    require_sense(vectors, geometry, subject)
    return Field(component_first(vectors, subject), geometry)


def sitk_transform(transform: Transform) -> Any:
    """Return the SimpleITK composite of affine and field; it applies the last one first, as `Transform` does."""
    affine = sitk.AffineTransform(3)
    affine.SetMatrix(transform.affine[:3, :3].ravel().tolist())
    affine.SetTranslation(transform.affine[:3, 3].tolist())
    field = transform.interpolated
    vectors = sitk_image(field.data.astype(np.float64), field.geometry)
    return sitk.CompositeTransform([affine, sitk.DisplacementFieldTransform(vectors)])
