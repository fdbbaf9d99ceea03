"""Images, label maps and transforms go out to other libraries and come back the same."""

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813

from regweave.errors import RegweaveError, UsageError
from regweave.io import read_image, read_labels
from regweave.io.transforms.files import read_transform
from regweave.spatial.warp import warp_image
from regweave.types import Ends, Field, Geometry, LabelMap, Transform, Volume

TURN = np.array([[0.0, -1.0, 0.0], [0.6, 0.0, -0.8], [0.8, 0.0, 0.6]])
AFFINE = np.eye(4)
AFFINE[:3, :3], AFFINE[:3, 3] = TURN * [1.0, 2.0, 3.0], [-7.0, 11.0, 5.0]
GRID = Geometry((8, 9, 10), AFFINE)
LOW = GRID.corners_mm().min(axis=0) - 6.0
MOVING = Geometry(
    (18, 24, 18), np.block([[np.diag([2.0, 2.0, 2.5]), LOW[:, None]], [np.zeros((1, 3)), np.ones((1, 1))]])
)
LINEAR = np.array([[0.95, 0.1, 0.0, 2.0], [-0.1, 1.05, 0.0, -1.0], [0.0, 0.05, 1.0, 0.5], [0, 0, 0, 1.0]])


@pytest.fixture
def volume():
    return Volume(np.random.default_rng(1).normal(size=GRID.shape).astype(np.float32), GRID)


@pytest.fixture
def transform():
    i, j, k = np.indices(GRID.shape) / 4.0
    data = np.stack([np.sin(i + j), np.cos(j - k), np.sin(i) * np.cos(k)]).astype(np.float32)
    return Transform(Field(data, GRID), LINEAR, Ends("fixed_to_moving", GRID, MOVING))


