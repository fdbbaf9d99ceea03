"""How long do contours of a whole scan take, from DICOM to DICOM: 512×512×130 voxels, thirty structures?

CASE is a folder with `ct` and an RTSTRUCT. Its scan is drawn out to 130 slices 3 mm apart, its structures are followed
through the slices and doubled until there are thirty; today's scan is the same one bent by some millimetres, with
noise. Then `regweave contours` runs in a process of its own with all its files and the page. Wall and processor seconds
and the most memory are printed; give the program a quiet machine.
"""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pydicom
from scipy import ndimage

from _common import ROOT, claim, parser, regweave_command, write

sys.path.append(str(ROOT / "tests" / "dicom"))
from made_dicom import Made, Roi, write_rtstruct, write_series

SLICES, STEP_MM, STRUCTURES = 130, 3.0, 30
NOISE_HU, BEND_MM = 8.0, 6.0


@dataclass(frozen=True)
class Long(Made):
    """A series with voxels of its own, (z, y, x)."""

    hu: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def values(self, k: int) -> np.ndarray:
        """Hounsfield units of a slice."""
        return self.hu[k]


def drawn_out(folder: Path, rtstruct: Path) -> tuple[Long, list[Roi]]:
    """The scan of a case on as many slices as wanted, and thirty structures from the nearest slices."""
    slices = sorted(map(pydicom.dcmread, folder.glob("*.dcm")), key=lambda s: float(s.ImagePositionPatient[2]))
    hu = np.stack([s.pixel_array * float(s.RescaleSlope) + float(s.RescaleIntercept) for s in slices])
    places = np.linspace(0, len(hu) - 1, SLICES)
    low = np.minimum(places.astype(int), len(hu) - 2)
    part = (places - low).astype(np.float32)[:, None, None]
    hu = hu.astype(np.float32)
    origin, (down, right) = tuple(map(float, slices[0].ImagePositionPatient)), map(float, slices[0].PixelSpacing)
    scan = Long(
        tuple(STEP_MM * k for k in range(SLICES)), origin=origin, spacing=(right, down), size=hu.shape[:0:-1],
        hu=hu[low] * (1 - part) + hu[low + 1] * part,
    )  # fmt: skip
    heights, stated = [float(s.ImagePositionPatient[2]) for s in slices], pydicom.dcmread(rtstruct)
    names = {int(s.ROINumber): str(s.ROIName) for s in stated.StructureSetROISequence}
    found = []
    for roi in stated.ROIContourSequence:
        rings: list[tuple[int, np.ndarray]] = []
        for contour in roi.get("ContourSequence", []):
            points = np.array(contour.ContourData, float).reshape(-1, 3)
            old = int(np.argmin(np.abs(np.subtract(heights, points[0, 2]))))
            if len(points) > 2 and abs(heights[old] - points[0, 2]) < 0.5:
                rings += [(int(k), points[:, :2] - origin[:2]) for k in np.flatnonzero(np.rint(places) == old)]
        found.append(Roi(names[int(roi.ReferencedROINumber)], tuple(rings)))
    found = [roi for roi in found if roi.contours]
    again = [(found[n % len(found)], n // len(found)) for n in range(STRUCTURES)]
    return scan, [replace(roi, name=f"{roi.name} {1 + times}" if times else roi.name) for roi, times in again]


def bent(scan: Long, seed: int) -> Long:
    """The scan as it is today: every slice bent smoothly in its plane, more or less along the body, with noise."""
    rng, out = np.random.default_rng(seed), np.empty_like(scan.hu)
    rows, columns = np.mgrid[: out.shape[1], : out.shape[2]].astype(np.float32)
    for k, plane in enumerate(scan.hu):
        much = BEND_MM / scan.spacing[0] * np.sin(2 * np.pi * k / len(out))
        at = [rows + much * np.sin(columns / 80), columns + much * np.cos(rows / 80)]
        out[k] = ndimage.map_coordinates(plane, at, order=1, mode="nearest")
    noisy = out + rng.normal(0, NOISE_HU, out.shape).astype(np.float32)
    return replace(scan, hu=noisy, series="2", frame="2", study="2")


def main() -> None:
    """Make the case, run, print and write the numbers."""
    options = parser(__doc__, seed=0, threads=2, output="clinic-size")
    options.add_argument("case", type=Path, help="folder with ct and an RTSTRUCT")
    options.add_argument("--rtstruct", default="rtstruct.dcm", help="name in that folder")
    given = options.parse_args()
    scan, rois = drawn_out(given.case / "ct", given.case / given.rtstruct)
    with TemporaryDirectory() as folder:
        plan, today, out = (Path(folder, name) for name in ("plan", "today", "out"))
        write_series(plan, scan)
        write_rtstruct(plan / "rtstruct.dcm", scan, rois)
        write_series(today, bent(scan, given.seed))
        done = regweave_command("contours", plan, today, "-o", out, threads=given.threads, check=False)
        if not (out / "rtstruct.dcm").exists():
            raise SystemExit(f"regweave contours ended with status {done.status} and no structure set:\n{done.text}")
    where = f"{'×'.join(map(str, scan.hu.shape[::-1]))}, {len(rois)} structures"
    claims = [
        claim(f"wall seconds of contours, {where}", done.wall, ".1f s", most=60),
        claim(f"processor seconds of contours, {where}", done.cpu, ".1f s"),
        claim(f"most memory of contours, {where}", done.gb, ".2f GB", most=2.5),
    ]
    write(given.output, given.seed, {"run": done._asdict() | {"text": "", "structures": len(rois)}}, claims)


if __name__ == "__main__":
    main()
