"""How long do contours of a whole scan take, from DICOM to DICOM: 512×512×130 voxels, thirty structures?

CASE is a folder with `ct` and an RTSTRUCT. Its scan is drawn out to 130 slices 3 mm apart, its structures are followed
through the slices and doubled until there are thirty; today's scan is the same one bent by some millimetres, with
noise. Then `regweave contours` runs in a process of its own with all its files and the page. Wall and processor seconds
and the most memory are printed; give the program a quiet machine.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pydicom
from pydicom.dataset import Dataset
from pydicom.uid import generate_uid
from scipy import ndimage

from _common import Claim, parser, write

SLICES, STEP_MM, STRUCTURES = 130, 3.0, 30
NOISE_HU, BEND_MM = 8.0, 6.0


def slices_of(folder: Path) -> list[Dataset]:
    """Slices of an axial series from feet to head."""
    return sorted(map(pydicom.dcmread, folder.glob("*.dcm")), key=lambda s: float(s.ImagePositionPatient[2]))


def drawn_out(slices: list[Dataset]) -> np.ndarray:
    """Hounsfield numbers (z, y, x) of as many slices as wanted between the first and the last."""
    hu = np.stack([s.pixel_array * float(s.RescaleSlope) + float(s.RescaleIntercept) for s in slices]).astype(
        np.float32
    )
    places = np.linspace(0, len(hu) - 1, SLICES)
    low = np.minimum(places.astype(int), len(hu) - 2)
    part = (places - low).astype(np.float32)[:, None, None]
    return hu[low] * (1 - part) + hu[low + 1] * part


def bent(hu: np.ndarray, spacing: float, seed: int) -> np.ndarray:
    """The scan as it is today: every slice bent smoothly in its plane, more or less along the body, with noise."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[: hu.shape[1], : hu.shape[2]].astype(np.float32)
    out = np.empty_like(hu)
    for k, plane in enumerate(hu):
        much = BEND_MM / spacing * np.sin(2 * np.pi * k / len(hu))
        at = [rows + much * np.sin(columns / 80), columns + much * np.cos(rows / 80)]
        out[k] = ndimage.map_coordinates(plane, at, order=1, mode="nearest")
    return out + rng.normal(0, NOISE_HU, hu.shape).astype(np.float32)


def write_series(slices: list[Dataset], hu: np.ndarray, folder: Path) -> list[str]:
    """One file for each slice in a study, series and frame of its own; return their instance UIDs."""
    folder.mkdir(parents=True)
    study, series, frame = (generate_uid() for _ in range(3))
    x, y, z = map(float, slices[0].ImagePositionPatient)
    uids = []
    for k, plane in enumerate(hu):
        new = deepcopy(slices[0])
        new.SOPInstanceUID = new.file_meta.MediaStorageSOPInstanceUID = generate_uid()
        new.StudyInstanceUID, new.SeriesInstanceUID, new.FrameOfReferenceUID = study, series, frame
        new.InstanceNumber, new.SliceThickness = k + 1, STEP_MM
        new.ImagePositionPatient = [x, y, z + k * STEP_MM]
        new.SliceLocation = z + k * STEP_MM
        stored = (plane - float(new.RescaleIntercept)) / float(new.RescaleSlope)
        least, most = (-(2**15), 2**15 - 1) if new.PixelRepresentation else (0, 2**16 - 1)
        kind = np.int16 if new.PixelRepresentation else np.uint16
        new.PixelData = np.clip(np.rint(stored), least, most).astype(kind).tobytes()
        new.save_as(folder / f"{k:04}.dcm")
        uids.append(new.SOPInstanceUID)
    return uids


def followed(roi: Dataset, slices: list[Dataset]) -> Iterator[tuple[int, np.ndarray]]:
    """Slice numbers of the long scan with outlines of a structure there, from the nearest slice of the short one."""
    heights = np.array([float(s.ImagePositionPatient[2]) for s in slices])
    nearest = np.rint(np.linspace(0, len(slices) - 1, SLICES)).astype(int)
    for contour in roi.get("ContourSequence", []):
        points = np.array(contour.ContourData, float).reshape(-1, 3)
        old = int(np.argmin(np.abs(heights - points[0, 2])))
        if len(points) > 2 and abs(heights[old] - points[0, 2]) < 0.5:
            yield from ((int(k), points) for k in np.flatnonzero(nearest == old))


