"""Coordinate frame of a NIfTI image: one written rule for qform and sform.

The rule of ``auto``:

- both codes above 0: the two matrices must place each corner within 0.1 voxel; then the sform is used,
  else E110;
- one code above 0: that matrix is used;
- no code: ITK's reading, LPS axes, spacing from pixdim and origin 0, with warning W207 (nibabel
  would flip x).

Matrices are scaled to millimetres where the header says metres or micrometres.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from regweave import notices
from regweave.errors import RegweaveError
from regweave.io.disk.files import damaged
from regweave.io.formats.headers.fields import contradiction
from regweave.io.geometry import ras_to_lps
from regweave.types import Float64Array, Geometry

NiftiFrame = Literal["auto", "sform", "qform"]
AGREEMENT_VOXELS = 0.1
HALF_TURN_RAD = 1e-3
"""Near a half turn, as from LPS to RAS, a quaternion in single precision leaves this much of angle open."""
UNIT_MM = {0: 1.0, 1: 1e3, 2: 1.0, 3: 1e-3}
"""NIfTI codes of metre, millimetre and micrometre; 0, unknown, is taken as millimetre."""
MAX_CODE = 5
"""Largest qform and sform code of the standard."""
QUATERNION_SLACK = 1e-4
"""Rounding of a quaternion in single precision, with room for programs that write few digits."""
SAME_SIZE = 0.01
"""Relative difference of voxel sizes in pixdim and sform that rounding explains."""


@dataclass(frozen=True)
class Frames:
    """The two matrices of a header, in NIfTI's RAS millimetres, None where the code is 0.

    ``distance_mm`` and ``distance_voxels`` tell how far the corners lie apart where there are two;
    ``agree`` tells whether that is little enough.
    """

    qform_code: int
    sform_code: int
    qform: Float64Array | None
    sform: Float64Array | None
    distance_mm: float = 0.0
    distance_voxels: float = 0.0
    agree: bool = True


def read_frames(header: Any, shape: tuple[int, int, int], subject: str) -> Frames:
    """Read both matrices of a NIfTI header and compare them at the corners of the grid."""
    q_code, s_code = int(header["qform_code"]), int(header["sform_code"])
    if not (0 <= q_code <= MAX_CODE and 0 <= s_code <= MAX_CODE):
        raise damaged(subject, f"qform_code {q_code} and sform_code {s_code}, allowed are 0 to {MAX_CODE}")
    if q_code > 0:
        _require_rotation(header, subject)
    unit = _unit_mm(header, subject)
    scale = np.diag([unit, unit, unit, 1.0])
    qform = scale @ _qform(header) if q_code > 0 else None
    sform = scale @ _sform(header) if s_code > 0 else None
    if qform is None or sform is None:
        return Frames(q_code, s_code, qform, sform)
    apart = Geometry(shape, qform).corners_mm() - Geometry(shape, sform).corners_mm()
    distance = float(np.linalg.norm(apart, axis=1).max())
    voxel = float(np.linalg.norm(sform[:3, :3], axis=0).min())
    extent = np.linalg.norm(Geometry(shape, qform).corners_mm()[-1] - qform[:3, 3])
    slack = HALF_TURN_RAD * float(extent) if _is_half_turn(header) else 0.0
    origin = float(np.linalg.norm(qform[:3, 3] - sform[:3, 3]))
    agree = distance <= AGREEMENT_VOXELS * voxel + slack and origin <= AGREEMENT_VOXELS * voxel
    return Frames(q_code, s_code, qform, sform, distance, distance / voxel if voxel > 0 else np.inf, agree)


def _unit_mm(header: Any, subject: str) -> float:
    code = int(header["xyzt_units"]) & 7
    if code not in UNIT_MM:
        raise damaged(subject, f"its unit of length has the code {code}, allowed are 0 to 3")
    return UNIT_MM[code]


def _require_rotation(header: Any, subject: str) -> None:
    """Raise E113 where the quaternion, the voxel sizes or the handedness of a qform are none."""
    b, c, d = (float(header[f"quatern_{axis}"]) for axis in "bcd")
    if not b * b + c * c + d * d <= 1.0 + QUATERNION_SLACK:
        raise contradiction(subject, f"its quaternion ({b:g}, {c:g}, {d:g}) is longer than 1 and turns nothing")
    pixdim = [float(value) for value in header["pixdim"][:4]]
    if not all(0 <= value < np.inf for value in pixdim[1:]):
        raise contradiction(subject, f"voxel sizes {pixdim[1:]} in pixdim, sizes are positive")
    if pixdim[0] not in {-1.0, 0.0, 1.0}:
        raise contradiction(subject, f"pixdim[0], the handedness of its qform, is {pixdim[0]:g}, allowed are 1 and -1")


def _is_half_turn(header: Any) -> bool:
    return sum(float(header[f"quatern_{axis}"]) ** 2 for axis in "bcd") > 1.0 - 1e-6


def _sform(header: Any) -> Float64Array:
    rows = [header["srow_x"], header["srow_y"], header["srow_z"], [0, 0, 0, 1]]
    return np.asarray(rows, dtype=np.float64)


def _spacing(header: Any) -> Float64Array:
    return np.abs(np.asarray(header["pixdim"][1:4], dtype=np.float64))


def _qform(header: Any) -> Float64Array:
    """Build the qform matrix by method 2 of the NIfTI-1 standard."""
    b, c, d = (float(header[f"quatern_{axis}"]) for axis in "bcd")
    norm = b * b + c * c + d * d
    if norm > 1.0 - 1e-7:  # the standard's rule for a half turn with rounding errors
        b, c, d = (value / np.sqrt(norm) for value in (b, c, d))
        norm = 1.0
    a = np.sqrt(1.0 - norm)
    rotation = np.array(
        [
            [a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c)],
            [2 * (b * c + a * d), a * a + c * c - b * b - d * d, 2 * (c * d - a * b)],
            [2 * (b * d - a * c), 2 * (c * d + a * b), a * a + d * d - b * b - c * c],
        ]
    )
    qfac = -1.0 if float(header["pixdim"][0]) < 0 else 1.0
    matrix = np.eye(4)
    matrix[:3, :3] = rotation * _spacing(header) * [1.0, 1.0, qfac]
    matrix[:3, 3] = [float(header[f"qoffset_{axis}"]) for axis in "xyz"]
    return matrix


def clash_error(frames: Frames, subject: str) -> RegweaveError | None:
    """Return the E110 error of a header whose two matrices disagree, None where they agree."""
    if frames.agree:
        return None
    assert frames.qform is not None
    assert frames.sform is not None
    message = (
        f"{subject} is in two places: qform and sform differ by up to {frames.distance_mm:.4g} mm "
        f"({frames.distance_voxels:.4g} voxels, allowed {AGREEMENT_VOXELS}) at the corners\n"
        f"  qform (code {frames.qform_code}, RAS): {frames.qform[:3].tolist()}\n"
        f"  sform (code {frames.sform_code}, RAS): {frames.sform[:3].tolist()}"
    )
    return RegweaveError("E110", message, "say which one holds with --nifti-frame sform or qform")


def nifti_affine(header: Any, shape: tuple[int, int, int], subject: str, frame: NiftiFrame = "auto") -> Float64Array:
    """Return the index → LPS affine of a NIfTI header by the rule of this module."""
    frames = read_frames(header, shape, subject)
    if frame == "auto":
        error = clash_error(frames, subject)
        if error is not None:
            raise error
        chosen = frames.sform if frames.sform is not None else frames.qform
    else:
        chosen = {"sform": frames.sform, "qform": frames.qform}[frame]
        if chosen is None and frames.qform_code + frames.sform_code > 0:
            message = f"{subject} has no {frame}: its code is 0"
            raise RegweaveError("E110", message, "drop --nifti-frame, or name the other matrix")
    if chosen is not None:
        return ras_to_lps(chosen)
    unit = _unit_mm(header, subject)
    notices.warn(f"W207: {subject} does not say where it is (qform and sform codes are 0); LPS axes from 0 are used")
    return np.diag([*(_spacing(header) * unit), 1.0])


def require_voxel_size(header: Any, geometry: Geometry, subject: str, frame: NiftiFrame) -> None:
    """Raise E113 where pixdim and the matrix that places the image state different sizes of voxels.

    A program that scales the matrix, to a template for example, and leaves pixdim as it was means the matrix, and a
    user who knows that says so: with the frame ``sform`` nothing is compared.
    """
    if frame != "auto":
        return
    stated = np.asarray(header["pixdim"][1:4], dtype=np.float64)
    if not (np.isfinite(stated) & (stated >= 0)).all():
        raise contradiction(subject, f"voxel sizes {stated.tolist()} in pixdim, sizes are positive")
    found = geometry.spacing_mm / _unit_mm(header, subject)
    # Zero is not stated at all, as some programs leave it.
    if ((stated > 0) & (np.abs(found - stated) > SAME_SIZE * stated)).any():
        error = contradiction(subject, f"voxel sizes {stated.tolist()} in pixdim, {found.tolist()} in its matrix")
        raise RegweaveError(error.code, error.message, "pass --nifti-frame sform if the matrix holds")
