"""Parametric transforms as lists of numbers, and the check that a list fits its transform.

ITK trusts the lists of a file: of a rigid transform with three numbers it reads six, and it allocates the grid of a
B-spline before it looks whether the coefficients are there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import damaged
from regweave.io.geometry import make_geometry, set_itk_geometry
from regweave.io.libraries import sitk
from regweave.io.memory import classes_of
from regweave.io.stored import nonfinite_error
from regweave.io.write import sitk_image
from regweave.types import Field, Float32Array, Float64Array, Geometry, Transform

TYPE_NAME = re.compile(r"([A-Za-z][A-Za-z0-9]{0,79})_(float|double)_(\d)_(\d)(?:_(\d))?")
COMPOSITE, FIELD, SPLINE = "CompositeTransform", "DisplacementFieldTransform", "BSplineTransform"
GRID_NUMBERS = 18
"""Size, origin, spacing and direction of a grid, as ITK lists them."""
SPLINE_ORDER = 3
LARGEST_GRID = 1 << 31
"""Most nodes of a grid: what ITK counts in 32 bits on some machines."""
SHOWN_NAME = 60


@dataclass(frozen=True)
class Linear:
    """A linear transform: what makes it in SimpleITK, and how many numbers it has."""

    make: Callable[[], Any]
    parameters: int
    fixed: tuple[int, ...] = (3,)


def _generic(kind: int) -> Callable[[], Any]:
    return lambda: sitk.Transform(3, kind)


LINEAR = {
    "IdentityTransform": Linear(_generic(sitk.sitkIdentity), 0, (0,)),
    "TranslationTransform": Linear(lambda: sitk.TranslationTransform(3), 3, (0,)),
    "ScaleTransform": Linear(lambda: sitk.ScaleTransform(3), 3),
    "ScaleLogarithmicTransform": Linear(_generic(sitk.sitkScaleLogarithmic), 3),
    "VersorTransform": Linear(sitk.VersorTransform, 3),
    "Euler3DTransform": Linear(sitk.Euler3DTransform, 6, (3, 4)),
    "VersorRigid3DTransform": Linear(sitk.VersorRigid3DTransform, 6),
    "QuaternionRigidTransform": Linear(_generic(sitk.sitkQuaternionRigid), 7),
    "Similarity3DTransform": Linear(sitk.Similarity3DTransform, 7),
    "ScaleVersor3DTransform": Linear(sitk.ScaleVersor3DTransform, 9),
    "ComposeScaleSkewVersor3DTransform": Linear(sitk.ComposeScaleSkewVersor3DTransform, 12),
    "ScaleSkewVersor3DTransform": Linear(sitk.ScaleSkewVersor3DTransform, 15),
    "AffineTransform": Linear(lambda: sitk.AffineTransform(3), 12),
    "MatrixOffsetTransformBase": Linear(lambda: sitk.AffineTransform(3), 12),
}


@dataclass(frozen=True)
class Part:
    """One transform of a file: the name of its type as ITK writes it, its parameters, its fixed parameters."""

    type_name: str
    parameters: NDArray[Any]
    fixed: Float64Array


@dataclass(frozen=True)
class Checked:
    """A transform whose numbers fit it: its kind, the numbers, and the grid they stand on where it has one."""

    kind: str
    parameters: NDArray[Any]
    fixed: Float64Array
    grid: Geometry | None = None
    order: int = SPLINE_ORDER

    @property
    def is_linear(self) -> bool:
        """Whether a matrix says it all."""
        return self.kind in LINEAR

    def to_itk(self) -> Any:
        """Make the transform in SimpleITK."""
        if self.kind in LINEAR:
            transform = LINEAR[self.kind].make()
        elif self.grid is not None and self.kind == FIELD:
            return sitk.DisplacementFieldTransform(self._vector_image(self.grid))
        else:
            transform = sitk.BSplineTransform(3, self.order)
        transform.SetFixedParameters(self.fixed.tolist())
        transform.SetParameters(self.parameters.astype(np.float64).tolist())
        return transform

    def vectors(self) -> NDArray[Any]:
        """Parameters of a displacement field as ITK's array (Z, Y, X, 3)."""
        x, y, z = (int(n) for n in self.fixed[:3])
        return self.parameters.reshape(z, y, x, 3)

    def _vector_image(self, grid: Geometry) -> Any:
        image = sitk.GetImageFromArray(self.vectors().astype(np.float64), isVector=True)
        set_itk_geometry(image, grid)
        return image


