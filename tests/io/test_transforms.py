"""Transforms: ours in ITK's hands, and ITK's in ours."""

import itertools

import h5py
import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
from scipy import ndimage
from scipy.spatial.transform import Rotation

from regweave.errors import RegweaveError
from regweave.io import read_transform, total_displacement, write_displacement, write_transform
from regweave.io.transforms.files import write_linear
from regweave.types import Field, Geometry, Transform

SHIFT = np.array([6.0, -4.0, 3.0])


def geometry_with(direction, shape=(9, 8, 7), spacing=(1.5, 2.0, 3.0), origin=(-20.0, 35.0, 11.0)):
    affine = np.eye(4)
    affine[:3, :3] = np.asarray(direction) * spacing
    affine[:3, 3] = origin
    return Geometry(shape, affine)


GRIDS = {
    "LPS": geometry_with(np.eye(3)),
    "RAS": geometry_with(np.diag([-1, -1, 1])),
    "axes swapped": geometry_with(np.eye(3)[[2, 0, 1]]),
    "oblique": geometry_with(Rotation.from_euler("xyz", [0.3, -0.2, 0.7]).as_matrix()),
    "left-handed": geometry_with(Rotation.from_euler("xyz", [0.1, 0.4, 0.2]).as_matrix() * [1, -1, 1]),
}
AFFINE = np.eye(4)
AFFINE[:3, :3] = Rotation.from_euler("zyx", [0.2, -0.1, 0.05]).as_matrix() @ np.diag([1.1, 0.9, 1.05])
AFFINE[:3, 3] = (12.0, -3.0, 5.5)


def smooth_transform(geometry, affine=AFFINE):
    noise = np.random.default_rng(5).normal(0, 12, (3, *geometry.shape))
    data = np.stack([ndimage.gaussian_filter(part, 1.2) for part in noise]).astype(np.float32)
    return Transform(Field(data, geometry), affine)


def inner_points(geometry, n=40):
    index = np.random.default_rng(2).uniform(0, 1, (n, 3)) * (np.array(geometry.shape) - 1)
    return geometry.points(index)


def evaluate(transform, points):
    """Trilinear interpolation voxel by voxel, then the affine."""
    geometry = transform.field.geometry
    result = []
    for point in points:
        index = np.linalg.solve(geometry.affine, np.append(point, 1))[:3]
        low = np.minimum(np.floor(index).astype(int), np.array(geometry.shape) - 2)
        vector = np.zeros(3)
        for corner in itertools.product((0, 1), repeat=3):
            weight = np.prod(np.where(corner, index - low, 1 - (index - low)))
            vector += weight * transform.field.data[(slice(None), *(low + corner))].astype(float)
        result.append((transform.affine @ np.append(point + vector, 1))[:3])
    return np.array(result)


def evaluate_with_itk(itk, points):
    return np.array([itk.TransformPoint(point.tolist()) for point in points])


@pytest.mark.parametrize("suffix", [".h5", ".hdf5", ".tfm", ".txt"])
def test_written_composite_is_what_itk_applies(tmp_path, suffix):
    for grid in GRIDS.values():
        transform = smooth_transform(grid)
        write_transform(tmp_path / f"t{suffix}", transform)
        points = inner_points(grid)
        itk = sitk.ReadTransform(str(tmp_path / f"t{suffix}"))
        np.testing.assert_allclose(evaluate_with_itk(itk, points), evaluate(transform, points), atol=1e-4)


