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

from regweave.errors import RegweaveError
from regweave.io.disk.files import damaged
from regweave.io.geometry import make_geometry, set_itk_geometry
from regweave.io.libraries import sitk
from regweave.types import Float64Array, Geometry

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