def test_images_and_labels_go_out_and_come_back(volume, transform):
    for way in ("to_sitk", "to_nibabel"):
        found = read_image(getattr(volume, way)())
        np.testing.assert_array_equal(found.data, volume.data)
        np.testing.assert_allclose(found.geometry.affine, GRID.affine, atol=1e-5)
        for dtype in (np.uint8, np.int16, np.uint32, np.int64):
            labels = LabelMap((np.arange(720) // 90).reshape(GRID.shape).astype(dtype), GRID)
            back = read_labels(getattr(labels, way)())
            assert back.data.dtype == dtype
            np.testing.assert_array_equal(back.data, labels.data)
    assert volume.numpy() is volume.data
    index = np.array([3, 7, 2])
    here = GRID.points(index.astype(float))
    assert np.allclose(volume.to_sitk().TransformIndexToPhysicalPoint(index.tolist()), here)
    ras = nib.affines.apply_affine(volume.to_nibabel().affine, index)
    assert np.allclose(ras * [-1, -1, 1], here, atol=1e-5)
    assert volume.to_sitk()[index.tolist()] == volume.to_nibabel().get_fdata()[tuple(index)] == volume.data[3, 7, 2]
    for value in (volume, LabelMap(np.ones(GRID.shape, np.uint8), GRID), transform, transform.field):
        assert len(repr(value)) < 160
        assert "8 × 9 × 10" in repr(value)


def test_simpleitk_moves_and_resamples_as_we_do(transform):
    inside = GRID.points(np.random.default_rng(3).uniform(0.0, 7.0, (50, 3)))
    by_itk = [transform.to_sitk().TransformPoint(point) for point in inside.tolist()]
    np.testing.assert_allclose(transform(inside), by_itk, atol=1e-4)
    np.testing.assert_allclose(transform(inside[0]), by_itk[0], atol=1e-4)
    assert not np.allclose(transform(inside), inside, atol=0.5)
    with pytest.raises(UsageError, match=r"E116.*\(3, 2\)"):
        transform(np.zeros((3, 2)))
    moving = Volume(np.indices(MOVING.shape).sum(axis=0).astype(np.float32), MOVING)
    ours = warp_image(moving, transform, fill=-9.0)
    image = Volume(np.zeros(GRID.shape, np.float32), GRID).to_sitk()
    theirs = sitk.Resample(moving.to_sitk(), image, transform.to_sitk(), sitk.sitkLinear, -9.0)
    found, expected = ours.data, sitk.GetArrayFromImage(theirs).T
    inside = (found > -1) & (expected > -1)
    assert inside.mean() > 0.1
    np.testing.assert_allclose(found[inside], expected[inside], atol=1e-3)
    image = transform.field.to_sitk()
    assert image.GetNumberOfComponentsPerPixel() == 3
    np.testing.assert_allclose(image[3, 4, 5], transform.field.data[:, 3, 4, 5])
    assert np.allclose(image.GetOrigin(), GRID.origin_mm)


def test_inverse_undoes_and_files_keep(transform, tmp_path):
    points = GRID.points(np.full((1, 3), 4.0))
    back = transform.inverse()
    assert back.ends.direction == "moving_to_fixed"
    assert back.field.geometry == MOVING
    np.testing.assert_allclose(back(transform(points)), points, atol=0.05)
    with pytest.raises(UsageError, match=r"E115.*no grid"):
        Transform(transform.field).inverse()
    assert Transform(transform.field).inverse(GRID).field.geometry == GRID
    transform.save(tmp_path / "t.h5")
    again = Transform.load(tmp_path / "t.h5")
    np.testing.assert_array_equal(again.field.data, transform.field.data)
    np.testing.assert_allclose(again.affine, transform.affine)
    assert again.ends.target.shape == MOVING.shape


def test_array_is_placed_by_affine_or_spacing_and_checked():
    data = np.arange(64).reshape(4, 4, 4)
    np.testing.assert_array_equal(Volume.from_array(data, AFFINE).geometry.affine, AFFINE)
    ras = Volume.from_array(data, AFFINE, frame="RAS").geometry.affine
    np.testing.assert_allclose(ras, np.diag([-1, -1, 1, 1]) @ AFFINE)
    spaced = Volume.from_array(data, spacing_mm=(1, 2, 3), modality="ct")
    assert spaced.geometry.affine.diagonal().tolist() == [1, 2, 3, 1]
    assert spaced.data.dtype == np.float32
    assert spaced.modality == "ct"
    assert LabelMap.from_array(data // 8, spacing_mm=(1, 2, 3), names={5: "liver"}).name(5) == "liver"
    good, mm = np.arange(64.0).reshape(4, 4, 4), {"spacing_mm": (1, 1, 1)}
    for array, place, code in (
        (np.zeros((4, 4)), mm, "E103"), (np.zeros((4, 4, 4), complex), mm, "E103"),
        (np.full((4, 4, 4), np.nan), mm, "E104"), (np.zeros((4, 4, 4)), mm, "E105"), (good, {}, "E108"),
        (good, {"affine": np.eye(4), "spacing_mm": (1, 1, 1)}, "E108"),
        (good, {"affine": np.eye(4), "frame": "LAS"}, "E108"), (good, {"spacing_mm": (1, 1)}, "E108"),
        (good, {"affine": np.eye(4) + np.eye(4, k=1)}, "E111"), (good, {"spacing_mm": (1, 0, 1)}, "E111"),
    ):  # fmt: skip
        with pytest.raises(RegweaveError, match=code):
            Volume.from_array(array, **place)
    with pytest.raises(RegweaveError, match="E106"):
        LabelMap.from_array(np.full((4, 4, 4), 0.5), **mm)


def test_transforms_from_memory_and_what_is_none(transform):
    np.testing.assert_array_equal(read_transform(LINEAR).affine, LINEAR)
    np.testing.assert_array_equal(read_transform(LINEAR.tolist(), GRID).field.data, 0)
    rigid = sitk.Euler3DTransform((1.0, 2.0, 3.0), 0.1, 0.2, 0.3, (4.0, 5.0, 6.0))
    for source in (rigid, sitk.CompositeTransform([rigid])):
        found = read_transform(source)
        np.testing.assert_allclose(found([[9.0, 8.0, 7.0]]), [rigid.TransformPoint((9.0, 8.0, 7.0))], atol=1e-6)
    points = GRID.points(np.array([[1.0, 2.0, 3.0], [6.0, 6.0, 6.0]]))
    np.testing.assert_allclose(read_transform(transform.to_sitk(), GRID)(points), transform(points), atol=1e-3)
    assert read_transform(transform).field is transform.field
    for source in [
        lambda t: np.eye(3),
        lambda t: np.diag([1.0, 1.0, 1.0, 2.0]),
        lambda t: np.diag([1.0, 1.0, 0.0, 1.0]),
        lambda t: np.diag([1e4, 1.0, 1.0, 1.0]),
        lambda t: sitk.Euler2DTransform(),
        lambda t: t.to_sitk(),  # without a grid
        lambda t: {"matrix": LINEAR},
    ]:
        with pytest.raises(RegweaveError, match="E115"):
            read_transform(source(transform))


def test_arrays_that_cannot_be_read():
    for affine in [
        np.diag([1, 1, 1, 2]), [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [1, 2, 3, 1]], np.eye(3), np.eye(4)[:3],
        np.full((4, 4), np.nan), "eye", None, np.eye(5),
    ]:  # fmt: skip
        for take in [read_image, lambda pair: Volume.from_array(*pair, frame="RAS")]:
            with pytest.raises(RegweaveError, match=r"E102.*affine|E108"):
                take((np.arange(216.0).reshape(6, 6, 6), affine))
    data = np.ma.masked_greater(np.arange(216.0).reshape(6, 6, 6), 200)
    for take in (read_image, read_labels):
        with pytest.raises(RegweaveError, match=r"E129.*15 masked voxels"):
            take((data, np.eye(4)))
    with pytest.raises(RegweaveError, match="E129"):
        read_image(nib.Nifti1Image(data, np.eye(4)))
    filled = np.ma.masked_array(data.filled(0.0))  # nothing is masked
    np.testing.assert_array_equal(read_image((filled, np.eye(4))).data, data.filled(0.0))
    for data, says in [
        (np.arange(216) + 2**60, "stored values from 1152921504606846976"),
        (np.arange(216) * 1e-300, "all become 0"),
        (np.zeros(216), "is constant: minimum 0"),
    ]:
        with pytest.raises(RegweaveError, match=rf"E105.*{says}"):
            read_image((data.reshape(6, 6, 6), np.eye(4)))
