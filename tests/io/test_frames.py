"""Where things are: every orientation, through every format, against two independent libraries."""

import itertools
import os
from itertools import permutations, product
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
from hypothesis import given, settings, strategies as st
from scipy.spatial.transform import Rotation

from regweave.errors import RegweaveError, RegweaveWarning
from regweave.io import check_same_grid, inspect_image, read_image, read_labels, write_image
from regweave.io.geometry import Orientation
from regweave.types import Geometry, Volume

SHAPE = (5, 6, 7)
AXIS_CODES = [
    "".join(code) for order in itertools.permutations(("RL", "AP", "IS")) for code in itertools.product(*order)
]
LPS_OF_LETTER = {"L": (1, 0, 0), "R": (-1, 0, 0), "P": (0, 1, 0), "A": (0, -1, 0), "S": (0, 0, 1), "I": (0, 0, -1)}


def volume_with(direction, spacing=(1.5, 2.0, 3.5), origin=(-31.25, 12.5, 47.0)):
    affine = np.eye(4)
    affine[:3, :3] = np.asarray(direction) * spacing
    affine[:3, 3] = origin
    data = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    return Volume(data, Geometry(SHAPE, affine))


def direction_of(code):
    return np.array([LPS_OF_LETTER[letter] for letter in code], dtype=float).T


OBLIQUE = {
    "oblique": Rotation.from_euler("xyz", [0.3, -0.2, 0.7]).as_matrix(),
    "oblique left-handed": Rotation.from_euler("xyz", [-0.4, 0.5, 0.1]).as_matrix() * [1, 1, -1],
    "half turn": Rotation.from_euler("z", 180, degrees=True).as_matrix(),
}


def assert_same_place(volume, data, index_to_lps):
    np.testing.assert_array_equal(data, volume.data)
    index = np.array([[0, 0, 0], [4, 0, 0], [0, 5, 0], [0, 0, 6], [4, 5, 6], [1.5, 2.5, 3.5]])
    expected = index @ volume.geometry.affine[:3, :3].T + volume.geometry.affine[:3, 3]
    np.testing.assert_allclose([index_to_lps(i) for i in index], expected, atol=2e-5)


def test_nifti_in_every_orientation(tmp_path):
    for code in AXIS_CODES:
        volume = volume_with(direction_of(code))
        path = tmp_path / "x.nii.gz"
        write_image(path, volume)
        other = nib.load(path)
        assert "".join(nib.aff2axcodes(other.affine)) == code
        flip = np.diag([-1, -1, 1, 1])
        for matrix in (other.affine, other.get_sform(coded=True)[0], other.get_qform(coded=True)[0]):
            assert_same_place(volume, other.get_fdata(), lambda i, m=flip @ matrix: m[:3, :3] @ i + m[:3, 3])
        assert (int(other.header["qform_code"]), int(other.header["sform_code"])) == (1, 1)
        itk = sitk.ReadImage(str(path))
        data = sitk.GetArrayFromImage(itk).T
        assert_same_place(volume, data, lambda i, itk=itk: itk.TransformContinuousIndexToPhysicalPoint(i.tolist()))
        back = read_image(path)
        np.testing.assert_array_equal(back.geometry.affine, volume.geometry.affine)
        np.testing.assert_array_equal(back.data, volume.data)
        assert back.data.flags.c_contiguous
        assert back.data.dtype == np.float32


def test_files_of_each_format(tmp_path):
    for direction in OBLIQUE.values():
        for suffix in [".nii", ".nii.gz", ".nrrd", ".mha"]:
            volume = volume_with(direction)
            path = tmp_path / f"x{suffix}"
            write_image(path, volume)
            itk = sitk.ReadImage(str(path))
            data = sitk.GetArrayFromImage(itk).T
            assert_same_place(volume, data, lambda i, itk=itk: itk.TransformContinuousIndexToPhysicalPoint(i.tolist()))
            back = read_image(path)
            np.testing.assert_allclose(back.geometry.affine, volume.geometry.affine, atol=1e-5)
            np.testing.assert_array_equal(back.data, volume.data)
    for code in ["LPS", "RAS", "SAR", "PIL"]:
        for suffix in [".nii.gz", ".nrrd", ".mha", ".mhd", ".nhdr"]:
            volume = volume_with(direction_of(code))
            image = sitk.GetImageFromArray(volume.data.T)
            image.SetSpacing(volume.geometry.spacing_mm.tolist())
            image.SetOrigin(volume.geometry.origin_mm.tolist())
            image.SetDirection(volume.geometry.direction.ravel().tolist())
            sitk.WriteImage(image, str(tmp_path / f"x{suffix}"))
            back = read_image(tmp_path / f"x{suffix}")
            np.testing.assert_allclose(back.geometry.affine, volume.geometry.affine, atol=1e-5)
            np.testing.assert_array_equal(back.data, volume.data)