def write_structures(source: Path, slices: list[Dataset], plan: Path, uids: list[str]) -> int:
    """Write a structure set for the long scan beside its slices; return how many structures it has."""
    found = pydicom.dcmread(source)
    first = pydicom.dcmread(plan / "0000.dcm")
    z = float(first.ImagePositionPatient[2])
    names = {int(s.ROINumber): s for s in found.StructureSetROISequence}
    kinds = {int(o.ReferencedROINumber): o for o in found.RTROIObservationsSequence}
    drawn = [
        (names[int(r.ReferencedROINumber)], r)
        for r in found.ROIContourSequence
        if any(True for _ in followed(r, slices))
    ]
    rois, contours, observations = [], [], []
    for number in range(1, STRUCTURES + 1):
        name, roi = drawn[(number - 1) % len(drawn)]
        kind = kinds[int(name.ROINumber)]
        new_name, new_roi, new_kind = deepcopy(name), Dataset(), deepcopy(kind)
        new_name.ROINumber = new_roi.ReferencedROINumber = new_kind.ReferencedROINumber = number
        new_kind.ObservationNumber = number
        new_name.ReferencedFrameOfReferenceUID = first.FrameOfReferenceUID
        if number > len(drawn):
            new_name.ROIName = f"{name.ROIName} {1 + (number - 1) // len(drawn)}"
        new_roi.ContourSequence = [_contour(k, points, z, first, uids) for k, points in followed(roi, slices)]
        rois.append(new_name)
        contours.append(new_roi)
        observations.append(new_kind)
    found.StructureSetROISequence, found.ROIContourSequence = rois, contours
    found.RTROIObservationsSequence = observations
    found.ReferencedFrameOfReferenceSequence = [_reference(first, uids)]
    found.StudyInstanceUID, found.SeriesInstanceUID, found.SOPInstanceUID = (
        first.StudyInstanceUID,
        generate_uid(),
        generate_uid(),
    )
    found.file_meta.MediaStorageSOPInstanceUID = found.SOPInstanceUID
    found.save_as(plan / "rtstruct.dcm")
    return len(rois)


def _image(first: Dataset, uid: str) -> Dataset:
    out = Dataset()
    out.ReferencedSOPClassUID, out.ReferencedSOPInstanceUID = first.SOPClassUID, uid
    return out


def _contour(k: int, points: np.ndarray, z: float, first: Dataset, uids: list[str]) -> Dataset:
    out = Dataset()
    moved = points.copy()
    moved[:, 2] = z + k * STEP_MM
    out.ContourImageSequence = [_image(first, uids[k])]
    out.ContourGeometricType, out.NumberOfContourPoints = "CLOSED_PLANAR", len(points)
    out.ContourData = [f"{v:.3f}" for v in moved.ravel()]
    return out


def _reference(first: Dataset, uids: list[str]) -> Dataset:
    series, study, frame = Dataset(), Dataset(), Dataset()
    series.SeriesInstanceUID, series.ContourImageSequence = first.SeriesInstanceUID, [_image(first, u) for u in uids]
    study.ReferencedSOPClassUID, study.ReferencedSOPInstanceUID = "1.2.840.10008.3.1.2.3.1", first.StudyInstanceUID
    study.RTReferencedSeriesSequence = [series]
    frame.FrameOfReferenceUID, frame.RTReferencedStudySequence = first.FrameOfReferenceUID, [study]
    return frame


def propagated(plan: Path, today: Path, out: Path) -> dict[str, Any]:
    """`regweave contours` in a process of its own."""
    start = time.perf_counter()
    call = "from regweave.cli import main; raise SystemExit(main())"
    process = subprocess.Popen([sys.executable, "-c", call, "contours", str(plan), str(today), "-o", str(out)])
    _, status, used = os.wait4(process.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if not (out / "rtstruct.dcm").exists():
        raise SystemExit(f"regweave contours ended with status {code} and no structure set")
    wall = time.perf_counter() - start
    return {"wall": wall, "cpu": used.ru_utime + used.ru_stime, "gb": used.ru_maxrss / 1024**2, "status": code}


def main() -> None:
    """Make the case, run, print and write the numbers."""
    options = parser(__doc__ or "", output="clinic-size")
    options.add_argument("case", type=Path, help="folder with ct and an RTSTRUCT")
    options.add_argument("--rtstruct", default="rtstruct.dcm")
    given = options.parse_args()
    with TemporaryDirectory() as folder:
        plan, today = Path(folder, "plan"), Path(folder, "today")
        slices = slices_of(given.case / "ct")
        hu = drawn_out(slices)
        uids = write_series(slices, hu, plan)
        count = write_structures(given.case / given.rtstruct, slices, plan, uids)
        write_series(slices, bent(hu, float(slices[0].PixelSpacing[0]), given.seed), today)
        row = {**propagated(plan, today, Path(folder, "out")), "structures": count, "shape": [*hu.shape[::-1]]}
    where = f"{'×'.join(map(str, row['shape']))}, {count} structures"
    claims = [
        Claim(f"wall seconds of contours, {where}", row["wall"], ".1f", " s", 60, "at most"),
        Claim(f"processor seconds of contours, {where}", row["cpu"], ".1f", " s"),
        Claim(f"most memory of contours, {where}", row["gb"], ".2f", " GB", 2.5, "at most"),
    ]
    write(given.output, given.seed, {"run": row}, claims)


if __name__ == "__main__":
    main()
