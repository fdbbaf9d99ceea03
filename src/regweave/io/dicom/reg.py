"""DICOM spatial registrations, rigid and deformable."""

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

from regweave import notices
from regweave.errors import RegweaveError
from regweave.io.dicom.parse import guarded, identity_in, items, numbers, opened, text
from regweave.io.dicom.series import Series, directions, item, new_object, references, save
from regweave.io.disk.files import damaged
from regweave.io.geometry import affine_of, make_geometry
from regweave.io.transforms.itk import ANYWHERE, require_matrix, require_sense
from regweave.types import Field, Float32Array, Float64Array, Geometry, Identity, Transform

RIGID_ERROR = 1e-3  # How far the columns of a matrix that is called rigid may be from unit vectors at right angles


@dataclass(frozen=True)
class DicomRegistration:
    """A registration object: its transform takes points of the registered frame (today) to the source frame (plan)."""

    transform: Transform
    linear: bool
    registered_frame: str = field(repr=False)
    source_frame: str = field(repr=False)
    identity: Identity = field(default_factory=Identity)


def read_reg(path: str | Path) -> DicomRegistration:
    """Read a Spatial Registration or a Deformable Spatial Registration.

    A rigid object stores matrices from each frame to the registered one, a deformable object vectors from the
    registered frame to the source: opposite directions. Both become a map from the registered frame to the source.
    """
    subject = f"'{path}'"
    with opened(path, (RIGID, DEFORMABLE), "registration object") as data:
        registered, identity = text(data, "FrameOfReferenceUID"), identity_in(data)
        if text(data, "SOPClassUID") == RIGID:
            matrix, source = _rigid(data, registered, subject)
            back = require_matrix(np.asarray(np.linalg.inv(matrix), dtype=np.float64), f"the matrix of {subject}")
            return DicomRegistration(Transform(Field.zero(ANYWHERE), back), True, registered, source, identity)
        transform, source = _deformable(data, subject)
    return DicomRegistration(transform, False, registered, source, identity)


def require_registered(found: DicomRegistration, frame: str, subject: str, *, back: bool = False) -> None:
    """Raise E160 for a registration, or its inverse, that does not start in the frame of the grid of the result."""
    if frame != (found.source_frame if back else found.registered_frame):
        message = f"{subject} brings images into another frame of reference than that of the reference"
        raise RegweaveError("E160", message, "name the series whose frame is the registered one with -r")


def require_frames(found: DicomRegistration, registered: str, source: str, subject: str) -> None:
    """Raise E160 for a registration of other frames than these; some writers state the registered frame twice."""
    if found.registered_frame != registered or found.source_frame not in (registered, source):
        message = f"{subject} joins other frames of reference than those of the new series and of the plan"
        raise RegweaveError("E160", message, "give the registration whose registered frame is that of the new series")


def _rigid(data: Any, registered: str, subject: str) -> tuple[Float64Array, str]:
    """Return the matrix from the source to the registered frame; the one item that is not of the registered frame."""
    found = []
    for one in items(data, "RegistrationSequence"):
        matrix = np.eye(4)
        for part in items(one, "MatrixRegistrationSequence"):
            for step in items(part, "MatrixSequence"):
                matrix = _matrix(step, subject) @ matrix
        found.append((matrix, text(one, "FrameOfReferenceUID")))
    others = [pair for pair in found if pair[1] != registered]
    if others and not all(np.allclose(matrix, np.eye(4)) for matrix, frame in found if frame == registered):
        message = f"{subject} moves the registered frame of reference itself, whose matrix has to be the identity"
        raise RegweaveError("E124", message, "export the registration again, with one matrix from frame to frame")
    if not others:  # both images in one frame, yet apart: the item that moves
        others = [pair for pair in found if not np.allclose(pair[0], np.eye(4))] or found[:1]
    if len(others) != 1:
        message = f"{subject} registers {len(others)} frames of reference, one is needed"
        raise RegweaveError("E164", message, "export the registration of two series alone")
    require_matrix(others[0][0], f"the matrix of {subject}")
    return others[0]


