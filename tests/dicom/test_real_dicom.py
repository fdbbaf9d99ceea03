"""Series, structure sets and registrations of vendors, where they are at hand."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from regweave.contours import carry_set, dice_of_areas, volume_ml
from regweave.io import read_transform
from regweave.io.dicom.reg import read_reg
from regweave.io.dicom.rtstruct import read_rtstruct, write_rtstruct
from regweave.io.dicom.series import read_series
from regweave.spatial.warp import warp_image
from regweave.types import Field, Transform

pytestmark = [pytest.mark.data, pytest.mark.filterwarnings("ignore:W22")]
SETS = [
    "aw_prone_ffp/rtstruct.dcm", "cerr_chest/rtstruct.dcm", "eclipse_brachy_mr/rtstruct.dcm",
    "eclipse_ent/rtstruct.dcm",
    "eclipse_tg119/rtstruct_cshape.dcm", "eclipse_tg119/rtstruct_hn.dcm", "eclipse_tg119/rtstruct_multi.dcm",
    "eclipse_tg119/rtstruct_prostate.dcm", "pinnacle_imrt/rtstruct.dcm", "plastimatch_tiny/rtstruct.dcm",
]  # fmt: skip


@pytest.fixture(scope="module")
def dicom(data_root):
    if not (data_root / "dicom").is_dir():
        pytest.skip("there is no folder dicom")
    return data_root / "dicom"


def series_of(path: Path) -> Path:
    return next(one for one in sorted(path.parent.iterdir()) if one.is_dir())


@pytest.mark.parametrize("name", SETS)
def test_contours_return_to_their_own_series(dicom, tmp_path, name):
    path = dicom / name
    series = read_series(series_of(path))
    found = read_rtstruct(path, series)
    moved = carry_set(found, series, Transform(Field.zero(series.image.geometry)), series)
    write_rtstruct(tmp_path / "new.dcm", moved, series, source=found)
    again = read_rtstruct(tmp_path / "new.dcm", series)
    assert [one.name for one in again.structures] == [one.name for one in found.structures]
    for before, after in zip(found.structures, again.structures, strict=True):
        assert (before.kind, before.number) == (after.kind, after.number)
        np.testing.assert_allclose(after.points, before.points, atol=0.001)
        if before.contours:
            assert dice_of_areas(before, after, series) >= 0.995, before.name
            assert volume_ml(after, series) == pytest.approx(volume_ml(before, series), rel=0.01)
    if shutil.which("dciodvfy"):
        run = subprocess.run(["dciodvfy", tmp_path / "new.dcm"], capture_output=True, text=True, check=False)
        assert "Error" not in run.stdout + run.stderr


def test_registrations_of_mim_are_reproduced(dicom):
    """Its own resampled series, to a twentieth of a Hounsfield unit."""
    for reg, source, result in (
        ("reg_rigid.dcm", "rect-offset", "rect-offset-resampled"),
        ("reg_deformable.dcm", "sphere-centered", "sphere-centered-resampled"),
    ):
        folder = dicom / "mim_reg"
        moving, expected = read_series(folder / source).image, read_series(folder / result).image
        transform = read_transform(read_reg(folder / reg).transform, expected.geometry)
        ours = warp_image(moving, transform, fill=-1000.0)
        assert np.abs(ours.data - expected.data).mean() < 0.05
