"""RT structure sets: read against the series on which they are drawn, and written for another one."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from pydicom.dataelem import RawDataElement
from pydicom.multival import MultiValue
from pydicom.tag import Tag

from regweave import __version__, notices
from regweave.errors import RegweaveError, UsageError
from regweave.io.dicom import parse as dcm
from regweave.io.dicom.series import STUDY_CLASS, DicomSlice, Series, item, new_object, reference, references, save
from regweave.io.disk.files import damaged, some
from regweave.types import PALETTE, Colour, Contour, Float64Array, LeftOut, Structure, StructureSet

RTSTRUCT = "1.2.840.10008.5.1.4.1.1.481.3"
CLOSED = ("CLOSED_PLANAR", "CLOSEDPLANAR_XOR")
FLAT = 0.1  # Share of a gap by which the points of one contour may differ along the normal
ON_SLICE, ROUNDING_MM = 0.02, 0.06
"""Share of a gap, and length, by which a contour may be away from its slice without a word."""
FAR_MM = 1000.0
MOST_STRUCTURES = 500  # Each takes some hundredths of a second to carry
MOST_CONTOURS = 2000
"""Contours of a structure on one slice: the region that they enclose takes the square of their number to compute."""
CONTOUR_DATA = Tag(0x30060050)
LONGEST_NAME = 64
BESIDE = "lie beside the images of the series"


def read_rtstruct(path: str | Path, series: Series, *, allow_id_mismatch: bool = False) -> StructureSet:
    """Read a structure set drawn on a series, with contours placed on its slices by geometry.

    ``left_out`` lists empty structures, open contours, contours of fewer than three points, off the slices, or on
    missing slices. Names that DICOM does not allow (over 64 characters, a backslash, control characters, none) are
    changed with W230. Contours between the slices move to the nearest with W245; several items of one structure are
    joined with W246.
    """
    subject = f"'{path}'"
    with dcm.opened(path, (RTSTRUCT,), "RT structure set") as data:
        if not allow_id_mismatch:
            dcm.require_same_patient(dcm.identity_in(data), series.identity, f"{subject} and its series")
        drawn, left_out = _structures(data, series, subject)
        listed = _referenced(data)
        if listed and series.identity.series_uid not in listed:
            notices.warn(
                f"W224: {subject} was drawn on another series of the same frame of reference; placed by position"
            )
        label, uid = dcm.text(data, "StructureSetLabel"), dcm.text(data, "SOPInstanceUID")
        identity = dcm.identity_in(data)
    if not drawn:
        reasons = "; ".join(sorted({one.reason for one in left_out})) or "it lists no structure"
        raise RegweaveError("E165", f"{subject} has nothing on this series: {reasons}", "name the series it belongs to")
    return StructureSet(tuple(drawn), label, series.frame_uid, identity, tuple(left_out), uid)


def read_drawn(path: Path) -> tuple[Structure, ...]:
    """Read closed contours and points of a structure set as stored, without a series."""
    subject = f"'{path}'"
    with dcm.opened(path, (RTSTRUCT,), "RT structure set") as data:
        rois = dcm.items(data, "StructureSetROISequence")
        counted = [dcm.integer(roi, "ROINumber", None, subject) for roi in rois]
        drawings = _drawings(data, subject)
        found = []
        for number, name in zip(counted, _names(rois, counted, subject), strict=True):
            drawn = [one for part in drawings[number] for one in dcm.items(part, "ContourSequence")]
            read = [(dcm.text(one, "ContourGeometricType"), _points(one, subject)) for one in drawn]
            closed = tuple(Contour(points) for kind, points in read if kind in CLOSED and len(points) > 2)
            single = np.reshape([points for kind, points in read if kind == "POINT"], (-1, 3)).astype(float)
            found.append(Structure(number, name, "", _colour(drawings[number], subject), closed, single))
    return tuple(found)


def referenced_series(path: str | Path) -> frozenset[str]:
    """Return the identifiers of the image series that a structure set refers to."""
    with dcm.opened(path, (RTSTRUCT,), "RT structure set") as data:
        return _referenced(data)


def _referenced(data: Any) -> frozenset[str]:
    frames = dcm.items(data, "ReferencedFrameOfReferenceSequence")
    studies = [study for frame in frames for study in dcm.items(frame, "RTReferencedStudySequence")]
    listed = [one for study in studies for one in dcm.items(study, "RTReferencedSeriesSequence")]
    return frozenset(filter(None, (dcm.text(one, "SeriesInstanceUID") for one in listed)))


def _numbers(rois: Sequence[Any], subject: str) -> list[int]:
    counted = [dcm.integer(roi, "ROINumber", None, subject) for roi in rois]
    if len(rois) > MOST_STRUCTURES:
        message = f"{subject} has {len(rois)} structures, allowed are {MOST_STRUCTURES}"
        raise RegweaveError("E123", message, "leave the structures that are not needed out of the export")
    if len(set(counted)) < len(counted):
        raise RegweaveError("E164", f"{subject} has several structures of one number", "export the set again")
    return counted


def _structures(data: Any, series: Series, subject: str) -> tuple[list[Structure], list[LeftOut]]:
    rois = dcm.items(data, "StructureSetROISequence")
    counted = _numbers(rois, subject)
    drawings = _drawings(data, subject)
    seen = dcm.items(data, "RTROIObservationsSequence")
    kinds = {
        dcm.integer(one, "ReferencedROINumber", None, subject): dcm.text(one, "RTROIInterpretedType") for one in seen
    }
    frames = {dcm.text(frame, "FrameOfReferenceUID") for frame in dcm.items(data, "ReferencedFrameOfReferenceSequence")}
    placer, found, left_out, strangers, aside = _Placer(series), [], [], 0, []
    names = _names(rois, counted, subject)
    for number, name, roi in zip(counted, names, rois, strict=True):
        stated = {dcm.text(roi, "ReferencedFrameOfReferenceUID")} - {""} or frames - {""}
        if stated and series.frame_uid and series.frame_uid not in stated:
            strangers += 1
            left_out.append(LeftOut(name, "drawn in another frame of reference"))
            continue
        drawn = drawings[number]
        contours = [one for part in drawn for one in dcm.items(part, "ContourSequence")]
        empty = Structure(number, name, kinds.get(number, ""), _colour(drawn, subject))
        structure, reasons = placer.place(empty, contours, f"{subject}, structure '{name}'")
        left_out += [LeftOut(name, reason) for reason in reasons]
        aside += [name for reason in reasons if reason.endswith(BESIDE)]
        if structure.contours or len(structure.points):
            found.append(structure)
    joined = [name for number, name in zip(counted, names, strict=True) if len(drawings[number]) > 1]
    unlisted = sorted(number for number, drawn in drawings.items() if drawn and number not in counted)
    left_out += [LeftOut(f"ROI {number}", "contours of a number that no structure has") for number in unlisted]
    if joined:
        notices.warn(f"W246: {subject} draws a structure in several items, which are joined: {some(joined)}")
    if unlisted:
        found_ = some(list(map(str, unlisted)))
        notices.warn(f"W246: {subject} has contours of numbers that no structure has, left out: {found_}")
    if placer.snapped:
        most = max(placer.snapped.values())
        notices.warn(
            f"W245: contours of {subject} lie between the slices, by up to {most:.2f} mm; each is put on the nearest "
            f"slice: {some(list(placer.snapped))}"
        )
    if aside:
        notices.warn(f"W235: contours of {subject} {BESIDE} and are left out: {some(aside)}; was the set drawn on it?")
    if strangers and strangers == len(rois):
        message = f"{subject} was drawn in another frame of reference than that of the series"
        raise RegweaveError("E160", message, "give the series it was drawn on, or a registration between the frames")
    return found, left_out


def _names(rois: list[Any], counted: list[int], subject: str) -> list[str]:
    """Return the names of the structures, with a warning for those that DICOM does not allow."""
    names, mended = [], []
    for number, roi in zip(counted, rois, strict=True):
        value = roi.get("ROIName", None)
        stated = "\\".join(map(str, value)) if isinstance(value, MultiValue) else str(value or "").strip(" \0")
        plain = "".join(c if c.isprintable() and c != "\\" else " " for c in stated)
        names.append(plain.strip()[:LONGEST_NAME].strip() or f"ROI {number}")
        if names[-1] != stated:
            mended.append(names[-1])
    if mended:
        notices.warn(
            f"W230: {subject} has {len(mended)} names that DICOM does not allow (1 to {LONGEST_NAME} characters, no "
            f"backslash, no control characters); they are read as: {some(mended)}"
        )
    return names


def _drawings(data: Any, subject: str) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    for one in dcm.items(data, "ROIContourSequence"):
        found[dcm.integer(one, "ReferencedROINumber", None, subject)].append(one)
    return found


def _colour(drawn: list[Any], subject: str) -> Colour | None:
    for one in drawn:
        with suppress(RegweaveError):
            r, g, b = (int(v) for v in dcm.numbers(one, "ROIDisplayColor", 3, subject).clip(0, 255))
            return r, g, b
    return None


Planes = dict[int, list[tuple[float, Float64Array]]]  # contours by slice, each with its position along the normal


class _Placer:
    """Contours put on the slices of a series by their geometry."""

    def __init__(self, series: Series) -> None:
        self.grid, self.normal, self.axes = series.grid, series.grid.normal, (series.grid.row, series.grid.column)
        self.corners = [one.position_mm for one in series.slices]
        (x, y), (across, down) = self.grid.size, self.grid.spacing_mm
        opposite = self.corners + x * across * self.grid.row + y * down * self.grid.column
        self.low, self.high = (f([*self.corners, *opposite], axis=0) for f in (np.min, np.max))
        self.along = np.array([one.along_mm for one in series.slices])
        gaps = np.diff(self.along)
        self.gap = np.maximum(np.append(gaps, gaps[-1]), np.insert(gaps, 0, gaps[0]))
        self.snapped: dict[str, float] = {}
        """How far the contours of a structure lie from their slices, where that is more than rounding."""

    def place(self, empty: Structure, contours: list[Any], subject: str) -> tuple[Structure, list[str]]:
        if not contours:
            return empty, ["no contours"]
        closed: Planes = defaultdict(list)
        points, short, counts = [], [], dict.fromkeys(("open", "off", "flat", "beside"), 0)
        for contour in contours:
            kind, data = dcm.text(contour, "ContourGeometricType"), _points(contour, subject)
            if kind == "POINT" and len(data) == 1:
                points.append(data[0])
            elif kind not in CLOSED:
                counts["open"] += 1
            elif len(data) < 3:
                short.append(data)
            else:
                self._add(closed, data, counts, subject)
        if not closed and not counts["off"] and short and all(len(one) == 1 for one in short):
            points, short = points + [one[0] for one in short], []
        k, most = max(((k, len(found)) for k, found in closed.items()), key=lambda one: one[1], default=(0, 0))
        if most > MOST_CONTOURS:
            message = f"{subject} has {most} contours on slice {k + 1}, allowed are {MOST_CONTOURS}"
            raise RegweaveError("E123", message, "leave the structure out of the export")
        drawn, doubled, away = self._contours(closed)
        if away:
            self.snapped[empty.name] = away
        left = {
            "are open lines, which are not carried over": counts["open"], "have fewer than three points": len(short),
            "lie beyond or between the slices of the series": counts["off"], BESIDE: counts["beside"],
            "do not lie in a plane of the series": counts["flat"],
            "share a slice with contours that lie nearer to it, or repeat one": doubled,
        }  # fmt: skip
        made = replace(empty, contours=tuple(drawn), points=np.reshape(points, (-1, 3)).astype(float))
        return made, [f"{count} contours {why}" for why, count in left.items() if count]

    def _add(self, closed: Planes, data: Float64Array, counts: dict[str, int], subject: str) -> None:
        """Put a contour on the nearest slice, or count why it is left out; E123 for a point far from the series."""
        far = np.maximum(self.low - data, data - self.high).max(axis=1)
        if far.max() > FAR_MM:
            k = int(np.argmax(far))
            point = ", ".join(f"{v:g}" for v in data[k])
            what = f"point {k + 1} of a contour, ({point}) mm, is over {FAR_MM:g} mm beside the series"
            hint = "correct the contour, or leave the structure out of the export"
            raise RegweaveError("E123", f"{subject}: {what}", hint)
        along = data @ self.normal
        k = int(np.argmin(np.abs(self.along - along.mean())))
        away = data - self.corners[k]
        index = np.stack([away @ axis / step for axis, step in zip(self.axes, self.grid.spacing_mm, strict=True)])
        beside = (index.max(axis=1) < -0.5) | (index.min(axis=1) > np.array(self.grid.size) - 0.5)
        if np.ptp(along) > max(FLAT * self.gap[k], 0.05):
            counts["flat"] += 1
        elif abs(self.along[k] - along.mean()) > 0.5 * self.gap[k] + 1e-3:
            counts["off"] += 1
        elif beside.any():  # wholly to one side of its image
            counts["beside"] += 1
        else:
            closed[k].append((float(along.mean()), data))

    def _contours(self, closed: Planes) -> tuple[list[Contour], int, float]:
        """Of several planes that fall on one slice the nearest is kept, and a contour that is there twice once.

        Returns contours, how many were left out, and the largest distance from a slice that is more than rounding.
        """
        drawn, doubled, snapped = [], 0, 0.0
        for k in sorted(closed):
            nearest = min((along for along, _ in closed[k]), key=lambda w: abs(w - self.along[k]))
            kept: dict[bytes, Float64Array] = {}
            for along, data in closed[k]:
                key = data.tobytes()
                if abs(along - nearest) > FLAT * self.gap[k] or key in kept:
                    doubled += 1
                else:
                    kept[key] = data
                    away = abs(along - self.along[k])
                    snapped = max(snapped, away if away > max(ON_SLICE * self.gap[k], ROUNDING_MM) else 0.0)
            drawn += [Contour(data, image=k) for data in kept.values()]
        return drawn, doubled, float(snapped)


def _points(contour: Any, subject: str) -> Float64Array:
    """Return the points of a contour (n, 3), the first not repeated; read as bytes, which is far faster."""
    raw = contour.get_item(CONTOUR_DATA) if CONTOUR_DATA in contour else None
    value = None if raw is None else raw.value
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        value = "\\".join(map(str, value))
    flat = dcm.decimals(value or "", "a contour", subject) if value else np.zeros(0)
    stated = dcm.integer(contour, "NumberOfContourPoints", -1, subject)
    if flat.size == 0 or flat.size % 3 or not np.isfinite(flat).all() or np.abs(flat).max() > 1e6:
        raise damaged(subject, f"a contour holds {flat.size} numbers, needed are finite triples of millimetres")
    if stated >= 0 and stated * 3 != flat.size:
        raise damaged(subject, f"a contour states {stated} points and holds {flat.size / 3:g}")
    points = flat.reshape(-1, 3)
    return points[:-1] if len(points) > 1 and np.array_equal(points[0], points[-1]) else points


SAFE_NAME = 16
LONGEST_REMARK = 200


def write_rtstruct(
    path: str | Path, structures: StructureSet, series: Series, *, source: StructureSet,
    names: Mapping[str, str] | None = None, remarks: Mapping[int, str] | None = None,
) -> None:  # fmt: skip
    """Write structures drawn on slices of a series as a new, unapproved set; empty structures are not written.

    The series gives patient, study, frame of reference and referenced images; ``source``, the planning set, becomes the
    predecessor. ``names`` are new names; ``remarks`` become the ROI Description, cut to `LONGEST_REMARK` characters.
    Raises E165 if there is nothing to write, E166 for names that DICOM does not allow or that are not unique.
    """
    drawn = [one for one in structures.structures if one.contours or len(one.points)]
    if not drawn:
        raise RegweaveError("E165", "no structure has a contour on this series", "look at the registration")
    called = checked_names(drawn, names or {})
    require_identifiers(series)
    now = datetime.now()
    with dcm.guarded("the structure set"):
        data = new_object(series, RTSTRUCT, "RTSTRUCT", "Propagated contours, not approved")
        day, time, label = f"{now:%Y%m%d}", f"{now:%H%M%S}", f"RW {now:%Y%m%d}"
        data.StructureSetLabel = label if label != source.label else f"{label} B"
        data.StructureSetDate, data.StructureSetTime, data.OperatorsName = day, time, ""
        data.ApprovalStatus = "UNAPPROVED"
        listed = item(SeriesInstanceUID=series.identity.series_uid, ContourImageSequence=references(series))
        study = item(
            ReferencedSOPClassUID=STUDY_CLASS, ReferencedSOPInstanceUID=series.identity.study_uid,
            RTReferencedSeriesSequence=[listed],
        )  # fmt: skip
        frame = item(FrameOfReferenceUID=data.FrameOfReferenceUID, RTReferencedStudySequence=[study])
        data.ReferencedFrameOfReferenceSequence = [frame]
        if source.instance_uid:
            data.PredecessorStructureSetSequence = [reference(RTSTRUCT, source.instance_uid)]
        number, names_, drawings, kinds = iter(range(1, 1 << 31)), [], [], []
        for k, one in enumerate(drawn):
            remark = (remarks or {}).get(one.number, "")[:LONGEST_REMARK]
            names_.append(item(
                **({"ROIDescription": remark} if remark else {}), ROINumber=one.number, ROIName=called[one.number],
                ReferencedFrameOfReferenceUID=data.FrameOfReferenceUID, ROIGenerationAlgorithm="AUTOMATIC",
                ROIGenerationDescription=f"regweave {__version__}: carried over by a registration",
            ))  # fmt: skip
            drawings.append(_drawing(one, series, number, PALETTE[k % len(PALETTE)]))
            kinds.append(item(
                ObservationNumber=one.number, ReferencedROINumber=one.number, ROIInterpreter="",
                RTROIInterpretedType=one.kind if re.fullmatch(r"[A-Z0-9_ ]{0,16}", one.kind) else "",
            ))  # fmt: skip
        data.StructureSetROISequence, data.ROIContourSequence = names_, drawings
        data.RTROIObservationsSequence = kinds
    save(path, data)


def require_identifiers(series: Series) -> None:
    """Refuse a series without the identifiers by which a structure set refers to it: E123."""
    there = {
        "StudyInstanceUID": series.identity.study_uid, "SeriesInstanceUID": series.identity.series_uid,
        "SOPInstanceUID": all(one.instance_uid for one in series.slices),
    }  # fmt: skip
    lacking = ", ".join(name for name, found in there.items() if not found)
    if lacking:
        message = f"today's series has no {lacking}, and structure sets refer to series and images by them"
        raise RegweaveError("E123", message, "export the series again")


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
        notices.warn(f"W225: names of more than {SAFE_NAME} characters, which some planning systems cut: {some(long)}")
    return called


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
        ROIDisplayColor=list(structure.colour or spare), ReferencedROINumber=structure.number, ContourSequence=made
    )


def rounded(points: Float64Array) -> Float64Array:
    """Round to a thousandth of a millimetre and drop points that have become equal to the one before them."""
    found = np.round(points, 3) + 0.0
    return np.asarray(found[(found != np.roll(found, 1, axis=0)).any(axis=1)])


def _contour(kind: str, points: Float64Array, image: DicomSlice, number: int) -> Any:
    made = item(
        ContourImageSequence=[reference(image.class_uid, image.instance_uid)], ContourGeometricType=kind,
        NumberOfContourPoints=len(points), ContourNumber=number,
    )  # fmt: skip
    # Written as bytes: a value object for each of a million numbers takes longer than all else, and a gigabyte.
    # pydicom decodes them nevertheless unless the item states the encoding in which it is written.
    made.set_original_encoding(True, True, made._character_set)
    text = "\\".join([f"{value:.3f}" for value in points.ravel().tolist()]).encode("ascii")
    text += b" " * (len(text) % 2)
    made[CONTOUR_DATA] = RawDataElement(CONTOUR_DATA, "DS", len(text), text, 0, True, True)
    return made