def _matrix(step: Any, subject: str, *, mirror: bool = False) -> Float64Array:
    matrix = numbers(step, "FrameOfReferenceTransformationMatrix", 16, subject).reshape(4, 4)
    if not np.allclose(matrix[3], [0, 0, 0, 1], atol=1e-6):
        message = f"a matrix of {subject} has the last row {matrix[3].tolist()}, needed is 0, 0, 0, 1"
        raise RegweaveError("E115", message, "export the registration again")
    matrix[3] = 0, 0, 0, 1
    kind, turn = text(step, "FrameOfReferenceTransformationMatrixType") or "RIGID", matrix[:3, :3].copy()
    if kind == "RIGID_SCALE":
        turn = turn / np.maximum(np.linalg.norm(turn, axis=0), 1e-12)
    turns = np.allclose(turn.T @ turn, np.eye(3), atol=RIGID_ERROR) and (mirror or np.linalg.det(turn) > 0)
    if kind not in ("RIGID", "RIGID_SCALE", "AFFINE") or (kind != "AFFINE" and not turns):
        scales = ", ".join(f"{n:.4g}" for n in np.linalg.norm(matrix[:3, :3], axis=0))
        stated = kind if kind.isascii() and len(kind) <= 16 else "an unknown one"
        message = f"a matrix of {subject} is not of the type that it states, {stated}: "
        message += f"it has scales {scales} and the determinant {np.linalg.det(matrix[:3, :3]):.4g}"
        hint = "export the registration again, or state the type AFFINE where it is meant"
        raise RegweaveError("E124", message, hint)
    return matrix


def _deformable(data: Any, subject: str) -> tuple[Transform, str]:
    """Return the map ``post · (pre · x + v(x))`` as ``post · pre · (x + pre⁻¹ v(x))``, and its source frame."""
    every = items(data, "DeformableRegistrationSequence")
    gridded = [(one, grid[0]) for one in every if (grid := items(one, "DeformableRegistrationGridSequence"))]
    if len(gridded) != 1:
        message = f"{subject} has {len(gridded)} grids of vectors, one is needed"
        raise RegweaveError("E164", message, "export the registration of two series alone")
    one, grid = gridded[0]
    pre = _first(one, "PreDeformationMatrixRegistrationSequence", subject, mirror=True)
    post = _first(one, "PostDeformationMatrixRegistrationSequence", subject)
    geometry, vectors = _grid(grid, subject)
    if np.linalg.det(pre[:3, :3]) < 0:
        # MIM stores planes downwards and mends it with a mirror: the matrix is the place of the grid, not of points.
        geometry = Geometry(geometry.shape, pre @ geometry.affine)
        pre = np.eye(4)
    if np.linalg.det(geometry.affine[:3, :3]) < 0:  # the planes of a left-handed grid are turned around
        affine = geometry.affine.copy()
        affine[:3, 3] = geometry.points(np.array([0.0, 0.0, geometry.shape[2] - 1.0]))
        affine[:3, 2] = -affine[:3, 2]
        geometry, vectors = Geometry(geometry.shape, affine), np.ascontiguousarray(vectors[:, :, :, ::-1])
    turned = np.einsum("ij,jxyz->ixyz", np.linalg.inv(pre)[:3, :3], vectors).astype(np.float32)
    require_sense(turned, geometry, subject)
    matrix = require_matrix(post @ pre, f"the matrices of {subject}")
    field_ = Field(np.ascontiguousarray(turned), make_geometry(geometry.shape, geometry.affine, subject))
    return Transform(field_, matrix), text(one, "SourceFrameOfReferenceUID")


def _first(one: Any, keyword: str, subject: str, *, mirror: bool = False) -> Float64Array:
    found = items(one, keyword)
    return _matrix(found[0], subject, mirror=mirror) if found else np.eye(4)


