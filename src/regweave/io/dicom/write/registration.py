"""Registration object writer: the start as a matrix, the result as vectors on an axial grid."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

from regweave.errors import RegweaveError
from regweave.io.dicom.parse import guarded
from regweave.io.dicom.values import Series
from regweave.io.dicom.write.objects import item, new_object, references, save, sequence
from regweave.io.transforms.memory import require_matrix
from regweave.types import Float32Array, Float64Array, Geometry, Transform

RIGID, DEFORMABLE = "1.2.840.10008.5.1.4.1.1.66.1", "1.2.840.10008.5.1.4.1.1.66.3"
MOST_CHECKED = 300_000
"""Voxels of today at which the error of the grid is measured."""
ORTHONORMAL = 1e-4
SPACINGS_MM = (5.0, 4.0, 3.0, 2.5, 2.0)
GOOD_ENOUGH_MM = 0.25
MOST_NUMBERS = 12_000_000
"""A grid of more numbers is not made finer: 48 MB."""


def write_reg_deformable(
    path: str | Path, transform: Transform, today: Series, planning: Series, *, spacing_mm: float | None = None
) -> float:
    """Write a transform as a Deformable Spatial Registration.

    The grid is axial, pre and post matrices are the identity, and the affine part is in the vectors: readers differ on
    everything else.

    Parameters
    ----------
    path : path
    transform : Transform
        Takes points of today to points of the planning series.
    today, planning : Series
    spacing_mm : float, optional
        Distance of the vectors; by default 5 mm, or less where the error would be above a quarter of a millimetre.

    Returns
    -------
    float
        Largest distance in millimetres between the transform and the interpolated grid, over voxels of today.

    Raises
    ------
    RegweaveError
        E160 where the two series have no frame of reference.
    """
    _require_frames(today, planning)
    for spacing in SPACINGS_MM if spacing_mm is None else (spacing_mm,):
        geometry, vectors, error = _sampled(transform, today.image.geometry, spacing)
        if error <= GOOD_ENOUGH_MM or vectors.size > MOST_NUMBERS:
            break
    with guarded("the registration"):
        data = _common(today, planning, DEFORMABLE, "Deformable registration, not approved")
        identity = item(
            FrameOfReferenceTransformationMatrixType="RIGID", FrameOfReferenceTransformationMatrix=_digits(np.eye(4))
        )
        grid = item(
            ImagePositionPatient=[f"{v:.6f}"[:16] for v in geometry.origin_mm],
            ImageOrientationPatient=["1", "0", "0", "0", "1", "0"],
            GridDimensions=list(geometry.shape),
            GridResolution=[float(v) for v in geometry.spacing_mm],
            VectorGridData=np.ascontiguousarray(vectors.transpose(3, 2, 1, 0), dtype="<f4").tobytes(),
        )
        data.DeformableRegistrationSequence = sequence([
            item(
                ReferencedImageSequence=references(planning),
                SourceFrameOfReferenceUID=planning.frame_uid,
                DeformableRegistrationGridSequence=[grid],
                PreDeformationMatrixRegistrationSequence=[identity],
                PostDeformationMatrixRegistrationSequence=[identity],
                RegistrationTypeCodeSequence=[_code()],
            )
        ])  # fmt: skip
    save(path, data)
    return error


def write_reg_rigid(path: str | Path, matrix: Float64Array, today: Series, planning: Series) -> None:
    """Write a matrix as a Spatial Registration.

    Parameters
    ----------
    path : path
    matrix : float array of shape (4, 4)
        Takes points of today to points of the planning series. DICOM stores the other way, from the planning frame to
        that of today, so the inverse is written.
    today, planning : Series

    Raises
    ------
    RegweaveError
        E115 a matrix that cannot be inverted, E160 where the two series have no or the same frame of reference.
    """
    _require_frames(today, planning)
    checked = require_matrix(np.asarray(matrix, dtype=np.float64), "the matrix")
    back = np.asarray(np.linalg.inv(checked), dtype=np.float64)
    away = np.abs(back[:3, :3] @ back[:3, :3].T - np.eye(3)).max()
    kind = "RIGID" if away <= ORTHONORMAL and np.linalg.det(back[:3, :3]) > 0 else "AFFINE"
    with guarded("the registration"):
        data = _common(today, planning, RIGID, "Rigid registration, not approved")
        data.RegistrationSequence = sequence([
            _item(today, np.eye(4), "RIGID"), _item(planning, back, kind),
        ])  # fmt: skip
    save(path, data)


def _require_frames(today: Series, planning: Series) -> None:
    if not today.frame_uid or not planning.frame_uid:
        message = "a registration object names two frames of reference, and a series has none"
        raise RegweaveError("E160", message, "export the series with their frames of reference")


def _item(series: Series, matrix: Float64Array, kind: str) -> Any:
    step = item(FrameOfReferenceTransformationMatrixType=kind, FrameOfReferenceTransformationMatrix=_digits(matrix))
    part = item(MatrixSequence=[step], RegistrationTypeCodeSequence=[_code()])
    return item(
        ReferencedImageSequence=references(series),
        FrameOfReferenceUID=series.frame_uid,
        MatrixRegistrationSequence=[part],
    )


def _common(today: Series, planning: Series, class_uid: str, description: str) -> Any:
    data, now = new_object(today, class_uid, "REG", description), datetime.now()
    data.Laterality = ""  # the standard asks for it where no body part is named
    data.ContentDate, data.ContentTime = f"{now:%Y%m%d}", f"{now:%H%M%S}"
    data.ContentLabel, data.ContentDescription, data.ContentCreatorName = "REGISTRATION", description, ""
    listed = [
        item(SeriesInstanceUID=one.identity.series_uid, ReferencedInstanceSequence=references(one))
        for one in (today, planning)
    ]
    same = today.identity.study_uid == planning.identity.study_uid
    data.ReferencedSeriesSequence = sequence(listed if same else listed[:1])
    if not same:
        study = item(StudyInstanceUID=planning.identity.study_uid, ReferencedSeriesSequence=listed[1:])
        data.StudiesContainingOtherReferencedInstancesSequence = sequence([study])
    return data


def _code() -> Any:
    return item(CodeValue="125024", CodingSchemeDesignator="DCM", CodeMeaning="Image Content-based Alignment")


def _digits(matrix: Float64Array) -> list[str]:
    return [f"{0.0 if abs(v) < 1e-12 else v:.9g}" for v in matrix.ravel()]


def _sampled(transform: Transform, today: Geometry, spacing_mm: float) -> tuple[Geometry, Float32Array, float]:
    """Vectors on an axial grid, and how far their interpolation is from the transform at most."""
    grid = _axial(today, spacing_mm)
    places = grid.points(np.moveaxis(np.indices(grid.shape, dtype=np.float64), 0, -1))
    vectors = np.moveaxis(transform(places) - places, -1, 0).astype(np.float32)
    return grid, vectors, _fit_error(transform, vectors, grid, today)


def _axial(geometry: Geometry, spacing_mm: float) -> Geometry:
    """Return a grid along the LPS axes around all voxels of an image, half a voxel more on each side."""
    reach = np.abs(geometry.affine[:3, :3]).sum(axis=1) / 2
    corners = geometry.corners_mm()
    low, high = np.round(corners.min(axis=0) - reach, 3), corners.max(axis=0) + reach
    x, y, z = (np.ceil((high - low) / spacing_mm).astype(int) + 1).clip(2).tolist()
    affine = np.diag([spacing_mm, spacing_mm, spacing_mm, 1.0])
    affine[:3, 3] = low
    return Geometry((x, y, z), affine)


def _fit_error(transform: Transform, vectors: Float32Array, grid: Geometry, today: Geometry) -> float:
    every = int(np.prod(today.shape))
    flat = np.arange(0, every, max(1, every // MOST_CHECKED))
    points = today.points(np.stack(np.unravel_index(flat, today.shape), axis=-1).astype(np.float64))
    index = ((points - grid.origin_mm) / grid.spacing_mm).T
    found = np.stack([ndimage.map_coordinates(v, index, order=1, mode="nearest") for v in vectors], axis=-1)
    return float(np.linalg.norm(transform(points) - points - found, axis=1).max())