@settings(max_examples=30, deadline=None)
@given(angles=st.tuples(*[st.floats(-3.1, 3.1)] * 3), spacing=st.tuples(*[st.floats(0.3, 8.0)] * 3), flip=st.booleans())
def test_nifti_round_trip_of_any_geometry(tmp_path_factory, angles, spacing, flip):
    direction = Rotation.from_euler("xyz", angles).as_matrix() * [1, 1, -1 if flip else 1]
    volume = volume_with(direction, spacing)
    path = tmp_path_factory.mktemp("trip") / "x.nii"
    write_image(path, volume)
    # near a half turn the quaternion leaves the angle open by 1e-3 rad
    for frame, tolerance in (("auto", 1e-4), ("sform", 1e-4), ("qform", 0.08)):
        back = read_image(path, nifti_frame=frame)
        assert np.abs(back.geometry.corners_mm() - volume.geometry.corners_mm()).max() < tolerance
    itk = read_image_with_itk(path)
    assert np.abs(itk.corners_mm() - volume.geometry.corners_mm()).max() < 1e-3


def read_image_with_itk(path):
    return read_image(sitk.ReadImage(str(path))).geometry


def nifti_with(path, q=None, s=None, codes=(1, 1), units="mm", pixdim=(1, 1, 1)):
    data = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)
    image = nib.Nifti1Image(data, None)
    image.header["pixdim"][1:4] = pixdim
    if s is not None:
        image.header.set_sform(s, codes[1])
    if q is not None:
        image.header.set_qform(q, codes[0])
    image.header.set_xyzt_units(units)
    image.header["qform_code"], image.header["sform_code"] = codes
    path.write_bytes(nifti_bytes(image.header, data))
    return path


def nifti_bytes(header, data):
    header["magic"], header["vox_offset"] = b"n+1", 352
    return header.binaryblock + b"\0" * 4 + data.tobytes(order="F")


Q = np.array([[1.0, 0, 0, 1], [0, -1, 0, 2], [0, 0, -1, 3], [0, 0, 0, 1]])
S = np.eye(4)
S[:3, :3] = Rotation.from_euler("z", 0.3).as_matrix()
S[:3, 3] = (7, -3, 2)


def test_clash_of_qform_and_sform_is_refused(tmp_path):
    corners = Geometry(SHAPE, Q).corners_mm() - Geometry(SHAPE, S).corners_mm()
    for codes in ((1, 1), (1, 2), (2, 4)):
        path = nifti_with(tmp_path / "x.nii", Q, S, codes)
        with pytest.raises(RegweaveError, match=f"E110.*{np.linalg.norm(corners, axis=1).max():.4g} mm"):
            read_image(path)
        for frame, matrix in (("sform", S), ("qform", Q)):
            geometry = read_image(path, nifti_frame=frame).geometry
            np.testing.assert_allclose(geometry.affine, np.diag([-1, -1, 1, 1]) @ matrix, atol=1e-6)


def test_the_only_matrix_is_used_or_one_of_two_alike(tmp_path):
    near = Q.copy()
    near[0, 3] += 0.05
    path = nifti_with(tmp_path / "x.nii", Q, near, (1, 2))
    np.testing.assert_allclose(read_image(path).geometry.origin_mm, [-1.05, -2, 3], atol=1e-6)
    path = nifti_with(tmp_path / "x.nii", codes=(0, 0), pixdim=(2, 3, 4))
    with pytest.warns(RegweaveWarning, match="W207"):
        geometry = read_image(path).geometry
    np.testing.assert_array_equal(geometry.affine, np.diag([2, 3, 4, 1]))
    np.testing.assert_array_equal(read_image_with_itk(path).affine, geometry.affine)
    for codes, matrix, asked in (((0, 2), S, "qform"), ((1, 0), Q, "sform")):
        path = nifti_with(tmp_path / "x.nii", Q, S, codes)
        expected = np.diag([-1, -1, 1, 1]) @ matrix
        np.testing.assert_allclose(read_image(path).geometry.affine, expected, atol=1e-6)
        np.testing.assert_allclose(read_image_with_itk(path).affine, expected, atol=1e-5)
        with pytest.raises(RegweaveError, match="E110"):
            read_image(path, nifti_frame=asked)
    for units, scale in (("meter", 1e3), ("mm", 1), ("micron", 1e-3), ("unknown", 1)):
        path = nifti_with(tmp_path / "x.nii", Q, Q, units=units)
        geometry = read_image(path).geometry
        np.testing.assert_allclose(geometry.affine[:3], scale * (np.diag([-1, -1, 1, 1]) @ Q)[:3], rtol=1e-6)
        np.testing.assert_allclose(read_image_with_itk(path).affine, geometry.affine, rtol=1e-5, atol=1e-9)


