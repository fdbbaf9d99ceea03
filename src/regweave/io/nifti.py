"""NIfTI: header, voxels, and one written rule for qform and sform.

ITK takes a file cut in half for an image that ends in zeros; here each byte is accounted for.

The rule of ``auto``:

- both codes above 0: the two matrices must place each corner within 0.1 voxel; then the sform is used,
  else E110;
- one code above 0: that matrix is used;
- no code: ITK's reading, LPS axes, spacing from pixdim and origin 0, with warning W207 (nibabel
  would flip x).

Matrices are scaled to millimetres where the header states metres or micrometres.
"""

import math
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from regweave import notices
from regweave.errors import RegweaveError
from regweave.io import stored
from regweave.io.disk.files import BYTES_PER_VALUE, contradiction, damaged, open_file, require_memory, suffix_of
from regweave.io.geometry import affine_of, make_geometry, ras_to_lps
from regweave.types import Float64Array, Geometry

NiftiFrame = Literal["auto", "sform", "qform"]
AGREEMENT_VOXELS = 0.1
HALF_TURN_RAD = 1e-3
"""Near a half turn, as from LPS to RAS, a quaternion in single precision leaves this much of angle open."""
UNIT_MM = {0: 1.0, 1: 1e3, 2: 1.0, 3: 1e-3}
"""NIfTI codes of metre, millimetre and micrometre; 0, unknown, is taken as millimetre."""
MAX_EXTENSION_BYTES = 64 << 20
"""Largest distance from the start of a file to its voxels: headers of DICOM series are kept there."""
MAX_CODE = 5  # Largest qform and sform code of the standard
QUATERNION_SLACK = 1e-4  # Rounding of a quaternion in single precision, with room for programs that write few digits
SAME_SIZE = 0.01  # Relative difference of voxel sizes in pixdim and sform that rounding explains


def _matrices(header: Any, subject: str) -> tuple[Float64Array | None, Float64Array | None, float]:
    """Return qform and sform of a header in NIfTI's RAS millimetres, None where the code is 0, and its unit in mm."""
    q_code, s_code = int(header["qform_code"]), int(header["sform_code"])
    if not (0 <= q_code <= MAX_CODE and 0 <= s_code <= MAX_CODE):
        raise damaged(subject, f"qform_code {q_code} and sform_code {s_code}, allowed are 0 to {MAX_CODE}")
    b, c, d = (float(header[f"quatern_{axis}"]) for axis in "bcd")
    pixdim = [float(value) for value in header["pixdim"][:4]]
    if q_code > 0 and not b * b + c * c + d * d <= 1.0 + QUATERNION_SLACK:
        raise contradiction(subject, f"its quaternion ({b:g}, {c:g}, {d:g}) is longer than 1 and turns nothing")
    if q_code > 0 and not all(0 <= value < np.inf for value in pixdim[1:]):
        raise contradiction(subject, f"voxel sizes {pixdim[1:]} in pixdim, sizes are positive")
    if q_code > 0 and pixdim[0] not in {-1.0, 0.0, 1.0}:
        raise contradiction(subject, f"pixdim[0], the handedness of its qform, is {pixdim[0]:g}, allowed are 1 and -1")
    if (code := int(header["xyzt_units"]) & 7) not in UNIT_MM:
        raise damaged(subject, f"its unit of length has the code {code}, allowed are 0 to 3")
    scale = np.diag([*[UNIT_MM[code]] * 3, 1.0])
    rows = [header["srow_x"], header["srow_y"], header["srow_z"], [0, 0, 0, 1]]
    sform = scale @ np.asarray(rows, dtype=np.float64) if s_code > 0 else None
    return scale @ _qform(header) if q_code > 0 else None, sform, UNIT_MM[code]


