"""Rigid and affine registrations alone, and volumes brought to their mean."""

import json

import nibabel as nib
import numpy as np
import pytest

import regweave as rw
from phantoms import make_phantom
from regweave.cli import main
from regweave.io import read_transform, write_image
from regweave.io.write import TimeSeries, read_time_series, write_time_series
from regweave.spatial.warp import warp_image
from regweave.types import Field, Geometry, Transform, Volume

GRID = Geometry((32, 30, 28), np.diag([-3.0, -3.0, 3.0, 1.0]))


def blobs(seed=0):
    rng, where = np.random.default_rng(seed), np.moveaxis(np.indices(GRID.shape), 0, -1)
    data = np.zeros(GRID.shape)
    for centre in rng.uniform(8, 20, (12, 3)):
        data += rng.uniform(50, 200) * np.exp(-((where - centre) ** 2).sum(axis=-1) / rng.uniform(6, 30))
    return Volume(data.astype(np.float32), GRID)


def turned(degrees, shift_mm):
    angle = np.radians(degrees)
    matrix = np.eye(4)
    matrix[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    centre = GRID.points((np.array(GRID.shape) - 1) / 2)
    matrix[:3, 3] = centre - matrix[:3, :3] @ centre + shift_mm
    return matrix


def corner_error_mm(found, true):
    """Largest distance between two maps at the corners of the box that the blobs fill."""
    corners = np.c_[GRID.points(np.array(np.meshgrid(*3 * [[8.0, 20.0]])).reshape(3, 8).T), np.ones(8)]
    return np.linalg.norm((corners @ (found - true).T)[:, :3], axis=1).max()


@pytest.mark.parametrize("kind", ["rigid", "affine"])
def test_a_linear_registration_finds_the_map_and_its_files_are_matrices(kind, tmp_path):
    true = turned(5.0, [2.0, -3.0, 1.0])
    if kind == "affine":
        true[:3, :3] *= 1.04
    image = blobs()
    moving = warp_image(image, Transform(Field.zero(GRID), np.linalg.inv(true)))
    result = rw.register(image, moving, transform=kind, progress=False)
    assert corner_error_mm(result.transform.affine, true) < 1.0
    assert not result.transform.field.data.any()
    assert (len(result.steps), len(result.refinement)) == (0, 0)
    result.save(tmp_path / "r")
    assert (tmp_path / "r/transform.h5").stat().st_size < 20_000  # no field
    again = rw.load(tmp_path / "r")
    np.testing.assert_array_equal(again.transform.affine, result.transform.affine)
    np.testing.assert_array_equal(again.warp(moving).data, result.warped.data)
    there_and_back = again.inverse(again.transform(GRID.corners_mm()))
    np.testing.assert_allclose(there_and_back, GRID.corners_mm(), atol=1e-9)
    if kind == "rigid":
        turn = result.transform.affine[:3, :3]
        np.testing.assert_allclose(turn @ turn.T, np.eye(3), atol=1e-12)


@pytest.mark.usefixtures("in_process")
def test_a_linear_run_is_recorded_and_runs_again_alone_and_in_a_batch(tmp_path):
    image = blobs()
    write_image(tmp_path / "f.nii.gz", image)
    write_image(tmp_path / "m.nii.gz", warp_image(image, Transform(Field.zero(GRID), turned(3, [1, 0, 0]))))
    files = [str(tmp_path / f"{name}.nii.gz") for name in "fm"]
    assert main(["register", *files, "--transform", "rigid", "-o", str(tmp_path / "a"), "--quiet"]) == 0
    assert main(["register", "--from", str(tmp_path / "a"), "-o", str(tmp_path / "b"), "--quiet"]) == 0
    for name in ("transform.h5", "warped.nii.gz"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert json.loads((tmp_path / "b/result.json").read_text())["provenance"]["call"]["transform"] == "rigid"
    table = [{"id": "a", "fixed": files[0], "moving": files[1]}]
    found = rw.batch(table, tmp_path / "out", transform="rigid", workers=1, write=["transform"])
    assert found.failures == {}
    np.testing.assert_array_equal(found["a"].transform.affine, rw.load(tmp_path / "a").transform.affine)


@pytest.fixture(scope="module")
def shaken():
    image = blobs(1)
    true = [turned(a, [a / 2, -a / 3, a / 4]) for a in (0.0, 1.0, -2.0, 0.5, 3.0)]
    volumes = tuple(warp_image(image, Transform(Field.zero(GRID), np.linalg.inv(m))) for m in true)
    return TimeSeries(volumes, 2.5), true


def test_realign_finds_the_motion_for_any_number_of_threads(shaken):
    series, true = shaken
    found = rw.realign(series, threads=1)
    for matrix, expected in zip(found.matrices, true, strict=True):
        # The reference is the mean: only motion against the first volume is defined.
        apart = corner_error_mm(matrix @ np.linalg.inv(found.matrices[0]), expected @ np.linalg.inv(true[0]))
        assert apart < 0.5
    again = rw.realign(series, threads=3)
    np.testing.assert_array_equal(found.mean.data, again.mean.data)
    spread = [np.std([v.data for v in s.volumes], axis=0)[6:-6, 6:-6, 6:-6].mean() for s in (series, found.series)]
    assert spread[1] < 0.2 * spread[0]


def test_the_command_writes_series_mean_motion_and_transforms(shaken, tmp_path, capsys):
    series, _ = shaken
    write_time_series(tmp_path / "bold.nii.gz", series)
    header = nib.load(tmp_path / "bold.nii.gz").header
    assert header.get_zooms() == (3.0, 3.0, 3.0, 2.5)
    assert main(["series", str(tmp_path / "bold.nii.gz"), "-o", str(tmp_path / "out"), "--rounds", "1"]) == 0
    assert "5 volumes" in capsys.readouterr().out
    found = read_time_series(tmp_path / "out/series.nii.gz")
    assert (len(found), found.step, found.unit) == (5, 2.5, "sec")
    lines = (tmp_path / "out/motion.tsv").read_text().splitlines()
    assert len(lines) == 6
    first = read_transform(tmp_path / "out/transforms/0001.tfm", GRID)
    np.testing.assert_array_equal(warp_image(series.volumes[1], first).data, found.volumes[1].data)


def test_series_and_words_that_cannot_be_are_refused(shaken, tmp_path, capsys):
    write_image(tmp_path / "one.nii.gz", blobs())
    assert main(["series", str(tmp_path / "one.nii.gz"), "-o", str(tmp_path / "o")]) == 3
    assert "E103" in capsys.readouterr().err
    data = np.stack([v.data for v in shaken[0].volumes], axis=-1)
    data[3, 3, 3, 2] = np.nan
    nib.save(nib.Nifti1Image(data, np.diag([3.0, 3, 3, 1])), tmp_path / "nan.nii.gz")
    assert main(["series", str(tmp_path / "nan.nii.gz"), "-o", str(tmp_path / "o")]) == 3
    assert "volume 2 of" in capsys.readouterr().err
    content = (tmp_path / "nan.nii.gz").read_bytes()
    (tmp_path / "cut.nii.gz").write_bytes(content[: len(content) // 2])
    assert main(["series", str(tmp_path / "cut.nii.gz"), "-o", str(tmp_path / "o")]) == 3
    assert "E102" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
    for words, code in [
        ({"transform": "rigid", "init": "affine"}, "E189"),
        ({"transform": "affine", "metrics": {"mi": 1.0}}, "E189"),
        ({"transform": "rigid", "model": "head-neck-ct"}, "E189"),
        ({"transform": "similarity"}, "E192"),
    ]:
        pair = make_phantom(shape=(16, 16, 16), spacing_mm=(8.0, 8.0, 8.0)).pair
        with pytest.raises(rw.RegweaveError, match=code):
            rw.register(pair.fixed, pair.moving, progress=False, **words)