def test_rounding_of_a_quaternion_near_a_half_turn_is_no_clash(tmp_path):
    """An LPS image turned by 0.0003 rad: its quaternion rounds to the half turn itself."""
    direction = Rotation.from_euler("z", 3e-4).as_matrix()
    affine = np.eye(4)
    affine[:3, :3] = direction * 0.5
    shape = (400, 400, 4)
    data = np.zeros(shape, np.float32)
    data[0] = 1
    write_image(tmp_path / "x.nii", Volume(data, Geometry(shape, affine)))
    frames = [read_image(tmp_path / "x.nii", nifti_frame=f).geometry.corners_mm() for f in ("sform", "qform")]
    assert np.abs(frames[0] - frames[1]).max() > 0.05
    np.testing.assert_allclose(read_image(tmp_path / "x.nii").geometry.affine, affine, atol=1e-6)


def test_shear_and_matrices_that_place_nothing(tmp_path):
    for angle in (1e-6, 1e-4, 0.01, 0.3):
        skew = np.eye(4)
        skew[0, 1] = np.tan(angle)
        path = nifti_with(tmp_path / "x.nii", s=skew, codes=(0, 1))
        if angle > 1e-3:
            with pytest.raises(RegweaveError, match=f"E111.*{f'{np.degrees(angle):.4g}'[:4]}"):
                read_image(path)
            continue
        geometry = read_image(path).geometry
        np.testing.assert_allclose(geometry.direction.T @ geometry.direction, np.eye(3), atol=2e-6)
        centre = Geometry(SHAPE, np.diag([-1, -1, 1, 1]) @ skew).corners_mm().mean(axis=0)
        np.testing.assert_allclose(geometry.corners_mm().mean(axis=0), centre, atol=1e-6)
    path = nifti_with(tmp_path / "x.nii", s=np.diag([1.0, 1, 0, 1]), codes=(0, 1))
    with pytest.raises(RegweaveError, match="E111"):
        read_image(path)
    bad = np.eye(4)
    bad[0, 3] = np.nan
    with pytest.raises(RegweaveError, match="E102"):
        read_image(nifti_with(tmp_path / "x.nii", s=bad, codes=(0, 1)))
    with pytest.raises(RegweaveError, match="E110"):
        read_image(nifti_with(tmp_path / "y.nii", np.eye(4), bad, (1, 1)))


def test_masks_off_the_grid_of_their_image():
    image = volume_with(OBLIQUE["oblique"]).geometry
    near = Geometry(image.shape, image.affine + np.array([[0, 0, 0, 1e-5], [0] * 4, [0] * 4, [0] * 4]))
    assert check_same_grid(image, near, "mask.nii.gz") is image
    step = image.affine.copy()
    step[:3, 3] += image.affine[:3, 0]
    for other in (Geometry(image.shape, step), Geometry((5, 6, 8), image.affine)):
        with pytest.raises(RegweaveError) as caught:
            check_same_grid(image, other, "mask.nii.gz")
        assert caught.value.code == "E112"
        assert repr(float(other.origin_mm[0])) in caught.value.message
    half = image.affine.copy()
    half[:3, :3] /= 2
    far = image.affine.copy()
    far[:3, 3] += 300
    finer = Geometry(tuple(2 * n for n in image.shape), half)
    wide = Geometry(tuple(2 * n for n in image.shape), image.affine)
    for mask, same in ((finer, True), (Geometry(image.shape, far), False), (wide, False)):
        with pytest.raises(RegweaveError) as caught:
            check_same_grid(image, mask, "mask.nii.gz")
        assert ("resample it" in caught.value.hint) == same
        assert ("belongs to another image" in caught.value.message) != same


ALL = [(order, flips) for order in permutations(range(3)) for flips in product((1, -1), repeat=3)]
STORED_SHAPE = (4, 5, 6)


def rotation(degrees: float) -> np.ndarray:
    a = np.radians(degrees)
    turn = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1.0]])
    return turn @ turn[[2, 0, 1]][:, [2, 0, 1]]


