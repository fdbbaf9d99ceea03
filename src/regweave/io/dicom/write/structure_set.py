"""RT structure set writer: a new, unapproved set on the series of today."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from pydicom.dataelem import RawDataElement
from pydicom.tag import Tag

from regweave import __version__, notices
from regweave.errors import RegweaveError, UsageError
from regweave.io.dicom.parse import guarded
from regweave.io.dicom.values import DicomSlice, Series
from regweave.io.dicom.write.objects import STUDY_CLASS, item, new_object, reference, references, save, sequence
from regweave.types import PALETTE, Colour, Float64Array, Structure, StructureSet

RTSTRUCT = "1.2.840.10008.5.1.4.1.1.481.3"
LONGEST_NAME, SAFE_NAME = 64, 16
LONGEST_REMARK = 200
CONTOUR_DATA = Tag(0x30060050)


def write_rtstruct(
    path: str | Path,
    structures: StructureSet,
    series: Series,
    *,
    source: StructureSet,
    names: Mapping[str, str] | None = None,
    remarks: Mapping[int, str] | None = None,
) -> None:
    """Write structures drawn on a series as a new set that nobody has approved.

    Parameters
    ----------
    path : path
    structures : StructureSet
        Contours on slices of ``series``, each with its ``image``; structures without contours and points are not
        written.
    series : Series
        Gives patient, study, frame of reference and the images that are referred to.
    source : StructureSet
        The planning set: its predecessor. Nothing else of it is copied.
    names : mapping, optional
        New names of structures.
    remarks : mapping, optional
        What was found wrong with a structure, by its number: ROI Description, at most `LONGEST_REMARK` characters.

    Raises
    ------
    RegweaveError
        E165 where there is nothing to write, E166 for names that DICOM does not allow or that are not unique.
    """
    drawn = [one for one in structures.structures if one.contours or len(one.points)]
    if not drawn:
        raise RegweaveError("E165", "no structure has a contour on this series", "look at the registration")
    called = checked_names(drawn, names or {})
    with guarded("the structure set"):
        data = new_object(series, RTSTRUCT, "RTSTRUCT", "Propagated contours, not approved")
        _describe(data, series, source)
        number = iter(range(1, 1 << 31))
        data.StructureSetROISequence = sequence(
            [_roi(one, called[one.number], data, (remarks or {}).get(one.number, "")) for one in drawn]
        )
        data.ROIContourSequence = sequence(
            [_drawing(one, series, number, PALETTE[k % len(PALETTE)]) for k, one in enumerate(drawn)]
        )
        data.RTROIObservationsSequence = sequence([_observation(one) for one in drawn])
    save(path, data)


def checked_names(structures: Sequence[Structure], names: Mapping[str, str]) -> dict[int, str]:
    """Return the names to write by number, or raise E166; W225 for those that some systems cut."""
    called = {one.number: names.get(one.name, one.name).strip() for one in structures}
    if len(called) < len(structures):
        raise UsageError("E166", "two structures have the same number", "give each its own")
    for name in called.values():
        if not name or len(name) > LONGEST_NAME or "\\" in name or not name.isprintable():
            message = f"{name[:80]!r} cannot be the name of a structure: 1 to {LONGEST_NAME} characters, no backslash"
            raise UsageError("E166", message, "rename it with a name map")
    twice = sorted({name for name in called.values() if list(called.values()).count(name) > 1})
    if twice:
        raise UsageError("E166", f"several structures have the name {twice[0]!r}", "rename them with a name map")
    long = [name for name in called.values() if len(name) > SAFE_NAME]
    if long:
        listed = ", ".join(long[:5]) + (" …" if len(long) > 5 else "")
        notices.warn(f"W225: names of more than {SAFE_NAME} characters, which some planning systems cut: {listed}")
    return called


def _describe(data: Any, series: Series, source: StructureSet) -> None:
    """Label, dates, approval, predecessor and the images that the set refers to."""
    now = datetime.now()
    label = f"RW {now:%Y%m%d}"
    data.StructureSetLabel = label if label != source.label else f"{label} B"
    data.StructureSetDate, data.StructureSetTime = f"{now:%Y%m%d}", f"{now:%H%M%S}"
    data.OperatorsName, data.ApprovalStatus = "", "UNAPPROVED"
    listed = item(SeriesInstanceUID=series.identity.series_uid, ContourImageSequence=references(series))
    study = item(
        ReferencedSOPClassUID=STUDY_CLASS,
        ReferencedSOPInstanceUID=series.identity.study_uid,
        RTReferencedSeriesSequence=[listed],
    )
    frame = item(FrameOfReferenceUID=data.FrameOfReferenceUID, RTReferencedStudySequence=[study])
    data.ReferencedFrameOfReferenceSequence = sequence([frame])
    if source.instance_uid:
        data.PredecessorStructureSetSequence = sequence([reference(RTSTRUCT, source.instance_uid)])


def _roi(structure: Structure, name: str, data: Any, remark: str) -> Any:
    return item(
        **({"ROIDescription": remark[:LONGEST_REMARK]} if remark else {}),
        ROINumber=structure.number,
        ReferencedFrameOfReferenceUID=data.FrameOfReferenceUID,
        ROIName=name,
        ROIGenerationAlgorithm="AUTOMATIC",
        ROIGenerationDescription=f"regweave {__version__}: carried over by a registration",
    )


def _observation(structure: Structure) -> Any:
    kind = structure.kind if re.fullmatch(r"[A-Z0-9_ ]{0,16}", structure.kind) else ""
    return item(
        ObservationNumber=structure.number,
        ReferencedROINumber=structure.number,
        RTROIInterpretedType=kind,
        ROIInterpreter="",
    )


def _drawing(structure: Structure, series: Series, number: Any, spare: Colour) -> Any:
    made = []
    for contour in structure.contours:
        if contour.image is None:
            raise RegweaveError("E165", f"a contour of {structure.name!r} lies on no slice", "place it on one")
        points = rounded(contour.points_mm)
        if len(points) >= 3:
            made.append(_contour("CLOSED_PLANAR", points, series.slices[contour.image], next(number)))
    along = np.array([one.along_mm for one in series.slices])
    for point in structure.points:
        near = series.slices[int(np.argmin(np.abs(along - point @ series.grid.normal)))]
        made.append(_contour("POINT", point.reshape(1, 3), near, next(number)))
    return item(
        ROIDisplayColor=list(structure.colour or spare),
        ReferencedROINumber=structure.number,
        ContourSequence=made,
    )


def rounded(points: Float64Array) -> Float64Array:
    """Round to a thousandth of a millimetre and drop points that have become equal to the one before them."""
    found = np.round(points, 3) + 0.0
    return np.asarray(found[(found != np.roll(found, 1, axis=0)).any(axis=1)])


def _contour(kind: str, points: Float64Array, image: DicomSlice, number: int) -> Any:
    made = item(
        ContourImageSequence=[reference(image.class_uid, image.instance_uid)],
        ContourGeometricType=kind,
        NumberOfContourPoints=len(points),
        ContourNumber=number,
    )
    # Written as bytes: a value object for each of a million numbers takes longer than all else.
    text = "\\".join([f"{value:.3f}" for value in points.ravel().tolist()]).encode("ascii")
    text += b" " * (len(text) % 2)
    made[CONTOUR_DATA] = RawDataElement(CONTOUR_DATA, "DS", len(text), text, 0, True, True)
    return made
