"""New DICOM objects: patient and study of a series, new identifiers, an atomic file."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pydicom
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ImplicitVRLittleEndian, generate_uid

from regweave import __version__
from regweave.io.dicom.parse import guarded
from regweave.io.dicom.series import Series
from regweave.io.disk.outputs import atomic_path

MAKER = "regweave"
STUDY_CLASS = "1.2.840.10008.3.1.2.3.1"


def new_object(series: Series, class_uid: str, modality: str, description: str) -> Any:
    """Return a data set with the common elements: patient and study of a series, a new series and instance."""
    data, now = Dataset(), datetime.now()
    data.SpecificCharacterSet = "ISO_IR 192"
    data.InstanceCreationDate, data.InstanceCreationTime = f"{now:%Y%m%d}", f"{now:%H%M%S}"
    data.SOPClassUID, data.SOPInstanceUID = class_uid, new_uid()
    data.Modality, data.SeriesDescription = modality, description
    data.Manufacturer = data.ManufacturerModelName = MAKER
    data.SoftwareVersions, data.DeviceSerialNumber = __version__, "1"
    identity = series.identity
    data.PatientName, data.PatientID = identity.patient_name, identity.patient_id
    data.PatientBirthDate, data.PatientSex = identity.birth_date, identity.sex
    data.StudyInstanceUID, data.SeriesInstanceUID = identity.study_uid, new_uid()
    for word in ("StudyDate", "StudyTime", "StudyID", "AccessionNumber", "ReferringPhysicianName"):
        setattr(data, word, series.study.get(word, ""))
    data.SeriesDate, data.SeriesTime = f"{now:%Y%m%d}", f"{now:%H%M%S}"
    data.SeriesNumber, data.InstanceNumber = 1, 1
    data.FrameOfReferenceUID, data.PositionReferenceIndicator = series.frame_uid or new_uid(), ""
    return data


def new_uid() -> str:
    """Return a unique identifier: 2.25 and a random number, at most 44 characters."""
    return str(generate_uid(prefix=None))


def reference(class_uid: str, instance_uid: str) -> Any:
    """Return an item that refers to an instance."""
    return item(ReferencedSOPClassUID=class_uid, ReferencedSOPInstanceUID=instance_uid)


def references(series: Series) -> list[Any]:
    """Return items that refer to all images of a series."""
    return [reference(one.class_uid, one.instance_uid) for one in series.slices]


def item(**elements: Any) -> Any:
    """Return an item of a sequence with elements by keyword; lists of items become sequences."""
    made = Dataset()
    for keyword, value in elements.items():
        setattr(made, keyword, value)
    return made


def save(path: str | Path, data: Any) -> None:
    """Write a Part 10 file in Implicit VR Little Endian, which bounds no value at 64 kB; whole or not at all."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = data.SOPClassUID, data.SOPInstanceUID
    meta.TransferSyntaxUID = ImplicitVRLittleEndian
    meta.ImplementationClassUID = pydicom.uid.PYDICOM_IMPLEMENTATION_UID
    meta.ImplementationVersionName = f"REGWEAVE{__version__}"[:16]
    data.file_meta, data.preamble = meta, b"\0" * 128
    with guarded("the new object"), atomic_path(path) as part:
        data.save_as(part, enforce_file_format=True, overwrite=True)
