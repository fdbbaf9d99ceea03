"""Spatial transforms in the files of ITK: what they say is what they are, fixed points to moving points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

from regweave.errors import RegweaveError, UsageError
from regweave.io import displacement
from regweave.io.atomic import atomic_path
from regweave.io.files import damaged, require_file, suffix_of
from regweave.io.geometry import itk_affine, make_geometry, set_itk_geometry
from regweave.io.grids import same_grid
from regweave.io.integrity import unreadable
from regweave.io.libraries import sitk
from regweave.io.transform_integrity import VERIFIERS
from regweave.types import Field, Float32Array, Float64Array, Geometry, Transform

WRITTEN_SUFFIXES = (".h5", ".hdf5", ".hdf", ".tfm", ".txt")
LINEAR_SUFFIXES = (*WRITTEN_SUFFIXES, ".mat")
ANYWHERE = Geometry((2, 2, 2), np.eye(4))
"""Grid of the zero field of a linear transform that nobody gave a grid for; its value holds everywhere."""


def write_transform(path: str | Path, transform: Transform) -> None:
    """Write an ITK composite of affine and displacement field, in this order always and both of them always.

    ITK applies the last one first: the field, then the affine, as `Transform` does.
    """
    field = sitk.GetImageFromArray(
        np.ascontiguousarray(transform.field.data.transpose(3, 2, 1, 0), dtype=np.float64), isVector=True
    )
    set_itk_geometry(field, transform.field.geometry)
    parts = [_itk_linear(transform.affine), sitk.DisplacementFieldTransform(field)]
    _write(path, sitk.CompositeTransform(parts), WRITTEN_SUFFIXES)


def write_linear(path: str | Path, matrix: Float64Array) -> None:
    """Write a (4, 4) matrix between LPS millimetres as an ITK affine transform."""
    _write(path, _itk_linear(matrix), LINEAR_SUFFIXES)


def read_transform(path: str | Path, geometry: Geometry | None = None) -> Transform:
    """Read any ITK transform or displacement field.

    Parameters
    ----------
    path : path
        .h5, .hdf5, .hdf, .tfm, .txt, .mat, or a displacement field as .nii, .nii.gz, .nrrd, .mha. A NIfTI
        field of intent 1007 is LPS, of intent 1006 RAS.
    geometry : Geometry, optional
        Grid for the field. Without it a field stays on its own grid, a linear transform gets a zero field
        that is valid everywhere, and any other transform is refused.

    Returns
    -------
    Transform
        An affine followed by one field, or a field alone, keeps its numbers unless `geometry` asks for
        another grid; any other nonlinear transform is sampled on `geometry`.
    """
    path = require_file(path)
    if suffix_of(path) in displacement.SUFFIXES:
        return Transform(_on_grid(displacement.read_displacement(path), geometry))
    itk = _read(path)
    parts = _flat(itk)
    if _linear(parts):
        return Transform(Field.zero(geometry or ANYWHERE), _matrix(parts, path))
    if parts[-1].GetName() == "DisplacementFieldTransform" and _linear(parts[:-1]):
        return Transform(_on_grid(_field(parts[-1], path), geometry), _matrix(parts[:-1], path))
    if geometry is None:
        message = f"'{path}' is a {itk.GetName()} and has no grid of its own"
        raise RegweaveError("E115", message, "name the image on whose grid it is sampled, --reference")
    return Transform(_sampled(itk, geometry, path))


def read_linear(path: str | Path) -> Float64Array:
    """Read a linear ITK transform as a (4, 4) matrix between LPS millimetres."""
    path = require_file(path)
    transform = _read(path)
    if not _linear(_flat(transform)):
        message = f"'{path}' is a {transform.GetName()}, needed is a linear transform"
        raise RegweaveError("E115", message, "give a rigid or affine transform")
    return _matrix(_flat(transform), path)


def total_displacement(transform: Transform) -> Field:
    """Return affine and field as one displacement on the grid of the field."""
    geometry = transform.field.geometry
    points = geometry.points(np.moveaxis(np.indices(geometry.shape, dtype=np.float64), 0, -1))
    moved = points + np.moveaxis(transform.field.data, 0, -1)
    moved = moved @ transform.affine[:3, :3].T + transform.affine[:3, 3]
    return Field(np.ascontiguousarray(np.moveaxis(moved - points, -1, 0), dtype=np.float32), geometry)


def _itk_linear(matrix: Float64Array) -> Any:
    transform = sitk.AffineTransform(3)
    transform.SetMatrix(np.asarray(matrix, dtype=np.float64)[:3, :3].ravel().tolist())
    transform.SetTranslation(np.asarray(matrix, dtype=np.float64)[:3, 3].tolist())
    return transform


def _write(path: str | Path, transform: Any, suffixes: tuple[str, ...]) -> None:
    path = Path(path)
    if suffix_of(path) not in suffixes:
        message = f"cannot write '{path}': the suffix must be one of {', '.join(suffixes)}"
        raise UsageError("E152", message, "choose one of these suffixes")
    with atomic_path(path) as part:
        try:
            sitk.WriteTransform(transform, str(part))
        except RuntimeError as error:
            message = f"cannot write '{path}': ITK refused"
            raise RegweaveError("E153", message, "check the folder and the free space") from error


def _read(path: Path) -> Any:
    subject, suffix = f"'{path}'", suffix_of(path)
    if suffix not in LINEAR_SUFFIXES:
        known = ", ".join((*LINEAR_SUFFIXES, *displacement.SUFFIXES))
        message = f"{subject} has the suffix '{suffix}', transforms are read from {known}"
        raise RegweaveError("E115", message, "convert the transform with the program that wrote it")
    VERIFIERS[suffix](path)
    try:
        transform = sitk.ReadTransform(str(path)).Downcast()
    except RuntimeError as error:
        raise unreadable(subject, error) from error
    if transform.GetDimension() != 3:
        message = f"{subject} is a transform in {transform.GetDimension()} dimensions, needed are 3"
        raise RegweaveError("E115", message, "give a 3-D transform")
    return transform


def _flat(transform: Any) -> list[Any]:
    """List the parts of a transform; the last is applied first."""
    if transform.GetName() != "CompositeTransform":
        return [transform]
    composite = sitk.CompositeTransform(transform)
    parts = [composite.GetNthTransform(n).Downcast() for n in range(composite.GetNumberOfTransforms())]
    return [leaf for part in parts for leaf in _flat(part)]


def _linear(parts: list[Any]) -> bool:
    return all(part.IsLinear() for part in parts)


def _matrix(parts: list[Any], path: Path) -> Float64Array:
    """Multiply linear parts into one matrix; the last is applied first."""
    matrix = np.eye(4)
    for part in parts:
        matrix = matrix @ _part_matrix(part)
    if not np.isfinite(matrix).all() or abs(np.linalg.det(matrix)) < 1e-12:
        message = f"the matrix of '{path}' cannot be inverted or is not finite: {matrix.tolist()}"
        raise RegweaveError("E115", message, "give an invertible transform")
    return matrix


def _part_matrix(part: Any) -> Float64Array:
    matrix = np.eye(4)
    origin = np.asarray(part.TransformPoint((0.0, 0.0, 0.0)))
    if hasattr(part, "GetMatrix"):
        matrix[:3, :3] = np.reshape(part.GetMatrix(), (3, 3))
    else:
        matrix[:3, :3] = np.stack([np.asarray(part.TransformPoint(e)) - origin for e in np.eye(3).tolist()], 1)
    matrix[:3, 3] = origin
    return matrix


def _field(transform: Any, path: Path) -> Field:
    image = sitk.DisplacementFieldTransform(transform).GetDisplacementField()
    if min(image.GetSize()) == 0:
        raise damaged(f"'{path}'", "its displacement field is cut off")
    data = displacement.component_first(sitk.GetArrayViewFromImage(image), f"'{path}'")
    return Field(data, make_geometry(image.GetSize(), itk_affine(image), f"'{path}'"))


def _on_grid(field: Field, geometry: Geometry | None) -> Field:
    """Put a field on a grid; beyond its own grid the nearest vector holds, as `Transform` says."""
    if geometry is None:
        return field
    if same_grid(geometry, field.geometry):
        return Field(field.data, geometry)
    step = np.linalg.solve(field.geometry.affine, geometry.affine)
    index = np.indices(geometry.shape, dtype=np.float64).reshape(3, -1)
    where = (step[:3, :3] @ index + step[:3, 3:]).reshape(3, *geometry.shape)
    parts = [ndimage.map_coordinates(part, where, order=1, mode="nearest") for part in field.data]
    return Field(np.stack(parts).astype(np.float32), geometry)


def _sampled(transform: Any, geometry: Geometry, path: Path) -> Field:
    image = sitk.TransformToDisplacementField(
        transform,
        sitk.sitkVectorFloat64,
        list(geometry.shape),
        geometry.origin_mm.tolist(),
        geometry.spacing_mm.tolist(),
        geometry.direction.ravel().tolist(),
    )
    data: Float32Array = displacement.component_first(sitk.GetArrayViewFromImage(image), f"'{path}'")
    return Field(data, geometry)
