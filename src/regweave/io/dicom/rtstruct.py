"""RT structure sets: read against the series on which they are drawn."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from pydicom.multival import MultiValue

from regweave import notices
from regweave.errors import RegweaveError
from regweave.io.dicom.parse import (
    guarded,
    identity_in,
    items,
    read_dataset,
    require_class,
    require_same_patient,
    text,
)
from regweave.io.dicom.values import Series
from regweave.io.dicom.write.structure_set import write_rtstruct
from regweave.io.disk.files import damaged
from regweave.types import Colour, Contour, Float64Array, LeftOut, Structure, StructureSet

__all__ = ["read_drawn", "read_rtstruct", "referenced_series", "write_rtstruct"]

RTSTRUCT = "1.2.840.10008.5.1.4.1.1.481.3"
CLOSED = ("CLOSED_PLANAR", "CLOSEDPLANAR_XOR")
FLAT = 0.1
"""Share of a gap by which the points of one contour may differ along the normal."""
CONTOUR_DATA = 0x30060050
LONGEST_NAME = 64
BESIDE = "lie beside the images of the series"


def read_rtstruct(path: str | Path, series: Series, *, allow_id_mismatch: bool = False) -> StructureSet:
    """Read a structure set drawn on a series.

    Parameters
    ----------
    path : path
    series : Series
        Contours are placed on its slices by geometry.
    allow_id_mismatch : bool
        Take a set that states another patient than the series.

    Returns
    -------
    StructureSet
        ``left_out`` lists what is in the file and not in the set: empty structures, open contours, contours of fewer
        than three points, off the slices, or on slices that are not there. Names that DICOM does not allow (over 64
        characters, a backslash, control characters, none) are mended with warning W230.

    Raises
    ------
    RegweaveError
        E102 damaged, E160 drawn in another frame of reference, E162 another patient, E164 no structure set, E165
        nothing in it that lies on the series.
    """
    subject = f"'{path}'"
    with guarded(subject):
        data, _ = read_dataset(Path(path), subject)
        require_class(data, (RTSTRUCT,), "RT structure set", subject)
        if not allow_id_mismatch:
            require_same_patient(identity_in(data), series.identity, f"{subject} and its series")
        drawn, left_out = _structures(data, series, subject)
        _check_references(data, series, subject)
        label, uid = text(data, "StructureSetLabel"), text(data, "SOPInstanceUID")
        identity = identity_in(data)
    if not drawn:
        reasons = "; ".join(sorted({one.reason for one in left_out})) or "it lists no structure"
        raise RegweaveError("E165", f"{subject} has nothing on this series: {reasons}", "name the series it belongs to")
    return StructureSet(tuple(drawn), label, series.frame_uid, identity, tuple(left_out), uid)


def read_drawn(path: Path) -> tuple[Structure, ...]:
    """Read the closed contours and the points of a structure set as they are in the file, on no series.

    Raises
    ------
    RegweaveError
        E101 missing, E102 damaged, E164 no structure set.
    """
    subject = f"'{path}'"
    with guarded(subject):
        data, _ = read_dataset(path, subject)
        require_class(data, (RTSTRUCT,), "RT structure set", subject)
        rois = items(data, "StructureSetROISequence")
        counted = [int(roi.get("ROINumber")) for roi in rois]
        drawings = {int(one.get("ReferencedROINumber")): one for one in items(data, "ROIContourSequence")}
        found = []
        for number, name in zip(counted, _names(rois, counted, subject), strict=True):
            item = drawings.get(number)
            drawn = [] if item is None else items(item, "ContourSequence")
            read = [(text(one, "ContourGeometricType"), _points(one, subject)) for one in drawn]
            closed = tuple(Contour(points) for kind, points in read if kind in CLOSED and len(points) > 2)
            single = np.reshape([points for kind, points in read if kind == "POINT"], (-1, 3)).astype(float)
            found.append(Structure(number, name, "", _colour(item), closed, single))
    return tuple(found)


def referenced_series(path: str | Path) -> frozenset[str]:
    """Return the identifiers of the image series that a structure set refers to."""
    with guarded(f"'{path}'"):
        data, _ = read_dataset(Path(path), f"'{path}'")
        require_class(data, (RTSTRUCT,), "RT structure set", f"'{path}'")
        return _referenced(data)


def _referenced(data: Any) -> frozenset[str]:
    frames = items(data, "ReferencedFrameOfReferenceSequence")
    studies = [study for frame in frames for study in items(frame, "RTReferencedStudySequence")]
    listed = [one for study in studies for one in items(study, "RTReferencedSeriesSequence")]
    return frozenset(filter(None, (text(one, "SeriesInstanceUID") for one in listed)))


def _check_references(data: Any, series: Series, subject: str) -> None:
    listed = _referenced(data)
    if listed and series.identity.series_uid not in listed:
        notices.warn(f"W224: {subject} was drawn on another series of the same frame of reference; placed by position")


def _structures(data: Any, series: Series, subject: str) -> tuple[list[Structure], list[LeftOut]]:
    rois = items(data, "StructureSetROISequence")
    counted = [int(roi.get("ROINumber")) for roi in rois]
    if len(set(counted)) < len(counted):
        raise RegweaveError("E164", f"{subject} has several structures of one number", "export the set again")
    drawings = {int(one.get("ReferencedROINumber")): one for one in items(data, "ROIContourSequence")}
    seen = items(data, "RTROIObservationsSequence")
    kinds = {int(one.get("ReferencedROINumber")): text(one, "RTROIInterpretedType") for one in seen}
    frames = {text(frame, "FrameOfReferenceUID") for frame in items(data, "ReferencedFrameOfReferenceSequence")}
    placer, found, left_out, strangers, aside = _Placer(series), [], [], 0, []
    names = _names(rois, counted, subject)
    for number, name, roi in zip(counted, names, rois, strict=True):
        frame = text(roi, "ReferencedFrameOfReferenceUID") or (frames.copy().pop() if len(frames) == 1 else "")
        if frame and series.frame_uid and frame != series.frame_uid:
            strangers += 1
            left_out.append(LeftOut(name, "drawn in another frame of reference"))
            continue
        item = drawings.get(number)
        structure, reasons = placer.place(Structure(number, name, kinds.get(number, ""), _colour(item)), item, subject)
        left_out += [LeftOut(name, reason) for reason in reasons]
        aside += [name for reason in reasons if reason.endswith(BESIDE)]
        if structure.contours or len(structure.points):
            found.append(structure)
    if aside:
        listed = ", ".join(aside[:5]) + (" …" if len(aside) > 5 else "")
        notices.warn(f"W235: contours of {subject} {BESIDE} and are left out: {listed}; was the set drawn on it?")
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
        listed = ", ".join(mended[:5]) + (" …" if len(mended) > 5 else "")
        notices.warn(
            f"W230: {subject} has {len(mended)} names that DICOM does not allow (1 to {LONGEST_NAME} characters, no "
            f"backslash, no control characters); they are read as: {listed}"
        )
    return names


def _colour(item: Any) -> Colour | None:
    value = None if item is None else item.get("ROIDisplayColor", None)
    if value is None or isinstance(value, str | int) or len(value) != 3:
        return None
    r, g, b = (min(max(int(v), 0), 255) for v in value)
    return r, g, b


class _Placer:
    """Contours put on the slices of a series by their geometry."""

    def __init__(self, series: Series) -> None:
        self.grid, self.normal = series.grid, series.grid.normal
        self.corners = [one.position_mm for one in series.slices]
        self.along = np.array([one.along_mm for one in series.slices])
        gaps = np.diff(self.along)
        self.gap = np.maximum(np.append(gaps, gaps[-1]), np.insert(gaps, 0, gaps[0]))

    def place(self, empty: Structure, item: Any, subject: str) -> tuple[Structure, list[str]]:
        contours = [] if item is None else items(item, "ContourSequence")
        if not contours:
            return empty, ["no contours"]
        closed: dict[int, list[tuple[float, Float64Array]]] = defaultdict(list)
        points, short, counts = [], [], dict.fromkeys(("open", "off", "flat", "beside"), 0)
        for contour in contours:
            kind, data = text(contour, "ContourGeometricType"), _points(contour, subject)
            if kind == "POINT" and len(data) == 1:
                points.append(data[0])
            elif kind not in CLOSED:
                counts["open"] += 1
            elif len(data) < 3:
                short.append(data)
            else:
                self._add(closed, data, counts)
        if not closed and not counts["off"] and short and all(len(one) == 1 for one in short):
            points, short = points + [one[0] for one in short], []
        drawn, doubled = self._contours(closed)
        reasons = [
            f"{count} contours {why}"
            for count, why in (
                (counts["open"], "are open lines, which are not carried over"),
                (len(short), "have fewer than three points"),
                (counts["off"], "lie beyond or between the slices of the series"),
                (counts["beside"], BESIDE),
                (counts["flat"], "do not lie in a plane of the series"),
                (doubled, "share a slice with contours that lie nearer to it, or repeat one"),
            )
            if count
        ]
        made = Structure(
            empty.number, empty.name, empty.kind, empty.colour, tuple(drawn), np.reshape(points, (-1, 3)).astype(float)
        )
        return made, reasons

    def _add(
        self, closed: dict[int, list[tuple[float, Float64Array]]], data: Float64Array, counts: dict[str, int]
    ) -> None:
        along = data @ self.normal
        k = int(np.argmin(np.abs(self.along - along.mean())))
        if np.ptp(along) > max(FLAT * self.gap[k], 0.05):
            counts["flat"] += 1
        elif abs(self.along[k] - along.mean()) > 0.5 * self.gap[k] + 1e-3:
            counts["off"] += 1
        elif self._beside(data, k):
            counts["beside"] += 1
        else:
            closed[k].append((float(along.mean()), data))

    def _beside(self, data: Float64Array, k: int) -> bool:
        """Tell whether a contour lies wholly to one side of its image."""
        away = data - self.corners[k]
        for axis, step, count in zip(
            (self.grid.row, self.grid.column), self.grid.spacing_mm, self.grid.size, strict=True
        ):
            index = away @ axis / step
            if index.max() < -0.5 or index.min() > count - 0.5:
                return True
        return False

    def _contours(self, closed: dict[int, list[tuple[float, Float64Array]]]) -> tuple[list[Contour], int]:
        """Of several planes that fall on one slice the nearest is kept, and a contour that is there twice once."""
        drawn, doubled = [], 0
        for k in sorted(closed):
            nearest = min((along for along, _ in closed[k]), key=lambda w: abs(w - self.along[k]))
            kept: list[Float64Array] = []
            for along, data in closed[k]:
                again = any(np.array_equal(data, other) for other in kept)
                if abs(along - nearest) > FLAT * self.gap[k] or again:
                    doubled += 1
                else:
                    kept.append(data)
            drawn += [Contour(data, image=k) for data in kept]
        return drawn, doubled


def _points(contour: Any, subject: str) -> Float64Array:
    """Return the points of a contour (n, 3), the first not repeated; read as bytes, which is far faster."""
    raw = contour.get_item(CONTOUR_DATA) if CONTOUR_DATA in contour else None
    value = None if raw is None else raw.value
    if isinstance(value, bytes):
        value = value.decode("ascii").strip(" \0").split("\\")
    flat = np.array([] if value is None else value, dtype=np.float64).ravel()
    stated = contour.get("NumberOfContourPoints", None)
    if flat.size == 0 or flat.size % 3 or not np.isfinite(flat).all() or np.abs(flat).max() > 1e6:
        raise damaged(subject, f"a contour holds {flat.size} numbers, needed are finite triples of millimetres")
    if stated not in (None, "") and int(stated) * 3 != flat.size:
        raise damaged(subject, f"a contour says {int(stated)} points and holds {flat.size / 3:g}")
    points = flat.reshape(-1, 3)
    return points[:-1] if len(points) > 1 and np.array_equal(points[0], points[-1]) else points