def _distance_mm(qform: Float64Array | None, sform: Float64Array | None, shape: tuple[int, int, int]) -> float:
    """Return the largest distance of equal corners by two matrices, 0 for a single one."""
    if qform is None or sform is None:
        return 0.0
    apart = Geometry(shape, qform).corners_mm() - Geometry(shape, sform).corners_mm()
    return float(np.linalg.norm(apart, axis=1).max())


def _require_agreement(
    header: Any, qform: Float64Array, sform: Float64Array, shape: tuple[int, int, int], subject: str
) -> None:
    distance, voxel = _distance_mm(qform, sform, shape), float(np.linalg.norm(sform[:3, :3], axis=0).min())
    extent = np.linalg.norm(Geometry(shape, qform).corners_mm()[-1] - qform[:3, 3])
    half_turn = sum(float(header[f"quatern_{axis}"]) ** 2 for axis in "bcd") > 1.0 - 1e-6
    slack = HALF_TURN_RAD * float(extent) if half_turn else 0.0
    origin = float(np.linalg.norm(qform[:3, 3] - sform[:3, 3]))
    if distance <= AGREEMENT_VOXELS * voxel + slack and origin <= AGREEMENT_VOXELS * voxel:
        return
    message = (
        f"{subject} is in two places: qform and sform differ by up to {distance:.4g} mm "
        f"({distance / voxel if voxel > 0 else np.inf:.4g} voxels, allowed {AGREEMENT_VOXELS}) at the corners\n"
        f"  qform (code {int(header['qform_code'])}, RAS): {qform[:3].tolist()}\n"
        f"  sform (code {int(header['sform_code'])}, RAS): {sform[:3].tolist()}"
    )
    raise RegweaveError("E110", message, "choose one with --nifti-frame sform or qform")


def _qform(header: Any) -> Float64Array:
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
    spacing = np.abs(np.asarray(header["pixdim"][1:4], dtype=np.float64))
    return affine_of(rotation * spacing * [1.0, 1.0, qfac], [float(header[f"qoffset_{axis}"]) for axis in "xyz"])


SUFFIXES = (".nii", ".nii.gz")
HEADERS = {348: nib.Nifti1Header, 540: nib.Nifti2Header}
MAGIC = {348: b"n+1", 540: b"n+2"}
COMMENT, MOST_COMMENTS = 6, 1 << 16  # Code of an extension that is plain text, and how far it is searched for
LONGEST_HEADER = max(HEADERS)
COLOUR = [("R", "u1"), ("G", "u1"), ("B", "u1")]
TYPES: dict[int, Any] = {
    2: "u1", 4: "i2", 8: "i4", 16: "f4", 32: "c8", 64: "f8", 128: COLOUR, 256: "i1", 512: "u2", 768: "u4", 1024: "i8",
    1280: "u8", 1792: "c16", 2304: [*COLOUR, ("A", "u1")],
}  # fmt: skip
"""Types by the codes of the standard."""
ODD_TYPES = {1: "single bits", 1536: "128-bit floats", 2048: "256-bit complex numbers"}
"""Codes of the standard whose numbers are not read."""


@dataclass(frozen=True)
class NiftiHeader:
    """A checked header: what the voxels are and where they begin.

    ``header`` is nibabel's view of its fields.
    """

    path: Path
    header: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    scaling: tuple[float, float]
    offset: int
    subject: str  # name of the file in messages

    def read_voxels(self) -> NDArray[Any]:
        """Read the voxels as stored, in the shape of the header; E102 or E140 where that cannot be."""
        count = math.prod(self.shape)
        expected = count * self.dtype.itemsize
        with _opened(self.path) as (stream, size):
            if self.offset + expected > size * (stored.RATIO if isinstance(stream, stored.Inflated) else 1):
                raise damaged(self.subject, f"its header promises {self.offset + expected} bytes, the file has {size}")
            require_memory(expected + count * BYTES_PER_VALUE, self.subject)
            stream.seek(self.offset)
            buffer = stored.read_exactly(stream, expected, self.subject)
        return buffer.view(self.dtype).reshape(self.shape, order="F")

    def comment(self, word: str) -> str:
        """Return the rest of the first comment that begins with a word; empty without one."""
        with _opened(self.path) as (stream, _):
            content = stream.read(min(self.offset, MOST_COMMENTS))
        at = int(self.header["sizeof_hdr"])
        extended, at = content[at : at + 1] == b"\1", at + 4
        while extended and at + 8 <= len(content):
            size, code = struct.unpack_from(f"{self.header.endianness}2i", content, at)
            first, _, rest = content[at + 8 : at + size].rstrip(b"\0").partition(b" ")
            if code == COMMENT and first == word.encode():
                return rest.decode("ascii", errors="replace")
            extended, at = size >= 16, at + size
        return ""