def stored_as(volume: Volume, order, flips) -> Volume:
    """The same physical image in another storage, written out index by index."""
    shape = tuple(volume.geometry.shape[axis] for axis in order)
    data = np.empty(shape, dtype=np.float32)
    for index in np.ndindex(*shape):
        old = [0, 0, 0]
        for new, axis in enumerate(order):
            old[axis] = index[new] if flips[new] > 0 else shape[new] - 1 - index[new]
        data[index] = volume.data[tuple(old)]
    affine = np.eye(4)
    for new, axis in enumerate(order):
        affine[:3, new] = flips[new] * volume.geometry.affine[:3, axis]
    start = [0.0, 0.0, 0.0]
    for new, axis in enumerate(order):
        start[axis] = 0.0 if flips[new] > 0 else shape[new] - 1.0
    affine[:3, 3] = volume.geometry.points(np.array(start))
    return Volume(data, Geometry(shape, affine))


def image(degrees: float) -> Volume:
    affine = np.eye(4)
    affine[:3, :3] = rotation(degrees) * [0.9, 1.1, 3.3]
    affine[:3, 3] = [-71.3, 12.7, 1002.123456789]
    data = np.random.default_rng(0).random(STORED_SHAPE).astype(np.float32)
    return Volume(data, Geometry(STORED_SHAPE, affine))


def test_all_48_storages_become_one_with_voxels_where_they_were():
    for degrees in [0.0, 17.0, 44.9, 45.0, 80.0]:
        original = image(degrees)
        expected = Orientation.of(original.geometry).turned(original)
        for order, flips in ALL:
            stored = stored_as(original, order, flips)
            orientation = Orientation.of(stored.geometry)
            found = orientation.turned(stored)
            np.testing.assert_array_equal(found.data, expected.data)
            np.testing.assert_array_equal(found.geometry.affine, expected.geometry.affine)
            np.testing.assert_array_equal(orientation.to_stored(found.data), stored.data)
    stored = stored_as(image(17.0), (2, 0, 1), (-1, 1, -1))
    orientation = Orientation.of(stored.geometry)
    where = np.moveaxis(stored.geometry.points(indices(stored.geometry)), -1, 0)
    found = np.moveaxis(orientation.to_canonical(where), 0, -1)
    np.testing.assert_allclose(found, orientation.canonical.points(indices(orientation.canonical)), atol=1e-5)
    direction = Orientation.of(stored_as(image(20.0), (1, 2, 0), (-1, -1, 1)).geometry).canonical.direction
    assert (np.diagonal(direction) > 0.7).all()
    affine = np.diag([-1e-6, 2e-6, 1e-6, 1.0])
    affine[:3, 3] = [1e7, -3.0, 0.0]
    grid = Geometry(STORED_SHAPE, affine)
    canonical = Orientation.of(grid).canonical
    np.testing.assert_allclose(canonical.spacing_mm, [1e-6, 2e-6, 1e-6], rtol=1e-5)
    np.testing.assert_allclose(canonical.origin_mm, grid.points(np.array([3.0, 0, 0])), atol=1e-9)


def indices(geometry: Geometry) -> np.ndarray:
    return np.stack(np.meshgrid(*(np.arange(n, dtype=float) for n in geometry.shape), indexing="ij"), axis=-1)


# Real files, read by us and by nibabel.
DATA = os.environ.get("REGWEAVE_DATA")
SETS = ["ibsr18_64", "openkbp_head_neck", "acdc_cardiac", "msd_hippocampus", "totalseg_abdomen"]


@pytest.mark.data
@pytest.mark.skipif(DATA is None, reason="REGWEAVE_DATA is not set")
@pytest.mark.parametrize("name", SETS)
def test_first_case_of_each_set(name):
    folder = min(path.parent for path in (Path(DATA) / name).glob("*/image.nii.gz"))
    volume = read_image(folder / "image.nii.gz")
    other = nib.load(folder / "image.nii.gz")
    np.testing.assert_array_equal(volume.data, other.get_fdata(dtype=np.float32))
    np.testing.assert_allclose(np.diag([-1, -1, 1, 1]) @ volume.geometry.affine, other.affine, atol=1e-6)
    labels = read_labels(folder / "labels.nii.gz")
    assert check_same_grid(volume.geometry, labels.geometry, folder / "labels.nii.gz") is volume.geometry
    assert labels.values()
    assert inspect_image(folder / "image.nii.gz").problems == ()
