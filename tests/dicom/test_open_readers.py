"""What open readers ask of a structure set: the rules of the importer of SlicerRT."""

import numpy as np
import pydicom
import pytest

from regweave.clinic.commission import even_slices, make_scan
from regweave.contours import carry_set
from regweave.io.dicom.rtstruct import write_rtstruct
from regweave.types import Field, Transform


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A structure set that went through a transform, holes and islands among it."""
    scan = make_scan(lambda p: p, shift_mm=(0.0, 0.0, 0.0), along_mm=even_slices(), name="PLAN", seed=0)
    moved = carry_set(scan.structures, scan.series, Transform(Field.zero(scan.series.image.geometry)), scan.series)
    path = tmp_path_factory.mktemp("open") / "rtstruct.dcm"
    write_rtstruct(path, moved, scan.series, source=scan.structures)
    return path, scan


def numbers(contour) -> np.ndarray:
    return np.array(contour.ContourData, dtype=float).reshape(-1, 3)


def normal_of(points: np.ndarray) -> np.ndarray | None:
    """Normal of the first three points in a row that are not on one line, as the importer takes it."""
    for a, b, c in zip(points, points[1:], points[2:], strict=False):
        found = np.cross(b - a, c - a)
        if found.any():
            return found / np.linalg.norm(found)
    return None


def test_contours_are_whole_planar_parallel_and_evenly_apart(written):
    """The importer takes the thickness of slices from the distances of planes, which must agree."""
    path, scan = written
    known = {one.instance_uid for one in scan.series.slices}
    for roi in pydicom.dcmread(path).ROIContourSequence:
        along = set()
        for contour in roi.ContourSequence:
            points = numbers(contour)
            assert contour.ContourGeometricType == "CLOSED_PLANAR"
            assert int(contour.NumberOfContourPoints) == len(points) >= 3
            assert contour.ContourImageSequence[0].ReferencedSOPInstanceUID in known
            normal = normal_of(points)
            assert normal is not None
            assert abs(normal @ scan.series.grid.normal) == pytest.approx(1.0, abs=1e-6)
            assert np.ptp(points @ scan.series.grid.normal) < 1e-3
            along.add(round(float(points[0] @ scan.series.grid.normal), 3))
        gaps = np.diff(sorted(along))
        np.testing.assert_allclose(gaps, np.median(gaps), atol=1e-3)