def read_header(path: Path) -> NiftiHeader:
    """Read and check the header of a NIfTI-1 or NIfTI-2 file; no voxel is read."""
    subject = f"'{path}'"
    with _opened(path) as (stream, _):
        header = _parse(stream.read(LONGEST_HEADER), subject)
    n_axes = int(header["dim"][0])
    shape = tuple(int(n) for n in header["dim"][1 : n_axes + 1])
    if not 1 <= n_axes <= 7 or min(shape) < 1:
        raise damaged(subject, f"bad sizes in its header: {header['dim'].tolist()}")
    code, bits = int(header["datatype"]), int(header["bitpix"])
    if code in ODD_TYPES:
        message = f"{subject} has voxels of {ODD_TYPES[code]} (datatype {code}), needed is one real number a voxel"
        raise RegweaveError("E103", message, "convert the image to integers or 32-bit floats")
    if code not in TYPES:
        raise damaged(subject, f"its datatype is {code}, which is no type of NIfTI")
    dtype: np.dtype[Any] = np.dtype(TYPES[code])
    if bits != 8 * dtype.itemsize:
        raise contradiction(subject, f"datatype {code} has {8 * dtype.itemsize} bits, bitpix is {bits}")
    dtype = dtype.newbyteorder("<" if header.endianness == "<" else ">")
    slope, inter = float(header["scl_slope"]), float(header["scl_inter"])
    if slope == 0 or math.isnan(slope):  # no scaling is asked for; nibabel writes NaN
        slope, inter = 1.0, 0.0
    if not math.isfinite(slope) or not math.isfinite(inter):
        raise damaged(subject, f"its scaling is not finite: scl_slope {slope:g}, scl_inter {inter:g}")
    least = 4 + int(header["sizeof_hdr"])
    offset = float(header["vox_offset"]) or least
    if not least <= offset <= MAX_EXTENSION_BYTES or offset != int(offset):
        reason = f"its header puts the voxels at byte {offset:.9g}, allowed is {least} to {MAX_EXTENSION_BYTES}"
        raise damaged(subject, reason)
    return NiftiHeader(path, header, shape, dtype, (slope, inter), int(offset), subject)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[stored.Stream, int]]:
    """Open the bytes of a file, inflated according to its name or else its content, with its length on disk."""
    with open_file(path) as stream:
        size, suffix = os.fstat(stream.fileno()).st_size, suffix_of(path)
        packed = stream.peek(2)[:2] == stored.GZIP_MARK if suffix not in SUFFIXES else suffix == ".nii.gz"
        try:
            yield (stored.Inflated(stream) if packed else stream), size
        except stored.BROKEN as error:
            raise damaged(f"'{path}'", f"its gzip stream is broken or no gzip stream ({error})") from error


def _parse(block: bytes, subject: str) -> Any:
    for size, kind in HEADERS.items():
        for order, code in (("little", "<"), ("big", ">")):
            if int.from_bytes(block[:4], order) != size or len(block) < size:  # type: ignore[arg-type]
                continue
            header = kind(block[:size], endianness=code, check=False)
            magic = bytes(header["magic"].item())[:3]
            if magic != MAGIC[size]:
                raise damaged(subject, f"NIfTI mark {MAGIC[size]!r} expected, {magic!r} found")
            return header
    raise damaged(subject, f"no NIfTI header in it; it begins with {block[:4]!r}")


