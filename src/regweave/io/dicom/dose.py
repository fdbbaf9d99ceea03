"""RT doses on a grid."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from regweave.errors import RegweaveError
from regweave.io.dicom import parse as dcm
from regweave.io.dicom.series import Series, directions, new_object, reference, require_bits, save
from regweave.io.disk.files import damaged
from regweave.io.geometry import affine_of, make_geometry
from regweave.io.stored import volume_shape
from regweave.types import Float64Array, Geometry, Identity, Volume

RTDOSE = "1.2.840.10008.5.1.4.1.1.481.2"
LARGEST, LARGEST_SIGNED = 2**16 - 2, 2**15 - 2
SAME_PLANE_MM = 0.05  # How far the first offset may be from the position of the first plane
WARPED = "Dose warped by an image registration; not for planning"


@dataclass(frozen=True)
class Dose:
    """A dose distribution in ``units``, GY or RELATIVE, in its frame of reference.

    ``kind`` and ``summation`` are terms of DICOM, ``plans`` the class and instance of each referenced plan.
    """

    volume: Volume
    units: str
    kind: str
    summation: str
    frame_uid: str = field(repr=False)
    identity: Identity = field(default_factory=Identity)
    instance_uid: str = field(default="", repr=False)
    plans: tuple[tuple[str, str], ...] = field(default=(), repr=False)


def read_dose(path: str | Path) -> Dose:
    """Read an RT dose with even planes."""
    subject = f"'{path}'"
    with dcm.opened(path, (RTDOSE,), "RT dose") as data:
        frames, rows, columns, bits = (
            dcm.integer(data, word, default, subject)
            for word, default in (("NumberOfFrames", 1), ("Rows", None), ("Columns", None), ("BitsAllocated", None))
        )
        shape = volume_shape((columns, rows, frames), subject)
        geometry, upwards = _geometry(data, shape, subject)
        syntax = data.file_meta.get("TransferSyntaxUID", None)
        packed = syntax is not None and (bool(syntax.is_encapsulated) or not syntax.is_little_endian)
        if bits not in (16, 32) or dcm.number(data, "SamplesPerPixel", 1, subject) != 1 or packed:
            message = f"{subject} has compressed pixels, colour or {bits} bits, read are plain 16 and 32"
            raise RegweaveError("E163", message, "export the dose uncompressed")
        require_bits(data, subject)
        if dcm.integer(data, "BitsStored", bits, subject) != bits:
            raise RegweaveError("E123", f"{subject} stores fewer bits than it allocates", "export the dose again")
        raw, signed = data.get("PixelData", b""), dcm.integer(data, "PixelRepresentation", None, subject)
        kind = np.dtype(f"<{'i' if signed else 'u'}{bits // 8}")
        needed = kind.itemsize * rows * columns * frames
        if not isinstance(raw, bytes) or len(raw) not in (needed, needed + needed % 2):
            raise damaged(subject, f"{needed} bytes of dose expected, {len(raw)} found")
        planes = np.frombuffer(raw[:needed], dtype=kind).reshape(frames, rows, columns)
        scaling = dcm.number(data, "DoseGridScaling", None, subject)
        values = (planes if upwards else planes[::-1]).transpose(2, 1, 0) * scaling
        volume = Volume(np.ascontiguousarray(values, dtype=np.float32), geometry)
        if scaling < 0 or (planes.any() and not volume.data.any()):
            message = f"{subject} has a DoseGridScaling of {scaling:g}, needed is one above 0 that keeps the dose"
            raise RegweaveError("E125", message, "export the dose again")
        plans = tuple(
            (dcm.text(one, "ReferencedSOPClassUID"), dcm.text(one, "ReferencedSOPInstanceUID"))
            for one in dcm.items(data, "ReferencedRTPlanSequence")
        )
        units, kind_, summation, frame = (
            dcm.text(data, word) for word in ("DoseUnits", "DoseType", "DoseSummationType", "FrameOfReferenceUID")
        )
        if not frame:
            message = f"{subject} states no frame of reference, so its series is unknown"
            raise RegweaveError("E160", message, "export the dose again, with the FrameOfReferenceUID of its plan")
        return Dose(
            volume, units, kind_, summation, frame, dcm.identity_in(data), dcm.text(data, "SOPInstanceUID"), plans
        )


def _geometry(data: Any, shape: tuple[int, int, int], subject: str) -> tuple[Geometry, bool]:
    """Place the planes; offsets may be distances from the first plane or, in axial doses, positions along z."""
    origin = dcm.numbers(data, "ImagePositionPatient", 3, subject)
    row, column = directions(data, subject)
    down, across = dcm.numbers(data, "PixelSpacing", 2, subject)
    normal = np.cross(row, column)
    offsets = dcm.numbers(data, "GridFrameOffsetVector", shape[2], subject)
    first = float(offsets[0])
    if abs(first) > SAME_PLANE_MM:
        if abs(first - origin[2]) > SAME_PLANE_MM or abs(normal[2]) < 1 - 1e-4:
            message = (
                f"{subject} has a GridFrameOffsetVector that begins at {first:g}, allowed are 0 and, in axial doses, "
                f"the z of its first plane, {origin[2]:g}"
            )
            raise RegweaveError("E125", message, "export the dose again")
        offsets = offsets * np.sign(normal[2])
    offsets = offsets - offsets[0]
    steps = np.diff(offsets)
    step = float(steps.mean())
    if step == 0 or np.abs(steps - step).max() > 0.02 * abs(step):
        raise RegweaveError("E113", f"{subject} has uneven or equal planes", "export the dose on an even grid")
    start: Float64Array = origin + normal * min(offsets[-1], 0.0)
    affine = affine_of(np.stack([row * across, column * down, normal * abs(step)], axis=1), start)
    return make_geometry(shape, affine, subject), step > 0


def write_dose(path: str | Path, dose: Dose, today: Series) -> None:
    """Write a warped dose on the space of today's series, which gives patient, study and frame; marked as warped."""
    geometry, values = dose.volume.geometry, dose.volume.data.astype(np.float64)
    with dcm.guarded("the dose"):
        data = new_object(today, RTDOSE, "RTDOSE", "Warped dose, not for planning")
        data.OperatorsName = ""
        data.DoseUnits, data.DoseType = dose.units or "GY", dose.kind or "PHYSICAL"
        data.DoseSummationType, data.DoseComment = dose.summation or "PLAN", WARPED
        data.SpatialTransformOfDose, data.ReferencedSpatialRegistrationSequence = "NON_RIGID", []
        if dose.plans:
            data.ReferencedRTPlanSequence = [reference(*plan) for plan in dose.plans]
        columns, rows, frames = geometry.shape
        data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
        data.Columns, data.Rows, data.NumberOfFrames = columns, rows, frames
        data.FrameIncrementPointer = 0x3004000C
        signed = bool((values < 0).any())
        data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 16, 15, int(signed)
        data.ImagePositionPatient = [f"{v:.6f}"[:16] for v in geometry.origin_mm]
        data.ImageOrientationPatient = [f"{v:.9f}" for v in geometry.direction[:, :2].T.ravel()]
        data.PixelSpacing = [f"{geometry.spacing_mm[k]:.9g}" for k in (1, 0)]
        data.SliceThickness = f"{geometry.spacing_mm[2]:.9g}"
        data.GridFrameOffsetVector = [f"{k * geometry.spacing_mm[2]:.6f}"[:16] for k in range(frames)]
        most = LARGEST_SIGNED if signed else LARGEST
        scaling = float(f"{max(float(np.abs(values).max()), 1e-9) / most:.9e}") * (1 + 1e-8)
        data.DoseGridScaling = f"{scaling:.9e}"
        stored = np.rint(values / float(data.DoseGridScaling)).clip(-most, most)
        data.PixelData = np.ascontiguousarray(stored.transpose(2, 1, 0)).astype("<i2" if signed else "<u2").tobytes()
        data["PixelData"].VR = "OW"
    save(path, data)