def test_own_file_comes_back_exactly(tmp_path):
    for affine in [np.eye(4), AFFINE]:
        for suffix in [".h5", ".tfm"]:
            transform = smooth_transform(GRIDS["oblique"], affine)
            path = tmp_path / f"t{suffix}"
            write_transform(path, transform)
            for geometry in (None, GRIDS["oblique"]):
                back = read_transform(path, geometry)
                np.testing.assert_array_equal(back.field.data, transform.field.data)
                np.testing.assert_array_equal(back.affine, transform.affine)
                np.testing.assert_allclose(back.field.geometry.affine, GRIDS["oblique"].affine, atol=1e-12)
            assert back.field.geometry is GRIDS["oblique"]
    # Other loaders look for a composite with an affine before the field.
    write_transform(tmp_path / "t.h5", smooth_transform(GRIDS["RAS"], np.eye(4)))
    with h5py.File(tmp_path / "t.h5") as file:
        kinds = [bytes(file[f"TransformGroup/{n}/TransformType"][0]).decode() for n in range(3)]
    assert kinds == [
        "CompositeTransform_double_3_3",
        "AffineTransform_double_3_3",
        "DisplacementFieldTransform_double_3_3",
    ]
    for suffix in (".tfm", ".mat", ".h5"):
        write_linear(tmp_path / f"a{suffix}", AFFINE)
        np.testing.assert_array_equal(read_transform(tmp_path / f"a{suffix}").affine, AFFINE)


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".nrrd", ".mha"])
def test_displacement_files(tmp_path, suffix):
    for grid in GRIDS.values():
        transform = smooth_transform(grid)
        field = total_displacement(transform)
        path = tmp_path / f"d{suffix}"
        write_displacement(path, field)
        points = inner_points(grid)
        image = sitk.ReadImage(str(path), sitk.sitkVectorFloat64)
        itk = sitk.DisplacementFieldTransform(image)
        np.testing.assert_allclose(evaluate_with_itk(itk, points), evaluate(transform, points), atol=1e-4)
        back = read_transform(path)
        np.testing.assert_array_equal(back.field.data, field.data)
        np.testing.assert_array_equal(back.affine, np.eye(4))
        np.testing.assert_allclose(back.field.geometry.affine, grid.affine, atol=1e-5)


def test_vector_niftis(tmp_path):
    write_displacement(tmp_path / "d.nii.gz", smooth_transform(GRIDS["RAS"]).field)
    header = nib.load(tmp_path / "d.nii.gz").header
    assert header["dim"].tolist()[:6] == [5, 9, 8, 7, 1, 3]
    assert int(header["intent_code"]) == 1007
    assert header.get_data_dtype() == np.float32
    assert (int(header["qform_code"]), int(header["sform_code"])) == (1, 1)
    assert bytes(header["descrip"].item()) == b""
    path = tmp_path / "d.nii.gz"
    flat = np.zeros((6, 6, 6, 3), np.float32)

    def refuse(array, intent, name=""):
        image = nib.Nifti1Image(array, np.eye(4))
        image.header.set_intent(intent, name=name)
        nib.save(image, path)
        with pytest.raises(RegweaveError, match="E115"):
            read_transform(path)

    refuse(flat, "none")
    refuse(flat[:, :, :, None], "none")
    refuse(flat[:, :, :, None, :2], 1007)
    refuse(flat[:, :, :, None], 1007, "NREG_TRANS")
    refuse(flat[..., 0], "none")


def test_known_shift_through_each_intent(tmp_path):
    for geometry in GRIDS.values():
        vectors = np.broadcast_to(SHIFT.astype(np.float32), (*geometry.shape, 1, 3))
        for intent, signs in ((1007, (1, 1, 1)), (1006, (-1, -1, 1))):
            image = nib.Nifti1Image((vectors * signs).astype(np.float32), np.diag([-1, -1, 1, 1]) @ geometry.affine)
            image.header.set_intent(intent)
            nib.save(image, tmp_path / "d.nii.gz")
            back = read_transform(tmp_path / "d.nii.gz").field.data
            np.testing.assert_array_equal(back, np.broadcast_to(SHIFT[:, None, None, None], back.shape))
            itk = sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / "d.nii.gz")))
            np.testing.assert_allclose(itk[0, 0, 0], SHIFT)