def _grid(grid: Any, subject: str) -> tuple[Geometry, Float32Array]:
    shape = tuple(int(n) for n in numbers(grid, "GridDimensions", 3, subject))
    steps, origin = numbers(grid, "GridResolution", 3, subject), numbers(grid, "ImagePositionPatient", 3, subject)
    row, column = directions(grid, subject)
    raw = grid.get("VectorGridData", None)
    count = int(np.prod(shape, dtype=object))
    if min(shape) < 2 or (steps <= 0).any() or not isinstance(raw, bytes) or len(raw) != 12 * count:
        held = len(raw) if isinstance(raw, bytes) else 0
        raise damaged(subject, f"a grid of {shape} needs {12 * count} bytes of vectors, {held} are there")
    affine = affine_of(np.stack([row, column, np.cross(row, column)], axis=1) * steps, origin)
    x, y, z = shape
    vectors = np.frombuffer(raw, dtype="<f4").reshape(z, y, x, 3).transpose(3, 2, 1, 0).astype(np.float32)
    return make_geometry((x, y, z), affine, subject), _filled(vectors, subject)


def _filled(vectors: Float32Array, subject: str) -> Float32Array:
    """Give nodes where the map is undefined, NaN by the standard, the vector of the nearest node that has one."""
    known = np.isfinite(vectors).all(axis=0)
    if known.all():
        return vectors
    if not known.any():
        raise damaged(subject, "it defines no vector at all")
    share = 1 - known.mean()
    notices.warn(f"W226: {subject} leaves {share:.1%} of its grid undefined; the nearest vectors are used there")
    nearest = ndimage.distance_transform_edt(~known, return_distances=False, return_indices=True)
    return np.ascontiguousarray(vectors[:, nearest[0], nearest[1], nearest[2]])


RIGID, DEFORMABLE = "1.2.840.10008.5.1.4.1.1.66.1", "1.2.840.10008.5.1.4.1.1.66.3"
MOST_CHECKED = 300_000  # Voxels of today at which the error of the grid is measured
ORTHONORMAL = 1e-4
SPACINGS_MM = (5.0, 4.0, 3.0, 2.5, 2.0)
GOOD_ENOUGH_MM = 0.25
MOST_NUMBERS = 12_000_000  # A grid of more numbers is not made finer: 48 MB


