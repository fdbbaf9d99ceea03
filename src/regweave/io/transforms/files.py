"""Transform files of ITK, in ITK's convention: fixed points to moving points."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regweave.errors import RegweaveError, UsageError
from regweave.io.dicom.reg import DicomRegistration, read_reg
from regweave.io.disk.files import require_file, suffix_of
from regweave.io.disk.outputs import atomic_path
from regweave.io.grids import same_grid
from regweave.io.libraries import sitk
from regweave.io.transforms import displacement, memory
from regweave.io.transforms.displacement_ends import read_displacement_ends
from regweave.io.transforms.ends import ends_of, from_line, notes_of, to_line
from regweave.io.transforms.itk.field_list import FieldList, FieldPart
from regweave.io.transforms.itk.hdf import read_hdf
from regweave.io.transforms.itk.hdf_write import to_hdf, verify_numbers
from regweave.io.transforms.itk.matlab import read_matlab, to_matlab
from regweave.io.transforms.itk.parts import COMPOSITE, FIELD, Checked, Part, check_parts
from regweave.io.transforms.itk.text import read_text, to_text
from regweave.kernels import fields
from regweave.types import Ends, Field, Float64Array, Geometry, Transform

DICOM_SUFFIXES = (".dcm", ".dicom", ".ima")
HDF_SUFFIXES = (".h5", ".hdf5", ".hdf")
WRITTEN_SUFFIXES = (*HDF_SUFFIXES, ".tfm", ".txt")
LINEAR_SUFFIXES = (*WRITTEN_SUFFIXES, ".mat")
DOUBLE = "_double_3_3"


def write_transform(path: str | Path, transform: Transform) -> None:
    """Write an ITK composite of affine and displacement field, in this order always and both of them always.

    ITK applies the last one first: the field, then the affine, as `Transform` does. The field is that of the knots
    where there are any. HDF5 files are compressed; the vectors of a field of more than half a million voxels are
    rounded, by at most 0.0005 mm, or 0.0099 mm above three million voxels. The ends of the transform stand in the file.
    """
    field = transform.interpolated
    vectors = FieldList(field, exact=suffix_of(Path(path)) not in HDF_SUFFIXES)
    parts: list[Part | FieldPart] = [
        Part(COMPOSITE + DOUBLE, np.empty(0), np.empty(0)),
        _linear_part(transform.affine),
        FieldPart(FIELD + DOUBLE, vectors, _grid_numbers(field.geometry)),
    ]
    _write(path, parts, WRITTEN_SUFFIXES, transform.ends)


def write_linear(path: str | Path, matrix: Float64Array, ends: Ends | None = None) -> None:
    """Write a (4, 4) matrix between LPS millimetres as an ITK affine transform; .mat has no room for the ends."""
    _write(path, [_linear_part(matrix)], LINEAR_SUFFIXES, ends)


def read_transform(source: Any, geometry: Geometry | None = None, *, follow_links: bool = False) -> Transform:
    """Read any ITK transform or displacement field, from a file or from memory.

    Parameters
    ----------
    source : path or object
        .h5, .hdf5, .hdf, .tfm, .txt, .mat, a DICOM registration (.dcm), or a displacement field as .nii, .nii.gz,
        .nrrd, .mha. A NIfTI field of intent 1007 is LPS, of intent 1006 RAS. In memory a SimpleITK transform, a (4, 4)
        matrix between LPS millimetres, or a Transform.
    geometry : Geometry, optional
        Grid for the field. Without it a field stays on its own grid, a linear transform gets a zero field
        that is valid everywhere, and any other transform is refused.
    follow_links : bool
        Let the header of a displacement field name a file outside of its own folder.

    Returns
    -------
    Transform
        An affine followed by one field, or a field alone, keeps its numbers unless `geometry` asks for
        another grid; its own field is then kept as the knots. Any other nonlinear transform is sampled on `geometry`.
        Its ends are None where the file does not tell them.
    """
    if not isinstance(source, str | os.PathLike):
        return _on_grid(memory.as_transform(source, geometry), geometry)
    path = require_file(Path(source))
    if suffix_of(path) in displacement.SUFFIXES:
        field = displacement.read_displacement(path, follow_links=follow_links)
        memory.require_sense(field.data, field.geometry, f"'{path}'")
        return _on_grid(Transform(field, ends=read_displacement_ends(path)), geometry)
    if suffix_of(path) in DICOM_SUFFIXES:
        return _of_registration(read_reg(path), geometry)
    parts, ends = _read(path)
    if all(part.is_linear for part in parts):
        return Transform(Field.zero(geometry or memory.ANYWHERE), _matrix(parts, path), ends)
    *outer, inner = parts
    if inner.kind == FIELD and inner.grid is not None and all(part.is_linear for part in outer):
        memory.require_sense(inner.parameters, inner.grid, f"'{path}'")  # before the numbers become single precision
        field = Field(displacement.component_first(inner.vectors(), f"'{path}'"), inner.grid)
        return _on_grid(Transform(field, _matrix(outer, path), ends), geometry)
    if geometry is None:
        message = f"'{path}' is a {' and '.join(part.kind for part in parts)} and has no grid of its own"
        raise RegweaveError("E115", message, "name the image on whose grid it is sampled, --reference")
    whole = sitk.CompositeTransform([part.to_itk() for part in parts])
    return Transform(memory.sample(whole, geometry, f"'{path}'"), ends=ends)


def _of_registration(found: DicomRegistration, geometry: Geometry | None) -> Transform:
    if found.linear:
        return Transform(Field.zero(geometry or memory.ANYWHERE), found.transform.affine)
    return _on_grid(found.transform, geometry)


def read_linear(path: str | Path) -> Float64Array:
    """Read a linear ITK transform as a (4, 4) matrix between LPS millimetres."""
    path = require_file(path)
    if suffix_of(path) in DICOM_SUFFIXES:
        registration = read_reg(path)
        if registration.linear:
            return registration.transform.affine
        message = f"'{path}' is a deformable registration, needed is a linear transform"
        raise RegweaveError("E115", message, "give a rigid or affine transform")
    parts, _ = _read(path)
    if not all(part.is_linear for part in parts):
        message = f"'{path}' is a {' and '.join(part.kind for part in parts)}, needed is a linear transform"
        raise RegweaveError("E115", message, "give a rigid or affine transform")
    return _matrix(parts, path)


def total_displacement(transform: Transform) -> Field:
    """Return affine and field as one displacement on the grid of the field."""
    return _total(transform.field, transform.affine)


def smallest_displacement(transform: Transform) -> Field:
    """Return affine and field as one displacement whose trilinear interpolation is the whole map.

    It lies on the grid of the knots where there are any, with one more node at each end: between the last voxel and the
    end of the fixed image the knots are constant, which the affine part of the displacement is not.
    """
    if transform.knots is None:
        return total_displacement(transform)
    inner = transform.knots.geometry
    affine = inner.affine.copy()
    affine[:3, 3] = inner.points(np.full(3, -1.0))
    x, y, z = (n + 2 for n in inner.shape)
    return _total(_resampled(transform.knots, Geometry((x, y, z), affine)), transform.affine)


def _total(field: Field, matrix: Float64Array) -> Field:
    geometry = field.geometry
    points = geometry.points(np.moveaxis(np.indices(geometry.shape, dtype=np.float64), 0, -1))
    moved = points + np.moveaxis(field.data, 0, -1)
    moved = moved @ matrix[:3, :3].T + matrix[:3, 3]
    return Field(np.ascontiguousarray(np.moveaxis(moved - points, -1, 0), dtype=np.float32), geometry)


def _linear_part(matrix: Float64Array) -> Part:
    m = np.asarray(matrix, dtype=np.float64)
    return Part("AffineTransform" + DOUBLE, np.concatenate([m[:3, :3].ravel(), m[:3, 3]]), np.zeros(3))


def _grid_numbers(geometry: Geometry) -> Float64Array:
    parts = (geometry.shape, geometry.origin_mm, geometry.spacing_mm, geometry.direction.ravel())
    return np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])


def _write(path: str | Path, parts: Sequence[Part | FieldPart], suffixes: tuple[str, ...], ends: Ends | None) -> None:
    path = Path(path)
    suffix = suffix_of(path)
    if suffix not in suffixes:
        message = f"cannot write '{path}': the suffix must be one of {', '.join(suffixes)}"
        raise UsageError("E152", message, "choose one of these suffixes")
    with atomic_path(path) as part, part.open("wb") as stream:
        if suffix in HDF_SUFFIXES:
            stream.write(to_hdf(parts, notes_of(ends)))
        elif suffix == ".mat":
            assert isinstance(parts[0], Part)
            stream.write(to_matlab(parts[0]))
        else:
            stream.writelines(to_text(parts, to_line(ends)))


def _read(path: Path) -> tuple[list[Checked], Ends | None]:
    subject, suffix = f"'{path}'", suffix_of(path)
    if suffix not in LINEAR_SUFFIXES:
        known = ", ".join((*LINEAR_SUFFIXES, *displacement.SUFFIXES))
        message = f"{subject} has the suffix '{suffix}', transforms are read from {known}"
        raise RegweaveError("E115", message, "convert the transform with the program that wrote it")
    if suffix in HDF_SUFFIXES:
        stored = read_hdf(path)
        verify_numbers(stored.parts, stored.notes, subject)
        return check_parts(stored.parts, subject), ends_of(stored.notes, subject)
    if suffix == ".mat":
        return check_parts(read_matlab(path), subject), None
    parts, note = read_text(path)
    return check_parts(parts, subject), from_line(note, subject)


def _matrix(parts: Sequence[Checked], path: Path) -> Float64Array:
    """Multiply linear parts into one matrix; the last is applied first."""
    matrix = np.eye(4)
    for part in parts:
        matrix = matrix @ memory.linear_matrix(part.to_itk())
    return memory.require_matrix(matrix, f"the matrix of '{path}'")


def _on_grid(transform: Transform, geometry: Geometry | None) -> Transform:
    """Sample a field on another grid; it stays what the map is between the voxels of that grid."""
    if geometry is None:
        return transform
    if same_grid(geometry, transform.field.geometry):
        return Transform(Field(transform.field.data, geometry), transform.affine, transform.ends, transform.knots)
    field = transform.interpolated
    return Transform(_resampled(field, geometry), transform.affine, transform.ends, knots=field)


def _resampled(field: Field, geometry: Geometry) -> Field:
    """Interpolate a field trilinearly; beyond its own grid the nearest vector holds, as `Transform` says."""
    matrix = np.ascontiguousarray(np.linalg.solve(field.geometry.affine, geometry.affine)[:3])
    still = np.zeros((3, *geometry.shape), dtype=np.float32)
    return Field(fields.warp_channels(field.data, matrix, still), geometry)