def test_nonfinite_and_modelling_fields_are_refused(tmp_path):
    field = smooth_transform(GRIDS["LPS"]).field
    bad = Field(np.where(field.data > 3, np.nan, field.data), field.geometry)
    for path in (tmp_path / "d.nii.gz", tmp_path / "d.nrrd"):
        write_displacement(path, bad)
        with pytest.raises(RegweaveError, match="E104"):
            read_transform(path)
    write_displacement(tmp_path / "m.nrrd", field)
    image = sitk.ReadImage(str(tmp_path / "m.nrrd"))
    assert image.GetMetaData("displacement field type") == "resampling"
    image.SetMetaData("displacement field type", "modeling")
    sitk.WriteImage(image, str(tmp_path / "m.nrrd"))
    with pytest.raises(RegweaveError, match=r"E115.*modeling"):
        read_transform(tmp_path / "m.nrrd")


def linear_transforms():
    euler = sitk.Euler3DTransform((10.0, -5.0, 3.0), 0.2, 0.1, -0.3, (4.0, 5.0, 6.0))
    affine = sitk.AffineTransform(3)
    affine.SetMatrix(AFFINE[:3, :3].ravel().tolist())
    affine.SetCenter((11.0, 12.0, 13.0))
    affine.SetTranslation((1.0, 2.0, 3.0))
    shift = sitk.TranslationTransform(3, SHIFT.tolist())
    scale = sitk.ScaleTransform(3, (1.1, 0.9, 1.3))
    rigid = sitk.VersorRigid3DTransform((0.0, 0.6, 0.8), 0.4, (1.0, -2.0, 3.0), (9.0, 8.0, 7.0))
    return [euler, affine, shift, scale, rigid, sitk.CompositeTransform([affine, shift, euler])]


@pytest.mark.parametrize("suffix", [".h5", ".tfm", ".txt", ".mat"])
def test_linear_transforms_of_itk(tmp_path, suffix):
    for itk in linear_transforms():
        if suffix == ".mat" and itk.GetName() == "CompositeTransform":
            return  # ITK cannot write it
        path = tmp_path / f"t{suffix}"
        sitk.WriteTransform(itk, str(path))
        points = inner_points(GRIDS["oblique"])
        expected = evaluate_with_itk(itk, points)
        transform = read_transform(path, GRIDS["oblique"])
        matrix = transform.affine
        np.testing.assert_allclose(points @ matrix[:3, :3].T + matrix[:3, 3], expected, atol=1e-9)
        assert transform.field.geometry is GRIDS["oblique"]
        assert not transform.field.data.any()


def bspline():
    transform = sitk.BSplineTransformInitializer(sitk.Image([20, 20, 20], sitk.sitkFloat32), [3, 3, 3])
    n = len(transform.GetParameters())
    transform.SetParameters(np.random.default_rng(0).normal(0, 2, n).tolist())
    return transform


def test_any_other_transform_is_sampled(tmp_path):
    grid = geometry_with(np.eye(3), (10, 10, 10), (1.5, 1.5, 1.5), (2.0, 2.0, 2.0))
    itk = sitk.CompositeTransform([linear_transforms()[0], bspline(), linear_transforms()[2]])
    path = tmp_path / "t.h5"
    sitk.WriteTransform(itk, str(path))
    transform = read_transform(path, grid)
    np.testing.assert_array_equal(transform.affine, np.eye(4))
    index = np.random.default_rng(0).integers(0, 10, (30, 3))
    points = grid.points(index.astype(float))
    found = points + transform.field.data[:, index[:, 0], index[:, 1], index[:, 2]].T
    np.testing.assert_allclose(found, evaluate_with_itk(itk, points), atol=1e-4)
    with pytest.raises(RegweaveError, match="E115"):
        read_transform(path)