def check_parts(parts: Sequence[Part], subject: str) -> list[Checked]:
    """Check the transforms of a file, the last applied first, or raise E102 or E115.

    Several transforms must stand in a composite, whose head has no numbers of its own and comes first.
    """
    if not parts:
        raise damaged(subject, "no ITK transform in it")
    if _kind(parts[0], subject)[0] == COMPOSITE:
        if parts[0].parameters.size or parts[0].fixed.size or len(parts) == 1:
            raise damaged(subject, "its composite has numbers of its own, or no parts")
        parts = parts[1:]
    elif len(parts) > 1:
        message = f"{subject} holds {len(parts)} transforms that no composite joins"
        raise RegweaveError("E115", message, "write one transform, or one composite")
    return [_check(part, subject) for part in parts]


def grid_of(numbers: Float64Array, subject: str, least: int = 1) -> Geometry:
    """Make the geometry that 18 fixed parameters list: size, origin, spacing, direction."""
    size, spacing = numbers[:3], numbers[6:9]
    whole = bool((size == np.rint(size)).all() and (size >= least).all())
    if not whole or math.prod(size.tolist()) > LARGEST_GRID:
        raise damaged(subject, f"its grid has the size {size.tolist()}, needed are whole numbers from {least} up")
    if not (spacing > 0).all():
        raise damaged(subject, f"its grid has the spacing {spacing.tolist()} mm, needed are positive numbers")
    affine = np.eye(4)
    affine[:3, :3] = numbers[9:].reshape(3, 3) * spacing
    affine[:3, 3] = numbers[3:6]
    return make_geometry((int(size[0]), int(size[1]), int(size[2])), affine, subject)


def _kind(part: Part, subject: str) -> tuple[str, int]:
    """Name and spline order of a type, or an error where it is unknown or not in three dimensions."""
    match = TYPE_NAME.fullmatch(part.type_name)
    if match is None:
        raise damaged(subject, f"{part.type_name[:SHOWN_NAME]!r} is no type of a transform")
    kind, _, *dimensions, order = match.groups()
    if dimensions != ["3", "3"]:
        message = f"{subject} is a transform in {dimensions[0]} dimensions, needed are 3"
        raise RegweaveError("E115", message, "give a 3-D transform")
    if kind not in {*LINEAR, COMPOSITE, FIELD, SPLINE} or (order is not None and kind != SPLINE):
        known = ", ".join([*LINEAR, SPLINE, FIELD, COMPOSITE])
        message = f"{subject} holds a {part.type_name[:SHOWN_NAME]}, known are {known}"
        raise RegweaveError("E115", message, "convert it to an affine or a displacement field where it was made")
    return kind, SPLINE_ORDER if order is None else int(order)


def _check(part: Part, subject: str) -> Checked:
    kind, order = _kind(part, subject)
    if kind == COMPOSITE:
        raise damaged(subject, "a composite stands inside of it; only the first transform may be one")
    if not np.isfinite(part.fixed).all():
        raise damaged(subject, f"a fixed parameter of its {kind} is not finite")
    if kind in LINEAR:
        allowed = LINEAR[kind]
        _require_count(kind, "parameters", part.parameters.size, (allowed.parameters,), subject)
        _require_count(kind, "fixed parameters", part.fixed.size, allowed.fixed, subject)
        grid = None
    else:
        if not 0 <= order <= SPLINE_ORDER:
            raise damaged(subject, f"its B-spline has the order {order}, allowed is 0 to {SPLINE_ORDER}")
        _require_count(kind, "fixed parameters", part.fixed.size, (GRID_NUMBERS,), subject)
        grid = grid_of(part.fixed, subject, order + 1 if kind == SPLINE else 1)
        _require_count(kind, "parameters", part.parameters.size, (3 * int(np.prod(part.fixed[:3])),), subject)
    if not np.isfinite(part.parameters).all():
        message = f"a parameter of the {kind} in {subject} is not finite"
        raise RegweaveError("E104", message, "compute the transform again")
    return Checked(kind, part.parameters, part.fixed, grid, order)


def _require_count(kind: str, what: str, found: int, allowed: tuple[int, ...], subject: str) -> None:
    if found not in allowed:
        expected = " or ".join(map(str, allowed))
        raise damaged(subject, f"{expected} {what} expected of its {kind}, {found} found")


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
    if "SimpleITK.Transform" in classes_of(source):
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


def component_first(vectors: NDArray[Any], subject: str) -> Float32Array:
    """Turn ITK's (Z, Y, X, 3) into (3, X, Y, Z), refusing non-finite numbers with E104."""
    data = np.array(vectors.transpose(3, 2, 1, 0), dtype=np.float32, order="C")
    error = nonfinite_error(data, subject)
    if error is not None:
        raise RegweaveError(error.code, error.message, "compute the transform again")
    return data


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
