"""Registrations and doses: directions, places and what a round trip may change."""

import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pydicom
import pytest
from made_dicom import Made, dose, function_of, save, uid, write_series

from regweave.errors import RegweaveError
from regweave.io import read_transform
from regweave.io.dicom.dose import read_dose, write_dose
from regweave.io.dicom.reg import read_reg, write_reg_deformable, write_reg_rigid
from regweave.io.dicom.series import read_series
from regweave.types import Field, Geometry, Transform

PLAN = Made()
TODAY = replace(PLAN, series="7", frame="7", study="7")
TURN = np.radians(8.0)
MATRIX = np.array([
    [np.cos(TURN), -np.sin(TURN), 0, 3.0], [np.sin(TURN), np.cos(TURN), 0, -2.0], [0, 0, 1, 4.0], [0, 0, 0, 1],
])  # fmt: skip


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Today and the plan."""
    folder = tmp_path_factory.mktemp("pair")
    write_series(folder / "plan", PLAN)
    write_series(folder / "today", TODAY)
    return read_series(folder / "today"), read_series(folder / "plan")


def points():
    return np.random.default_rng(1).uniform([-25, -35, 10], [25, 20, 26], (200, 3))


def test_a_rigid_object_stores_the_way_from_source_to_registered(pair, tmp_path):
    write_reg_rigid(tmp_path / "reg.dcm", MATRIX, *pair)
    data = pydicom.dcmread(tmp_path / "reg.dcm")
    items = {str(one.FrameOfReferenceUID): one for one in data.RegistrationSequence}
    matrices = {
        frame: np.reshape(
            one.MatrixRegistrationSequence[0].MatrixSequence[0].FrameOfReferenceTransformationMatrix, (4, 4)
        ).astype(float)
        for frame, one in items.items()
    }
    assert data.FrameOfReferenceUID == uid(4, 7)
    np.testing.assert_array_equal(matrices[uid(4, 7)], np.eye(4))
    np.testing.assert_allclose(matrices[uid(4, 1)] @ MATRIX, np.eye(4), atol=1e-7)
    found = read_reg(tmp_path / "reg.dcm")
    assert found.linear
    assert (found.registered_frame, found.source_frame) == (uid(4, 7), uid(4, 1))
    np.testing.assert_allclose(found.transform.affine, MATRIX, atol=1e-7)
    np.testing.assert_allclose(read_transform(tmp_path / "reg.dcm").affine, MATRIX, atol=1e-7)


def curved(geometry):
    grid = geometry.points(np.moveaxis(np.indices(geometry.shape, dtype=float), 0, -1))
    data = np.stack([3 * np.sin(grid[..., 1] / 20), 2 * np.cos(grid[..., 0] / 25), 0.05 * grid[..., 0]])
    return Transform(Field(data.astype(np.float32), geometry), MATRIX)


def test_a_deformable_object_holds_the_whole_map(pair, tmp_path):
    transform = curved(pair[0].image.geometry)
    error = write_reg_deformable(tmp_path / "reg.dcm", transform, *pair)
    found = read_reg(tmp_path / "reg.dcm")
    assert not found.linear
    assert error < 0.25
    away = np.linalg.norm(found.transform(points()) - transform(points()), axis=1)
    assert away.max() <= error * 1.5 + 1e-3
    data = pydicom.dcmread(tmp_path / "reg.dcm").DeformableRegistrationSequence[0]
    assert data.SourceFrameOfReferenceUID == uid(4, 1)
    assert [float(v) for v in data.DeformableRegistrationGridSequence[0].ImageOrientationPatient] == [1, 0, 0, 0, 1, 0]


def test_matrices_before_and_after_are_honoured_and_a_mirror_is_a_place(pair, tmp_path):
    """post · (pre · x + v), by the standard; planes stored downwards with a mirror before, by one vendor."""
    shift = Transform(Field(np.full((3, 4, 4, 4), 2.0, np.float32), Geometry((4, 4, 4), np.eye(4))))
    write_reg_deformable(tmp_path / "reg.dcm", shift, *pair, spacing_mm=5.0)
    data = pydicom.dcmread(tmp_path / "reg.dcm")
    item = data.DeformableRegistrationSequence[0]
    turned = pydicom.Dataset()
    turned.FrameOfReferenceTransformationMatrixType = "RIGID"
    turned.FrameOfReferenceTransformationMatrix = [f"{v:.9g}" for v in MATRIX.ravel()]
    item.PreDeformationMatrixRegistrationSequence = [turned]
    data.save_as(tmp_path / "pre.dcm")
    expected = points() @ MATRIX[:3, :3].T + MATRIX[:3, 3] + 2.0
    np.testing.assert_allclose(read_reg(tmp_path / "pre.dcm").transform(points()), expected, atol=1e-4)

    grid = item.DeformableRegistrationGridSequence[0]
    x, y, z = grid.GridDimensions
    vectors = np.frombuffer(grid.VectorGridData, "<f4").reshape(z, y, x, 3).copy()
    vectors[..., 2] = np.arange(z)[:, None, None]  # grows with the plane
    low = float(grid.ImagePositionPatient[2])
    top = low + 5.0 * (z - 1)
    grid.VectorGridData = vectors[::-1].tobytes()
    grid.ImagePositionPatient = [*grid.ImagePositionPatient[:2], f"{top:.3f}"]
    turned.FrameOfReferenceTransformationMatrix = [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, -1, f"{2 * top:.3f}", 0, 0, 0, 1]
    data.save_as(tmp_path / "mirror.dcm")
    moved = read_reg(tmp_path / "mirror.dcm").transform(points())
    np.testing.assert_allclose(moved[:, 2], points()[:, 2] + (points()[:, 2] - low) / 5.0, atol=1e-4)


def test_undefined_vectors_are_filled_and_said(pair, tmp_path):
    shift = Transform(Field(np.full((3, 4, 4, 4), 2.0, np.float32), Geometry((4, 4, 4), np.eye(4))))
    write_reg_deformable(tmp_path / "reg.dcm", shift, *pair, spacing_mm=5.0)
    data = pydicom.dcmread(tmp_path / "reg.dcm")
    grid = data.DeformableRegistrationSequence[0].DeformableRegistrationGridSequence[0]
    vectors = np.frombuffer(grid.VectorGridData, "<f4").copy()
    vectors[: len(vectors) // 2] = np.nan
    grid.VectorGridData = vectors.tobytes()
    data.save_as(tmp_path / "holes.dcm")
    with pytest.warns(UserWarning, match="W226"):
        found = read_reg(tmp_path / "holes.dcm")
    np.testing.assert_allclose(found.transform(points()), points() + 2.0, atol=1e-5)


def test_a_dose_keeps_its_place_its_values_and_its_sign(pair, tmp_path):
    for down in [False, True]:
        data = dose(PLAN)
        if down:  # planes from top to bottom
            data.GridFrameOffsetVector = [f"{-w:.3f}" for w in PLAN.along]
            data.ImagePositionPatient = [f"{v:.4f}" for v in PLAN.position(len(PLAN.along) - 1)]
            planes = np.frombuffer(data.PixelData, "<u2").reshape(len(PLAN.along), -1)
            data.PixelData = planes[::-1].tobytes()
        found = read_dose(save(tmp_path / "dose.dcm", data))
        index = np.moveaxis(np.indices(found.volume.geometry.shape), 0, -1).astype(float)
        expected = function_of(found.volume.geometry.points(index)) / 20 + 30
        np.testing.assert_allclose(found.volume.data, expected, atol=0.0051)
        write_dose(tmp_path / "new.dcm", found, pair[0])
        again = read_dose(tmp_path / "new.dcm")
        np.testing.assert_allclose(again.volume.data, found.volume.data, atol=0.001)
        np.testing.assert_allclose(again.volume.geometry.affine, found.volume.geometry.affine, atol=1e-4)
        assert again.frame_uid == uid(4, 7)
        assert "warped" in pydicom.dcmread(tmp_path / "new.dcm").DoseComment
    data = dose(PLAN)
    stored = np.frombuffer(data.PixelData, "<u2").astype(int) - 9000
    data.DoseType, data.PixelRepresentation, data.PixelData = "ERROR", 1, stored.astype("<i2").tobytes()
    found = read_dose(save(tmp_path / "dose.dcm", data))
    assert found.volume.data.max() < 0
    write_dose(tmp_path / "new.dcm", found, pair[0])
    np.testing.assert_allclose(read_dose(tmp_path / "new.dcm").volume.data, found.volume.data, atol=0.002)
    assert pydicom.dcmread(tmp_path / "new.dcm").DoseType == "ERROR"


def test_offsets_along_z_are_positions_whichever_way_the_normal_points(tmp_path):
    data = dose(replace(PLAN, row=(-1.0, 0.0, 0.0)))
    z = [float(data.ImagePositionPatient[2]) - w for w in PLAN.along]
    found = read_dose(save(tmp_path / "relative.dcm", data)).volume
    data.GridFrameOffsetVector = [f"{w:.3f}" for w in z]
    absolute = read_dose(save(tmp_path / "absolute.dcm", data)).volume
    np.testing.assert_allclose(absolute.geometry.affine, found.geometry.affine)
    np.testing.assert_array_equal(absolute.data, found.data)


def contradicted(name):
    def change(data):
        first, second = data.RegistrationSequence
        both = [item.MatrixRegistrationSequence[0].MatrixSequence[0] for item in (first, second)]
        stated = np.array(both[1].FrameOfReferenceTransformationMatrix, dtype=float)
        moved = [step for step in both if not np.allclose(np.reshape(
            np.array(step.FrameOfReferenceTransformationMatrix, dtype=float), (4, 4)), np.eye(4))]  # fmt: skip
        still = next(step for step in both if step is not moved[0])
        matrix = np.array(moved[0].FrameOfReferenceTransformationMatrix, dtype=float).reshape(4, 4)
        assert stated.size == 16
        if name == "registered frame":
            still.FrameOfReferenceTransformationMatrix = [1, 0, 0, 10, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]
            return
        matrix[:3, :3] = matrix[:3, :3] @ np.diag({"mirror": (-1, 1, 1), "scale": (3, 3, 3)}[name])
        moved[0].FrameOfReferenceTransformationMatrix = [f"{v:.8g}" for v in matrix.ravel()]

    return change


@pytest.mark.parametrize("name", ["mirror", "scale", "registered frame"])
def test_a_registration_that_contradicts_itself_is_refused(pair, tmp_path, name):
    write_reg_rigid(tmp_path / "reg.dcm", MATRIX, *pair)
    data = pydicom.dcmread(tmp_path / "reg.dcm")
    contradicted(name)(data)
    data.save_as(tmp_path / "reg.dcm")
    with pytest.raises(RegweaveError, match="E124"):
        read_reg(tmp_path / "reg.dcm")
    if name == "scale":
        for item in data.RegistrationSequence:
            item.MatrixRegistrationSequence[0].MatrixSequence[0].FrameOfReferenceTransformationMatrixType = "AFFINE"
        data.save_as(tmp_path / "reg.dcm")
        assert np.linalg.det(read_reg(tmp_path / "reg.dcm").transform.affine) == pytest.approx(1 / 27, rel=1e-4)


def test_a_grid_of_long_directions_is_refused(pair, tmp_path):
    shift = Transform(Field(np.full((3, 4, 4, 4), 2.0, np.float32), Geometry((4, 4, 4), np.eye(4))))
    write_reg_deformable(tmp_path / "reg.dcm", shift, *pair, spacing_mm=5.0)
    data = pydicom.dcmread(tmp_path / "reg.dcm")
    data.DeformableRegistrationSequence[0].DeformableRegistrationGridSequence[0].ImageOrientationPatient = [
        2, 0, 0, 0, 2, 0,
    ]  # fmt: skip
    data.save_as(tmp_path / "reg.dcm")
    with pytest.raises(RegweaveError, match="E111"):
        read_reg(tmp_path / "reg.dcm")


@pytest.mark.skipif(shutil.which("dciodvfy") is None, reason="dciodvfy is not installed")
def test_a_validator_finds_no_error_in_registrations_and_doses(pair, tmp_path):
    write_reg_rigid(tmp_path / "a.dcm", MATRIX, *pair)
    write_reg_deformable(tmp_path / "b.dcm", curved(pair[0].image.geometry), *pair)
    write_dose(tmp_path / "c.dcm", read_dose(save(tmp_path / "dose.dcm", dose(PLAN))), pair[0])
    for name in ("a.dcm", "b.dcm", "c.dcm"):
        run = subprocess.run(["dciodvfy", tmp_path / name], capture_output=True, text=True, check=False)
        assert [line for line in (run.stdout + run.stderr).splitlines() if line.startswith("Error")] == []