def test_single_field_and_another_grid(tmp_path):
    transform = smooth_transform(GRIDS["oblique"], np.eye(4))
    path = tmp_path / "t.h5"
    image = sitk.GetImageFromArray(transform.field.data.T.astype(np.float64), isVector=True)
    image.SetSpacing(transform.field.geometry.spacing_mm.tolist())
    image.SetOrigin(transform.field.geometry.origin_mm.tolist())
    image.SetDirection(transform.field.geometry.direction.ravel().tolist())
    sitk.WriteTransform(sitk.DisplacementFieldTransform(image), str(path))
    np.testing.assert_array_equal(read_transform(path).field.data, transform.field.data)
    inner = Geometry((4, 4, 4), GRIDS["oblique"].affine @ np.diag([1.7, 1.6, 1.3, 1.0]))
    moved = read_transform(path, inner)
    assert moved.field.geometry is inner
    points = inner.points(np.moveaxis(np.indices(inner.shape), 0, -1).reshape(-1, 3).astype(float))
    found = points + moved.field.data.reshape(3, -1).T
    np.testing.assert_allclose(found, evaluate(transform, points), atol=1e-4)


@pytest.mark.parametrize("suffix", [".h5", ".tfm", ".mat", ".txt", ".nii.gz", ".nrrd"])
def test_damaged_transform_files(tmp_path, suffix):
    path = tmp_path / f"t{suffix}"
    transform = smooth_transform(GRIDS["oblique"])
    if suffix == ".mat":
        write_linear(path, AFFINE)
    elif suffix in {".nii.gz", ".nrrd"}:
        write_displacement(path, transform.field)
    else:
        write_transform(path, transform)
    content = path.read_bytes()
    for bad in (content[: len(content) // 2], content[: len(content) * 9 // 10], b"", b"PK\x03\x04 no transform"):
        path.write_bytes(bad)
        with pytest.raises(RegweaveError, match="E102"):
            read_transform(path)
    with pytest.raises(RegweaveError, match="E101"):
        read_transform(tmp_path / f"none{suffix}")


def test_matrix_cut_at_any_byte(tmp_path):
    """ITK reads some of these as the identity, others with numbers from its memory."""
    for suffix in [".tfm", ".mat"]:
        path = tmp_path / f"t{suffix}"
        sitk.WriteTransform(linear_transforms()[1], str(path))
        content = path.read_bytes()
        for kept in range(len(content)):
            path.write_bytes(content[:kept])
            with pytest.raises(RegweaveError, match="E102"):
                read_transform(path)


def test_unusable_transforms(tmp_path):
    (tmp_path / "t.npz").write_bytes(b"abc")
    with pytest.raises(RegweaveError, match="E115"):
        read_transform(tmp_path / "t.npz")
    sitk.WriteTransform(sitk.Euler2DTransform(), str(tmp_path / "two.tfm"))
    with pytest.raises(RegweaveError, match=r"E115.*2 dimensions"):
        read_transform(tmp_path / "two.tfm")
    flat = sitk.ScaleTransform(3, (1.0, 1.0, 0.0))
    sitk.WriteTransform(flat, str(tmp_path / "flat.tfm"))
    with pytest.raises(RegweaveError, match=r"E115.*inverted"):
        read_transform(tmp_path / "flat.tfm")
    with pytest.raises(RegweaveError, match="E152"):
        write_transform(tmp_path / "t.mat", smooth_transform(GRIDS["LPS"]))


def test_agrees_with_ants(tmp_path):
    ants = pytest.importorskip("ants")
    pandas = pytest.importorskip("pandas")
    transform = smooth_transform(GRIDS["oblique"])
    write_transform(tmp_path / "t.h5", transform)
    points = inner_points(GRIDS["oblique"])
    frame = pandas.DataFrame(points, columns=["x", "y", "z"])
    moved = ants.apply_transforms_to_points(3, frame, [str(tmp_path / "t.h5")])
    np.testing.assert_allclose(moved[["x", "y", "z"]], evaluate(transform, points), atol=1e-4)