def begins_nifti(head: bytes) -> bool:
    """Return whether a file begins with the size of the header and the mark of the format, behind gzip or not."""
    if head.startswith(stored.GZIP_MARK):
        try:
            head = zlib.decompressobj(stored.GZIP_WINDOW).decompress(head, LONGEST_HEADER)
        except zlib.error:
            return False
    with suppress(RegweaveError):
        return _parse(head, "it") is not None
    return False


def read_nifti(path: Path, frame: NiftiFrame = "auto") -> stored.Stored:
    """Read a file; what its header forbids is refused before voxels are read."""
    head = read_header(path)
    geometry = place(head.header, head.shape, head.subject, frame, dtype=head.dtype)
    voxels = head.read_voxels().reshape(geometry.shape, order="F")
    codes = {
        "version": 1 if int(head.header["sizeof_hdr"]) == 348 else 2,
        "qform_code": int(head.header["qform_code"]), "sform_code": int(head.header["sform_code"]),
        "q_s_distance_mm": _distance_mm(*_matrices(head.header, head.subject)[:2], geometry.shape),
        "scl_slope": head.scaling[0], "scl_inter": head.scaling[1],
    }  # fmt: skip
    return stored.Stored(voxels, geometry, head.subject, head.scaling, {"nifti": codes})


def place(
    header: Any, sizes: tuple[int, ...], subject: str, frame: NiftiFrame = "auto", *, dtype: np.dtype[Any] | None
) -> Geometry:
    """Return the grid of a header, by the rule of this module; E113 where pixdim states other voxel sizes.

    A program that scales the matrix to a template and does not change pixdim means the matrix. Then the user states the
    frame ``sform``, and nothing is compared. With the ``dtype`` of voxels it must be the header of a scalar volume.
    """
    if dtype is not None:
        stored.require_scalar(dtype, 1, subject)
        if int(header["intent_code"]) in {1006, 1007}:
            message = f"{subject} is a displacement field, needed is an image"
            raise RegweaveError("E103", message, "pass it as a transform")
        sizes = stored.volume_shape(sizes, subject)
    shape = sizes[0], sizes[1], sizes[2]
    qform, sform, unit_mm = _matrices(header, subject)
    if frame == "auto" and qform is not None and sform is not None:
        _require_agreement(header, qform, sform, shape, subject)
    chosen = qform if frame == "qform" or (frame == "auto" and sform is None) else sform
    if chosen is not None:
        affine = ras_to_lps(chosen)
    elif qform is None and sform is None:
        notices.warn(
            f"W207: {subject} does not state where it is (qform and sform codes are 0); LPS axes from 0 are used"
        )
        pixdim = np.abs(np.asarray(header["pixdim"][1:4], dtype=np.float64))
        affine = np.diag([*(pixdim * unit_mm), 1.0])
    else:
        message = f"{subject} has no {frame}: its code is 0"
        raise RegweaveError("E110", message, "leave nifti_frame out, or name the other matrix")
    geometry = make_geometry(shape, affine, subject)
    if frame != "auto":
        return geometry
    stated = np.asarray(header["pixdim"][1:4], dtype=np.float64)
    if not (np.isfinite(stated) & (stated >= 0)).all():
        raise contradiction(subject, f"voxel sizes {stated.tolist()} in pixdim, sizes are positive")
    found = geometry.spacing_mm / unit_mm
    # Zero is not stated at all, as some programs leave it.
    if ((stated > 0) & (np.abs(found - stated) > SAME_SIZE * stated)).any():
        error = contradiction(subject, f"voxel sizes {stated.tolist()} in pixdim, {found.tolist()} in its matrix")
        raise RegweaveError(error.code, error.message, "state nifti_frame sform if the matrix holds")
    return geometry
