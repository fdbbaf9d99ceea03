import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
from scipy.spatial.transform import Rotation

from regweave import _core
from regweave.spatial.warp import (
    compose,
    determinant,
    to_field,
    to_voxels,
    voxel_matrix,
    warp_image,
    warp_labels,
    warp_points,
)
from regweave.types import Field, Geometry, LabelMap, Transform, Volume


def make_geometry(shape, spacing, angles, origin):
    affine = np.eye(4)
    affine[:3, :3] = Rotation.from_euler("xyz", angles).as_matrix() * spacing
    affine[:3, 3] = origin
    return Geometry(shape, affine)


FIXED = make_geometry((20, 24, 16), (1.5, 1.0, 2.5), (0.2, -0.3, 0.5), (-12.0, 30.0, 7.0))
MOVING = make_geometry((22, 18, 26), (1.6, 1.7, 1.6), (0.1, -0.2, 0.4), (-14.0, 28.0, 5.0))


@pytest.fixture
def rng():
    return np.random.default_rng(11)


@pytest.fixture
def transform(rng):
    spacing = np.array([5.0, 6.0, 4.0])
    coefficients = (rng.uniform(-0.35, 0.35, (3, 6, 6, 6)) * spacing[:, None, None, None]).astype(np.float32)
    u = _core.ffd(coefficients, -spacing, spacing, FIXED.shape)
    affine = np.eye(4)
    affine[:3, :3] = Rotation.from_euler("xyz", (0.05, -0.04, 0.06)).as_matrix() @ np.diag([1.05, 0.97, 1.02])
    affine[:3, 3] = [1.0, -2.0, 0.5]
    return Transform(to_field(u, FIXED), affine)


def as_sitk(data, geometry, *, vector=False):
    order = (2, 1, 0, 3) if vector else (2, 1, 0)
    image = sitk.GetImageFromArray(np.ascontiguousarray(data.transpose(order)), isVector=vector)
    image.SetSpacing(geometry.spacing_mm.tolist())
    image.SetDirection(geometry.direction.ravel().tolist())
    image.SetOrigin(geometry.origin_mm.tolist())
    return image


def as_sitk_transform(transform):
    data = np.moveaxis(transform.field.data, 0, -1).astype(np.float64)
    displacement = sitk.DisplacementFieldTransform(as_sitk(data, transform.field.geometry, vector=True))
    affine = sitk.AffineTransform(3)
    affine.SetMatrix(transform.affine[:3, :3].ravel().tolist())
    affine.SetTranslation(transform.affine[:3, 3].tolist())
    return sitk.CompositeTransform([affine, displacement])


def test_images_and_points_move_as_with_simpleitk(rng, transform):
    moving = Volume(rng.normal(size=MOVING.shape).astype(np.float32), MOVING)
    ours = warp_image(moving, transform, fill=-5.0)
    reference = as_sitk(np.zeros(FIXED.shape, np.float32), FIXED)
    theirs = sitk.Resample(as_sitk(moving.data, MOVING), reference, as_sitk_transform(transform), sitk.sitkLinear, -5.0)
    expected = sitk.GetArrayFromImage(theirs).transpose(2, 1, 0)
    inside = (expected != -5.0) & (ours.data != -5.0)
    # At the outermost half voxel a rounding error decides which side of the rim a sample falls on.
    assert ((expected != -5.0) != (ours.data != -5.0)).mean() < 1e-3
    assert inside.mean() > 0.3
    np.testing.assert_allclose(ours.data[inside], expected[inside], atol=1e-4)
    assert ours.geometry is FIXED
    points = FIXED.points(rng.uniform(0.5, np.array(FIXED.shape) - 1.5, (50, 3)))
    theirs = as_sitk_transform(transform)
    expected = [theirs.TransformPoint(p.tolist()) for p in points]
    np.testing.assert_allclose(warp_points(points, transform), expected, atol=1e-5)
    ramp = MOVING.points(np.stack(np.meshgrid(*map(np.arange, MOVING.shape), indexing="ij"), axis=-1))
    moving = Volume(np.ascontiguousarray(ramp[..., 1], dtype=np.float32), MOVING)
    warped = warp_image(moving, transform, fill=np.nan)
    index = np.argwhere(np.isfinite(warped.data))
    moved = warp_points(FIXED.points(index.astype(float)), transform)
    to_index = np.linalg.inv(MOVING.affine)
    landed = moved @ to_index[:3, :3].T + to_index[:3, 3]
    deep = ((landed >= 0) & (landed <= np.array(MOVING.shape) - 1)).all(axis=1)  # the rim repeats the border
    assert deep.sum() > 1000
    np.testing.assert_allclose(warped.data[tuple(index[deep].T)], moved[deep, 1], atol=1e-4)


def test_labels_keep_dtype_names_and_values_large_or_small(rng, transform):
    for dtype in [np.uint8, np.int16, np.uint32, np.int64, np.uint64]:
        values = np.array([0, 1, 7, np.iinfo(dtype).max], dtype=dtype)
        labels = LabelMap(values[rng.integers(0, 4, MOVING.shape)], MOVING, {7: "seven"})
        warped = warp_labels(labels, transform)
        assert warped.data.dtype == dtype
        assert warped.names == labels.names
        assert set(np.unique(warped.data)) == set(values)
    small = rng.integers(0, 4, MOVING.shape)
    large = np.array([0, 5, 2**40, 2**41])[small]
    expected = np.array([0, 5, 2**40, 2**41])[warp_labels(LabelMap(small, MOVING), transform).data]
    np.testing.assert_array_equal(warp_labels(LabelMap(large, MOVING), transform).data, expected)
    labels = LabelMap(rng.integers(0, 5, FIXED.shape).astype(np.uint8), FIXED)
    image = Volume(rng.normal(size=FIXED.shape).astype(np.float32), FIXED)
    still = Transform(Field.zero(FIXED))
    np.testing.assert_array_equal(warp_labels(labels, still).data, labels.data)
    np.testing.assert_allclose(warp_image(image, still).data, image.data, atol=1e-5)


def test_voxels_and_millimetres_take_the_same_way_and_fields_compose(rng, transform):
    index = rng.uniform(0, 15, (10, 3))
    matrix = voxel_matrix(FIXED, MOVING, transform.affine)
    through_space = FIXED.points(index) @ transform.affine[:3, :3].T + transform.affine[:3, 3]
    np.testing.assert_allclose(MOVING.points(index @ matrix[:, :3].T + matrix[:, 3]), through_space, atol=1e-10)
    u = rng.normal(size=(3, *FIXED.shape)).astype(np.float32)
    field = to_field(u, FIXED)
    expected = np.einsum("ab,bxyz->axyz", FIXED.affine[:3, :3], u)
    np.testing.assert_allclose(field.data, expected, atol=1e-5)
    np.testing.assert_allclose(to_voxels(field), u, atol=1e-5)
    straight = Geometry(FIXED.shape, np.eye(4))
    u = rng.normal(scale=0.2, size=(3, *FIXED.shape)).astype(np.float32)
    oblique = determinant(to_field(u, FIXED))
    np.testing.assert_allclose(oblique, determinant(to_field(u, straight)), atol=1e-4)
    inner = Field(0.3 * transform.field.data, FIXED)
    both = compose(transform.field, inner)
    index = np.argwhere(np.ones(FIXED.shape))[::37].astype(float)
    p = FIXED.points(index)
    # Points on voxels: the only interpolation is the outer field's, the same on both sides.
    expected = warp_points(warp_points(p, Transform(inner)), Transform(transform.field))
    np.testing.assert_allclose(warp_points(p, Transform(both)), expected, atol=1e-4)
