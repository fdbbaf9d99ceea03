"""Several transforms in a row, inverses by name, interpolations and series, against ITK."""

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813

import regweave as rw
from regweave.cli import main
from regweave.io import read_image, write_image, write_transform
from regweave.io.transforms.files import write_linear
from regweave.io.write import TimeSeries, read_time_series, write_time_series
from regweave.types import Ends, Field, Geometry, Transform, Volume

pytestmark = pytest.mark.filterwarnings("ignore:W212")  # files of others state no grids
FIXED = Geometry((18, 17, 16), np.diag([-2.0, -2.0, 2.0, 1.0]))
MIDDLE = Geometry((20, 20, 20), np.diag([2.0, 2.0, 2.0, 1.0]))
MIDDLE.affine[:3, 3] = (-38.0, -38.0, -3.0)
MOVING = Geometry((24, 22, 21), np.diag([-2.0, -1.8, 2.0, 1.0]))
MOVING.affine[:3, 3] = (3.0, 4.0, -5.0)
MATRIX = np.array([[1.02, 0.05, 0, 1.5], [-0.04, 0.99, 0.02, -1.0], [0, 0, 1.01, 0.7], [0, 0, 0, 1.0]])


def wave(geometry, size):
    where = np.indices(geometry.shape) / np.array(geometry.shape)[:, None, None, None]
    return Field((size * np.sin(2 * np.pi * where[[1, 2, 0]])).astype(np.float32), geometry)


@pytest.fixture
def case(tmp_path):
    rng = np.random.default_rng(0)
    coarse = sitk.GetImageFromArray(rng.normal(100, 30, (7, 7, 8)))
    data = sitk.GetArrayFromImage(sitk.Expand(coarse, [3, 4, 3], sitk.sitkBSpline))[:21, :22, :24].T
    write_image(tmp_path / "moving.nii.gz", Volume(np.ascontiguousarray(data, np.float32), MOVING))
    write_image(tmp_path / "fixed.nii.gz", Volume(rng.normal(size=FIXED.shape).astype(np.float32), FIXED))
    ends = Ends("fixed_to_moving", FIXED, MIDDLE)
    write_transform(tmp_path / "first.h5", Transform(wave(FIXED, 1.5), MATRIX, ends))
    write_linear(tmp_path / "second.mat", MATRIX)
    write_transform(tmp_path / "third.h5", Transform(wave(MIDDLE, 1.0), ends=Ends("fixed_to_moving", MIDDLE, MOVING)))
    return tmp_path


def itk(case, *names, how=sitk.sitkLinear):
    """Resample with a composite, which ITK applies from its last transform to its first."""
    parts = [sitk.ReadTransform(str(case / name)) for name in names]
    fixed, moving = (sitk.ReadImage(str(case / f"{name}.nii.gz")) for name in ("fixed", "moving"))
    return sitk.GetArrayFromImage(sitk.Resample(moving, fixed, sitk.CompositeTransform(parts[::-1]), how, 0.0)).T


def inner(data):
    return data[3:-3, 3:-3, 3:-3]


def test_a_chain_is_applied_in_the_order_of_ants(case):
    names = ("first.h5", "third.h5", "second.mat")
    words = [word for name in names for word in ("-t", str(case / name))]
    files = [str(case / "moving.nii.gz"), "-r", str(case / "fixed.nii.gz"), "-o", str(case / "out.nii.gz")]
    assert main(["warp", "image", *files, *words, "--fill", "0"]) == 0
    found = read_image(case / "out.nii.gz").data
    np.testing.assert_allclose(inner(found), inner(itk(case, *names)), atol=0.05)
    assert np.abs(inner(found) - inner(itk(case, *names[::-1]))).max() > 5  # the order matters
    chain = [case / name for name in names]
    np.testing.assert_array_equal(rw.warp(case / "moving.nii.gz", chain, case / "fixed.nii.gz", fill=0.0).data, found)


def test_linear_chains_stay_one_matrix_and_inverses_undo(case):
    chain = [case / "second.mat", f"[{case / 'second.mat'},1]"]
    found = rw.warp(case / "moving.nii.gz", chain, case / "fixed.nii.gz", fill=0.0).data
    plain = rw.warp(case / "moving.nii.gz", "identity", case / "fixed.nii.gz", fill=0.0).data
    np.testing.assert_allclose(found, plain, atol=1e-3)
    back = rw.warp(case / "moving.nii.gz", f"[{case / 'second.mat'}, 1]", case / "fixed.nii.gz", fill=0.0).data
    transform = sitk.ReadTransform(str(case / "second.mat")).GetInverse()
    fixed, moving = (sitk.ReadImage(str(case / f"{name}.nii.gz")) for name in ("fixed", "moving"))
    expected = sitk.GetArrayFromImage(sitk.Resample(moving, fixed, transform, sitk.sitkLinear, 0.0)).T
    np.testing.assert_allclose(inner(back), inner(expected), atol=0.01)
    same = rw.warp(case / "moving.nii.gz", f"[{case / 'second.mat'},0]", case / "fixed.nii.gz", fill=0.0).data
    np.testing.assert_array_equal(
        same, rw.warp(case / "moving.nii.gz", case / "second.mat", case / "fixed.nii.gz", fill=0.0).data
    )