def write_reg_deformable(
    path: str | Path, transform: Transform, today: Series, planning: Series, *, spacing_mm: float | None = None
) -> float:
    """Write a transform from today to planning as a Deformable Spatial Registration.

    The grid is axial, pre and post matrices are the identity, and the affine part is in the vectors: readers differ on
    everything else. The vectors are 5 mm apart, or less where the error would exceed a quarter of a millimetre. Returns
    the largest distance in mm between the transform and the interpolated grid, over voxels of today. Raises E160 if a
    series has no frame of reference.
    """
    _require_frames(today, planning)
    scan = today.image.geometry
    # Half a voxel more on each side than the voxels of the image.
    reach, corners = np.abs(scan.affine[:3, :3]).sum(axis=1) / 2, scan.corners_mm()
    low, high = np.round(corners.min(axis=0) - reach, 3), corners.max(axis=0) + reach
    every = int(np.prod(scan.shape))
    flat = np.arange(0, every, max(1, every // MOST_CHECKED))
    points = scan.points(np.stack(np.unravel_index(flat, scan.shape), axis=-1).astype(np.float64))
    for spacing in SPACINGS_MM if spacing_mm is None else (spacing_mm,):
        x, y, z = (np.ceil((high - low) / spacing).astype(int) + 1).clip(2).tolist()
        geometry = Geometry((x, y, z), affine_of(np.diag([spacing] * 3), low))
        places = geometry.points(np.moveaxis(np.indices(geometry.shape, dtype=np.float64), 0, -1))
        vectors = np.moveaxis(transform(places) - places, -1, 0).astype(np.float32)
        index = ((points - geometry.origin_mm) / geometry.spacing_mm).T
        found = np.stack([ndimage.map_coordinates(v, index, order=1, mode="nearest") for v in vectors], axis=-1)
        error = float(np.linalg.norm(transform(points) - points - found, axis=1).max())
        if error <= GOOD_ENOUGH_MM or vectors.size > MOST_NUMBERS:
            break
    with guarded("the registration"):
        data = _common(today, planning, DEFORMABLE, "Deformable registration, not approved")
        identity = _step(np.eye(4), "RIGID")
        grid = item(
            ImagePositionPatient=[f"{v:.6f}"[:16] for v in geometry.origin_mm],
            ImageOrientationPatient=["1", "0", "0", "0", "1", "0"], GridDimensions=list(geometry.shape),
            GridResolution=[float(v) for v in geometry.spacing_mm],
            VectorGridData=np.ascontiguousarray(vectors.transpose(3, 2, 1, 0), dtype="<f4").tobytes(),
        )  # fmt: skip
        data.DeformableRegistrationSequence = [item(
            ReferencedImageSequence=references(planning), SourceFrameOfReferenceUID=planning.frame_uid,
            DeformableRegistrationGridSequence=[grid], PreDeformationMatrixRegistrationSequence=[identity],
            PostDeformationMatrixRegistrationSequence=[identity], RegistrationTypeCodeSequence=[_code()],
        )]  # fmt: skip
    save(path, data)
    return error


def write_reg_rigid(path: str | Path, matrix: Float64Array, today: Series, planning: Series) -> None:
    """Write a matrix (4, 4) from today to planning as a Spatial Registration.

    DICOM stores the other direction, from the planning frame to that of today, so the inverse is written. Raises E115
    for a singular matrix, E160 if a series has no frame of reference.
    """
    _require_frames(today, planning)
    checked = require_matrix(np.asarray(matrix, dtype=np.float64), "the matrix")
    back = np.asarray(np.linalg.inv(checked), dtype=np.float64)
    away = np.abs(back[:3, :3] @ back[:3, :3].T - np.eye(3)).max()
    kind = "RIGID" if away <= ORTHONORMAL and np.linalg.det(back[:3, :3]) > 0 else "AFFINE"
    with guarded("the registration"):
        data = _common(today, planning, RIGID, "Rigid registration, not approved")
        data.RegistrationSequence = [_item(today, np.eye(4), "RIGID"), _item(planning, back, kind)]
    save(path, data)


def _require_frames(today: Series, planning: Series) -> None:
    if not today.frame_uid or not planning.frame_uid:
        message = "a registration object names two frames of reference, and a series has none"
        raise RegweaveError("E160", message, "export the series with their frames of reference")


def _item(series: Series, matrix: Float64Array, kind: str) -> Any:
    part = item(MatrixSequence=[_step(matrix, kind)], RegistrationTypeCodeSequence=[_code()])
    return item(
        ReferencedImageSequence=references(series), FrameOfReferenceUID=series.frame_uid,
        MatrixRegistrationSequence=[part],
    )  # fmt: skip


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
    data.ReferencedSeriesSequence = listed if same else listed[:1]
    if not same:
        study = item(StudyInstanceUID=planning.identity.study_uid, ReferencedSeriesSequence=listed[1:])
        data.StudiesContainingOtherReferencedInstancesSequence = [study]
    return data


def _code() -> Any:
    return item(CodeValue="125024", CodingSchemeDesignator="DCM", CodeMeaning="Image Content-based Alignment")


def _step(matrix: Float64Array, kind: str) -> Any:
    digits = [f"{0.0 if abs(v) < 1e-12 else v:.9g}" for v in matrix.ravel()]
    return item(FrameOfReferenceTransformationMatrixType=kind, FrameOfReferenceTransformationMatrix=digits)
