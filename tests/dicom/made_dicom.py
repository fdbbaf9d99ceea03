"""Small DICOM series, structure sets and doses with planted geometry, for tests."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pydicom
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian

CT_CLASS, MR_CLASS = "1.2.840.10008.5.1.4.1.1.2", "1.2.840.10008.5.1.4.1.1.4"
CLASSES = {"CT": CT_CLASS, "MR": MR_CLASS, "PT": "1.2.840.10008.5.1.4.1.1.128"}
RTSTRUCT_CLASS = "1.2.840.10008.5.1.4.1.1.481.3"
DOSE_CLASS = "1.2.840.10008.5.1.4.1.1.481.2"
NAME, ID, BIRTH = "SECRETNAME^JANE", "SECRETID77", "19330205"
"""What no message may show."""
ROOT = "1.2.826.0.1.3680043.9.7777"


@dataclass(frozen=True)
class Made:
    """A series to write; ``row`` and ``column`` are directions, ``along`` the positions of the slices."""

    along: tuple[float, ...] = tuple(2.0 * k for k in range(12))
    row: tuple[float, float, float] = (1.0, 0.0, 0.0)
    column: tuple[float, float, float] = (0.0, 1.0, 0.0)
    origin: tuple[float, float, float] = (-31.0, -40.0, 7.0)
    spacing: tuple[float, float] = (1.0, 1.25)
    size: tuple[int, int] = (64, 56)
    shear: float = 0.0
    series: str = "1"
    frame: str = "1"
    study: str = "1"
    modality: str = "CT"
    patient: tuple[str, str, str] = (NAME, ID, BIRTH)
    elements: dict = field(default_factory=dict)

    @property
    def normal(self) -> np.ndarray:
        return np.cross(self.row, self.column)

    def position(self, k: int) -> np.ndarray:
        """First pixel of slice k; sheared slices drift along the columns, as a tilted gantry makes them."""
        return np.asarray(self.origin) + self.along[k] * (self.normal + self.shear * np.asarray(self.column))

    def values(self, k: int) -> np.ndarray:
        """Hounsfield units [row, column]: a smooth function of position, so that interpolation can be checked."""
        u, v = (np.arange(n) * s for n, s in zip(self.size, self.spacing, strict=True))
        points = self.position(k) + v[:, None, None] * np.asarray(self.column) + u[None, :, None] * np.asarray(self.row)
        return function_of(points)


def function_of(points: np.ndarray) -> np.ndarray:
    return 3.0 * points[..., 0] - 2.0 * points[..., 1] + 4.0 * points[..., 2]


def uid(*parts: object) -> str:
    return ".".join([ROOT, *map(str, parts)])


def patient(data: Dataset, made: Made) -> None:
    data.PatientName, data.PatientID, data.PatientBirthDate = made.patient
    data.PatientSex, data.StudyInstanceUID = "F", uid(1, made.study)
    data.StudyDate, data.StudyTime, data.StudyID = "20200102", "101112", "S1"
    data.AccessionNumber = data.ReferringPhysicianName = ""


def save(path: Path, data: Dataset, *, syntax: str = ExplicitVRLittleEndian, bare: bool = False) -> Path:
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = data.SOPClassUID, data.SOPInstanceUID
    meta.TransferSyntaxUID = syntax
    data.file_meta, data.preamble = meta, b"\0" * 128
    if bare:
        pydicom.dcmwrite(path, _without_meta(data), implicit_vr=True, little_endian=True, enforce_file_format=False)
    else:
        data.save_as(path, enforce_file_format=True)
    return path


def _without_meta(data: Dataset) -> Dataset:
    plain = Dataset()
    plain.update(data)
    return plain


def image(made: Made, k: int) -> Dataset:
    data = Dataset()
    patient(data, made)
    data.SOPClassUID = CLASSES[made.modality]
    data.SOPInstanceUID = uid(2, made.series, k + 1)
    data.Modality, data.ImageType = made.modality, ["ORIGINAL", "PRIMARY", "AXIAL"]
    data.SeriesInstanceUID, data.FrameOfReferenceUID = uid(3, made.series), uid(4, made.frame)
    data.InstanceNumber, data.SeriesNumber, data.SliceThickness = 99 - k, 1, "9"
    data.ImagePositionPatient = [f"{v:.6f}" for v in made.position(k)]
    data.ImageOrientationPatient = [f"{v:.9f}" for v in (*made.row, *made.column)]
    data.PixelSpacing = [f"{made.spacing[1]:.6f}", f"{made.spacing[0]:.6f}"]
    data.Columns, data.Rows = made.size
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 16, 15, 0
    slope, intercept = (0.5, -1024.0 + k) if made.modality == "CT" else (1.0, -1000.0)
    data.RescaleSlope, data.RescaleIntercept = slope, intercept  # another one on each slice
    stored = np.rint((made.values(k) - intercept) / slope)
    data.PixelData = stored.clip(0, 65535).astype("<u2").tobytes()
    data["PixelData"].VR = "OW"
    for keyword, value in made.elements.items():
        setattr(data, keyword, value)
    return data


def write_series(folder: Path, made: Made | None = None, *, bare: bool = False, shuffle: bool = True) -> Made:
    """Write a series; the names of its files are in no order of position."""
    made = Made() if made is None else made
    folder.mkdir(parents=True, exist_ok=True)
    order = np.random.default_rng(3).permutation(len(made.along)) if shuffle else np.arange(len(made.along))
    for n, k in enumerate(order):
        save(folder / f"{made.series}_{n:03d}.dcm", image(made, int(k)), bare=bare)
    return made


@dataclass(frozen=True)
class Roi:
    """A structure to write: contours as (slice, in-plane points in mm from the first pixel), or points in LPS."""

    name: str
    contours: tuple[tuple[int, np.ndarray], ...] = ()
    points: tuple[tuple[float, float, float], ...] = ()
    kind: str = "ORGAN"
    colour: tuple[int, int, int] | None = (10, 200, 30)
    geometric: str = "CLOSED_PLANAR"
    frame: str | None = None


def circle(centre: tuple[float, float], radius: float, n: int = 72) -> np.ndarray:
    turn = np.arange(n) * 2 * np.pi / n
    return np.stack([centre[0] + radius * np.cos(turn), centre[1] + radius * np.sin(turn)], axis=1)


def keyhole(outer: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """One ring around a hole: out along the first points, and back."""
    return np.concatenate([outer, outer[:1], inner[::-1], inner[-1:]])


def placed(made: Made, k: int, flat: np.ndarray) -> np.ndarray:
    return made.position(k) + np.outer(flat[:, 0], made.row) + np.outer(flat[:, 1], made.column)


def rtstruct(made: Made, rois: list[Roi], *, images: bool = True) -> Dataset:
    data = Dataset()
    patient(data, made)
    data.SOPClassUID, data.SOPInstanceUID, data.SeriesInstanceUID = RTSTRUCT_CLASS, uid(5, made.series), uid(6, 1)
    data.Modality, data.StructureSetLabel, data.ApprovalStatus = "RTSTRUCT", "PLAN", "APPROVED"
    data.ReviewerName = "SECRETDOCTOR"
    series, study, frame = Dataset(), Dataset(), Dataset()
    series.SeriesInstanceUID = uid(3, made.series)
    series.ContourImageSequence = [_reference(made, k) for k in range(len(made.along))]
    study.ReferencedSOPClassUID, study.ReferencedSOPInstanceUID = "1.2.840.10008.3.1.2.3.1", uid(1, made.study)
    study.RTReferencedSeriesSequence = [series]
    frame.FrameOfReferenceUID, frame.RTReferencedStudySequence = uid(4, made.frame), [study]
    data.ReferencedFrameOfReferenceSequence = [frame]
    parts = [_roi(made, 3 * n + 7, one, images) for n, one in enumerate(rois)]
    data.StructureSetROISequence, data.ROIContourSequence, data.RTROIObservationsSequence = (
        [part[n] for part in parts] for n in range(3)
    )
    return data


def _reference(made: Made, k: int) -> Dataset:
    item = Dataset()
    item.ReferencedSOPClassUID = CLASSES[made.modality]
    item.ReferencedSOPInstanceUID = uid(2, made.series, k + 1)
    return item


def _roi(made: Made, number: int, roi: Roi, images: bool) -> tuple[Dataset, Dataset, Dataset]:
    stated, drawing, seen = Dataset(), Dataset(), Dataset()
    stated.ROINumber, stated.ROIName, stated.ROIGenerationAlgorithm = number, roi.name, "MANUAL"
    stated.ReferencedFrameOfReferenceUID = uid(4, roi.frame or made.frame)
    drawing.ReferencedROINumber = number
    if roi.colour is not None:
        drawing.ROIDisplayColor = list(roi.colour)
    items = []
    for k, flat in roi.contours:
        item = _contour(roi.geometric, placed(made, k, flat))
        if images:
            item.ContourImageSequence = [_reference(made, k)]
        items.append(item)
    items += [_contour("POINT", np.array([point])) for point in roi.points]
    if items:
        drawing.ContourSequence = items
    seen.ObservationNumber = seen.ReferencedROINumber = number
    seen.RTROIInterpretedType, seen.ROIInterpreter = roi.kind, ""
    return stated, drawing, seen


def _contour(kind: str, points: np.ndarray) -> Dataset:
    item = Dataset()
    item.ContourGeometricType, item.NumberOfContourPoints = kind, len(points)
    item.ContourData = [f"{v:.4f}" for v in points.ravel()]
    return item


def write_rtstruct(path: Path, made: Made, rois: list[Roi], *, images: bool = True) -> Path:
    return save(path, rtstruct(made, rois, images=images), syntax=ImplicitVRLittleEndian)


def dose(made: Made) -> Dataset:
    """A dose of half the function of position, in grey."""
    data = image(replace(made, along=made.along[:1]), 0)
    data.SOPClassUID, data.SOPInstanceUID, data.Modality = DOSE_CLASS, uid(8, made.series), "RTDOSE"
    data.NumberOfFrames, data.FrameIncrementPointer = len(made.along), pydicom.tag.Tag(0x3004000C)
    data.GridFrameOffsetVector = [f"{w - made.along[0]:.4f}" for w in made.along]
    data.DoseUnits, data.DoseType, data.DoseSummationType, data.DoseGridScaling = "GY", "PHYSICAL", "PLAN", "0.01"
    plan = Dataset()
    plan.ReferencedSOPClassUID, plan.ReferencedSOPInstanceUID = "1.2.840.10008.5.1.4.1.1.481.5", uid(9, 1)
    data.ReferencedRTPlanSequence = [plan]
    grey = np.stack([made.values(k) for k in range(len(made.along))]) / 20 + 30
    del data.RescaleSlope, data.RescaleIntercept
    data.PixelData = np.rint(grey / 0.01).astype("<u2").tobytes()
    data["PixelData"].VR = "OW"
    return data