def test_inverses_undo_and_go_their_own_way(case):
    points = FIXED.points(np.random.default_rng(1).uniform(4, 11, (50, 3)))
    from regweave.run.warp import onto_grid

    forth = onto_grid([case / "first.h5"], FIXED)
    back = onto_grid([f"[{case / 'first.h5'},1]"], MIDDLE)
    np.testing.assert_allclose(back(forth(points)), points, atol=0.05)
    write_transform(case / "own.h5", Transform(wave(FIXED, 1.5), ends=Ends("fixed_to_moving", FIXED, FIXED)))
    words = (case / "fixed.nii.gz", f"[{case / 'own.h5'},1]", case / "fixed.nii.gz")
    with pytest.raises(rw.RegweaveError, match="E117"):
        rw.warp(*words)
    assert rw.warp(*words, to="moving") is not None


def test_interpolations_against_itk_and_labels_as_an_image(case):
    for word, how, atol in [
        ("nearest", sitk.sitkNearestNeighbor, 1e-4),
        ("bspline", sitk.sitkBSpline, 0.2),
        ("linear", sitk.sitkLinear, 0.02),
    ]:
        found = rw.warp(
            case / "moving.nii.gz", case / "second.mat", case / "fixed.nii.gz", fill=0.0, interpolation=word
        )
        expected = itk(case, "second.mat", how=how)
        # Two programs may round a point that lies between two voxels to different ones.
        assert np.mean(np.abs(inner(found.data) - inner(expected)) > atol) < 1e-3
    rng = np.random.default_rng(2)
    labels = np.kron(rng.integers(0, 4, (6, 6, 6)), np.ones((4, 4, 4)))[:24, :22, :21].astype(np.float32) * 1000.5
    from regweave.types import LabelMap

    as_image = rw.warp(
        Volume(labels, MOVING), case / "second.mat", case / "fixed.nii.gz", fill=0, interpolation="label"
    )
    whole = LabelMap((labels / 1000.5).astype(np.int16), MOVING)
    as_labels = rw.warp_labels(whole, case / "second.mat", case / "fixed.nii.gz")
    np.testing.assert_array_equal(as_image.data, as_labels.data * np.float32(1000.5))


def test_a_series_is_warped_volume_by_volume(case):
    volume = read_image(case / "moving.nii.gz")
    series = TimeSeries((volume, Volume(volume.data[::-1].copy(), MOVING)), 1.5)
    write_time_series(case / "bold.nii.gz", series)
    words = ["-t", str(case / "second.mat"), "-r", str(case / "fixed.nii.gz"), "-o", str(case / "moved.nii.gz")]
    assert main(["warp", "image", str(case / "bold.nii.gz"), *words]) == 0
    found = read_time_series(case / "moved.nii.gz")
    assert found.step == 1.5
    for moved, one in zip(found.volumes, series.volumes, strict=True):
        expected = rw.warp(one, case / "second.mat", case / "fixed.nii.gz").data
        np.testing.assert_allclose(moved.data, expected, atol=1e-3)  # a NIfTI header rounds the place of the series


def test_chains_that_cannot_be_are_refused(case):
    for chain, code in [
        (["third.h5", "first.h5"], "E118"),  # the wrong way round
        (["first.h5", "first.h5"], "E118"),
        (["missing.h5", "second.mat"], "E101"),
        (["[missing.h5,1]"], "E101"),
        (["[moving.nii.gz,1]"], "E115"),
        (["second.mat", "[field.nii.gz,1]"], "E115"),  # its inverse has no grid
        (["damaged.h5", "second.mat"], "E102"),
    ]:
        from regweave.io import write_displacement

        write_displacement(case / "field.nii.gz", wave(MIDDLE, 1.0))
        (case / "damaged.h5").write_bytes((case / "first.h5").read_bytes()[:3000])
        words = [f"[{case}/{word[1:]}" if word.startswith("[") else str(case / word) for word in chain]
        with pytest.raises(rw.RegweaveError, match=code):
            rw.warp(case / "moving.nii.gz", words, case / "fixed.nii.gz")
    with pytest.raises(rw.RegweaveError, match="E192"):
        rw.warp(case / "moving.nii.gz", "identity", case / "fixed.nii.gz", interpolation="cubic")
    with pytest.raises(rw.RegweaveError, match="E115"):
        rw.warp(case / "moving.nii.gz", [case / "first.h5", case / "second.mat"])
