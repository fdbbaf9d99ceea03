"""Transforms: ours in ITK's hands, and ITK's in ours."""

import itertools
import json
import os
import resource
import struct
import subprocess
import sys
import time

import h5py
import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
from scipy import ndimage
from scipy.spatial.transform import Rotation

from regweave.errors import RegweaveError
from regweave.io import read_transform, total_displacement, write_displacement, write_transform
from regweave.io.geometry import grid_hash, same_voxels
from regweave.io.transforms import files, itk
from regweave.io.transforms.files import bound_mm, pieces_of, write_linear
from regweave.io.transforms.itk import LINEAR
from regweave.threads import kernel_threads
from regweave.types import Ends, Field, Geometry, Transform

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


def test_vector_niftis_and_their_intents(tmp_path):
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


def test_composites_and_other_transforms_of_itk(tmp_path):
    itk = linear_transforms()[-1]
    for suffix in (".h5", ".tfm", ".txt"):
        path = tmp_path / f"t{suffix}"
        sitk.WriteTransform(itk, str(path))
        points = inner_points(GRIDS["oblique"])
        transform = read_transform(path, GRIDS["oblique"])
        matrix = transform.affine
        found = points @ matrix[:3, :3].T + matrix[:3, 3]
        np.testing.assert_allclose(found, evaluate_with_itk(itk, points), atol=1e-9)
        assert transform.field.geometry is GRIDS["oblique"]
        assert not transform.field.data.any()
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


def bspline():
    transform = sitk.BSplineTransformInitializer(sitk.Image([20, 20, 20], sitk.sitkFloat32), [3, 3, 3])
    n = len(transform.GetParameters())
    transform.SetParameters(np.random.default_rng(0).normal(0, 2, n).tolist())
    return transform


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


def test_damaged_and_unusable_transform_files(tmp_path):
    transform = smooth_transform(GRIDS["oblique"])
    for suffix in (".h5", ".tfm", ".mat", ".txt", ".nii.gz", ".nrrd"):
        path = tmp_path / f"t{suffix}"
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


def test_agrees_with_ants(tmp_path):
    ants = pytest.importorskip("ants")
    pandas = pytest.importorskip("pandas")
    transform = smooth_transform(GRIDS["oblique"])
    write_transform(tmp_path / "t.h5", transform)
    points = inner_points(GRIDS["oblique"])
    frame = pandas.DataFrame(points, columns=["x", "y", "z"])
    moved = ants.apply_transforms_to_points(3, frame, [str(tmp_path / "t.h5")])
    np.testing.assert_allclose(moved[["x", "y", "z"]], evaluate(transform, points), atol=1e-4)


# Files of transforms that are damaged, hostile or foreign: a code, never a crash, a guess or another file.
GRID = Geometry((5, 4, 6), np.diag([2.0, 2.0, 3.0, 1.0]))
OTHER = Geometry((6, 6, 6), np.diag([-1.0, 1.0, 2.0, 1.0]))
ENDS = Ends("fixed_to_moving", GRID, OTHER)
FIELD_HEAD = "5 4 6 0 0 0 2 2 3 1 0 0 0 1 0 0 0 1"


def text_file(path, kind, parameters, fixed="0 0 0"):
    head = "#Insight Transform File V1.0\n#Transform 0\n"
    path.write_text(f"{head}Transform: {kind}\nParameters: {parameters}\nFixedParameters: {fixed}\n")
    return path


def some_field(grid=GRID, scale=1.0):
    return Field((np.random.default_rng(1).normal(0, 3, (3, *grid.shape)) * scale).astype(np.float32), grid)


def foreign(path):
    """Let a file be one of another process, which is read in the child."""
    os.utime(path, (0, 0))
    return path


def refused(path, code, match="E1"):
    with pytest.raises(RegweaveError, match=match) as error:
        read_transform(path, GRID)
    assert error.value.code == code


@pytest.mark.parametrize("suffix", [".tfm", ".mat", ".h5"])
def test_each_linear_type_is_what_simpleitk_applies(tmp_path, suffix):
    # a child process reads each .h5 file: two kinds are enough
    for kind in LINEAR if suffix != ".h5" else ("Euler3DTransform", "AffineTransform"):
        rng = np.random.default_rng(3)
        make, _, fixed = LINEAR[kind]
        made = make()
        made.SetFixedParameters([3.0, -2.0, 1.0, 0.0][: fixed[-1]])
        start = np.array(made.GetParameters())
        made.SetParameters((start + rng.uniform(0.01, 0.1, start.size)).tolist())
        path = tmp_path / f"t{suffix}"
        sitk.WriteTransform(made, str(path))
        points = rng.normal(0, 30, (5, 3))
        matrix = read_transform(path).affine
        expected = [made.TransformPoint(p) for p in points.tolist()]
        np.testing.assert_allclose(points @ matrix[:3, :3].T + matrix[:3, 3], expected, atol=1e-9)


def test_numbers_and_grids_that_do_not_fit(tmp_path):
    # ITK writes beyond its memory where they are fewer.
    for kind, (_, parameters, allowed) in LINEAR.items():
        good, fixed, name = ["0.5"] * parameters, " ".join(["0"] * allowed[0]), f"{kind}_double_3_3"
        for wrong in (good[:-1], [*good, "0.5"], good[: len(good) // 2]):
            if len(wrong) != len(good):
                refused(text_file(tmp_path / "t.tfm", name, " ".join(wrong), fixed), "E102", "expected of its")
        refused(text_file(tmp_path / "t.tfm", name, " ".join(good), fixed + " 0 0"), "E102", "fixed")
    for bad in ["nan", "inf", "1e400", "1_0", "0x10", "1,5", "--1", "1.2.3", "1e", "é", "\x00"]:
        path = text_file(tmp_path / "t.tfm", "TranslationTransform_double_3_3", f"1 {bad} 3", "")
        with pytest.raises(RegweaveError, match=r"E102|E104"):
            read_transform(path)
    for kind in ["BSplineTransform", "DisplacementFieldTransform"]:
        for grid in ["-5 5 5", "2000 2000 2000", "500 500 500", "0 4 4", "4.5 4 4", "1e300 1e300 1e300", "3 4 4"]:
            fixed = f"{grid} 0 0 0 1 1 1 1 0 0 0 1 0 0 0 1"
            refused(text_file(tmp_path / "t.tfm", f"{kind}_double_3_3", "1 2 3", fixed), "E102")
    for at, value in [(6, "0"), (6, "-1"), (3, "1e400"), (9, "0")]:
        fixed = FIELD_HEAD.split()
        fixed[at] = value
        path = text_file(tmp_path / "t.tfm", "DisplacementFieldTransform_double_3_3", "0 " * 360, " ".join(fixed))
        with pytest.raises(RegweaveError, match=r"E102|E104|E111"):
            read_transform(path)


def test_unknown_types_and_odd_matlab_files(tmp_path):
    for kind, code in [
        ("Nonsense_double_3_3", "E115"), ("AffineTransform_double_2_2", "E115"),
        ("AffineTransform_double_3_3_3", "E115"), ("AffineTransform", "E102"), ("", "E102"), ("é_double_3_3", "E102"),
        ("A" * 100000, "E102"), ("BSplineTransform_double_3_3_7", "E102"), ("CompositeTransform_double_3_3", "E102"),
    ]:  # fmt: skip
        refused(text_file(tmp_path / "t.tfm", kind, "1 0 0 0 1 0 0 0 1 0 0 0"), code)
    path = text_file(tmp_path / "t.tfm", "TranslationTransform_double_3_3", "1 2 3", "")
    path.write_text(path.read_text() + path.read_text().split("\n", 1)[1])
    refused(path, "E115", "no composite")
    for content in [
        struct.pack("<5i", 0, 3, 1, 0, 5) + b"abcd\0" + bytes(24),
        struct.pack("<5i", 0, 12, 1, 0, 27) + b"\xffffineTransform_double_3_3\0" + bytes(96),
        struct.pack("<5i", 0, 12, 1, 1, 27) + b"AffineTransform_double_3_3\0" + bytes(96),
        struct.pack("<5i", 0, 2**30, 2**30, 0, 27) + b"AffineTransform_double_3_3\0" + bytes(96),
        struct.pack("<5i", 20, 12, 1, 0, 27) + b"AffineTransform_double_3_3\0" + bytes(96),
        struct.pack("<5i", 0, 12, 1, 0, -1),
    ]:
        (tmp_path / "t.mat").write_bytes(content)
        refused(tmp_path / "t.mat", "E102")


def test_splines_of_each_order_and_the_old_spelling_of_itk(tmp_path):
    sitk.WriteTransform(sitk.TranslationTransform(3, (1.0, 2.0, 3.0)), str(tmp_path / "t.h5"))
    with h5py.File(tmp_path / "t.h5", "r+") as h5:
        for name in ("Parameters", "FixedParameters"):
            h5["TransformGroup/0"].move(f"Transform{name}", f"Tranform{name}")
    np.testing.assert_array_equal(read_transform(tmp_path / "t.h5").affine[:3, 3], [1, 2, 3])
    for order in (1, 2, 3):
        spline = sitk.BSplineTransformInitializer(sitk.Image([20, 20, 20], sitk.sitkFloat32), [3, 3, 3], order)
        n = len(spline.GetParameters())
        spline.SetParameters(np.random.default_rng(order).normal(0, 1, n).tolist())
        sitk.WriteTransform(spline, str(tmp_path / "s.tfm"))
        found = read_transform(tmp_path / "s.tfm", GRID)
        point = GRID.points(np.array([1.0, 2.0, 3.0]))
        np.testing.assert_allclose(
            point + found.field.data[:, 1, 2, 3], spline.TransformPoint(point.tolist()), atol=1e-4
        )


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h.pop("TransformGroup"),
        lambda h: h["TransformGroup"].__delitem__("1"),
        lambda h: _link(h, h5py.ExternalLink("other.h5", "/x")),
        lambda h: _link(h, h5py.SoftLink("/TransformGroup/2/TransformFixedParameters")),
        lambda h: _replace(h, external=[("raw.bin", 0, h5py.h5f.UNLIMITED)]),
        lambda h: _virtual(h),  # noqa: PLW0108
        lambda h: _replace(h, chunks=(90,), compression="lzf"),
        lambda h: _replace(h, chunks=(90,), scaleoffset=2),
        lambda h: _replace(h, dtype="i4"),
        lambda h: _replace(h, dtype="f2"),
        lambda h: _replace(h, shape=(90, 4)),
        lambda h: _replace(h, shape=(9,)),
        lambda h: _replace(h, shape=(8_000_000_000,), chunks=(1024,), compression="gzip"),
        lambda h: _name(h, b"\xff\xfe odd"),
        lambda h: _name(h, b"A" * 100000),
    ],
    ids=lambda _: "",
)
def test_hostile_hdf5(tmp_path, monkeypatch, change):
    monkeypatch.chdir(tmp_path)
    with h5py.File("other.h5", "w") as other:
        other["x"] = np.zeros(360)
    (tmp_path / "raw.bin").write_bytes(bytes(8 * 360))
    sitk.WriteTransform(sitk.CompositeTransform([sitk.AffineTransform(3), _itk_field()]), "t.h5")
    read_transform("t.h5")
    with h5py.File("t.h5", "r+") as h5:
        change(h5)
    refused(tmp_path / "t.h5", "E102")


PARAMETERS = "TransformGroup/2/TransformParameters"


def _itk_field():
    return sitk.DisplacementFieldTransform(sitk.GetImageFromArray(np.zeros((6, 4, 5, 3)), isVector=True))


def _link(h5, link):
    del h5[PARAMETERS]
    h5[PARAMETERS] = link


def _replace(h5, shape=(360,), dtype="f8", **options):
    del h5[PARAMETERS]
    h5.create_dataset(PARAMETERS, shape, dtype, **options)


def _virtual(h5):
    layout = h5py.VirtualLayout((360,), "f8")
    layout[:] = h5py.VirtualSource("other.h5", "x", (360,))
    del h5[PARAMETERS]
    h5.create_virtual_dataset(PARAMETERS, layout)


def _name(h5, value):
    del h5["TransformGroup/2/TransformType"]
    h5.create_dataset("TransformGroup/2/TransformType", data=[value], dtype=h5py.string_dtype("ascii"))


def test_a_field_larger_than_the_memory_and_a_reader_that_crashes_or_never_ends(tmp_path, monkeypatch):
    write_transform(tmp_path / "t.h5", Transform(some_field()))
    foreign(tmp_path / "t.h5")
    monkeypatch.setattr(itk, "available_memory", lambda: 8000)
    refused(tmp_path / "t.h5", "E140")
    write_transform(tmp_path / "t.h5", Transform(some_field()))
    foreign(tmp_path / "t.h5")
    _child(monkeypatch, tmp_path, "os.abort()")
    refused(tmp_path / "t.h5", "E102", "SIGABRT")
    _child(monkeypatch, tmp_path, f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(3600)")
    monkeypatch.setattr(itk, "WALL_S", 1)
    refused(tmp_path / "t.h5", "E102", "end")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    (tmp_path / "child.py").write_text("raise MemoryError")
    refused(tmp_path / "t.h5", "E140", "could not start")


def _child(monkeypatch, tmp_path, body):
    script = tmp_path / "child.py"
    script.write_text(f"import os, sys, time\nsys.stdout.buffer.write(b'ready\\n')\nsys.stdout.flush()\n{body}\n")
    monkeypatch.setattr(itk, "CHILD", script)


def test_the_processor_time_of_a_reader_is_limited(tmp_path, monkeypatch):
    write_transform(tmp_path / "t.h5", Transform(some_field()))
    foreign(tmp_path / "t.h5")
    limit = "import resource, json; resource.setrlimit(resource.RLIMIT_CPU, (1, 2))"
    _child(monkeypatch, tmp_path, f"{limit}\nwhile True: pass")
    refused(tmp_path / "t.h5", "E102", "SIGXCPU")
    asked = []

    def start(words, **_):
        asked.append(json.loads(words[-1]))
        raise KeyError

    monkeypatch.setattr(itk.subprocess, "Popen", start)
    with pytest.raises(KeyError):
        read_transform(tmp_path / "t.h5")
    assert 0 < asked[0]["cpu_s"] < 60
    assert asked[0]["address_bytes"] < 1 << 48


def test_ctrl_c_ends_the_reader(spawn, wait_for, tmp_path):
    write_transform(tmp_path / "t.h5", Transform(some_field()))
    (tmp_path / "child.py").write_text(
        f"import time, os\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)\n"
    )
    code = (
        "import pathlib\n"
        "from regweave.io import read_transform\nfrom regweave.io.transforms import itk\n"
        f"itk.CHILD = pathlib.Path({str(tmp_path / 'child.py')!r})\n"
        f"read_transform({str(tmp_path / 't.h5')!r})\n"
    )
    caller = spawn(sys.executable, "-c", code)
    pid = tmp_path / "pid"
    wait_for(lambda: pid.exists() and pid.read_text(), caller)
    caller.send_signal(2)
    caller.communicate()
    assert caller.returncode != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_packages_in_the_working_folder_are_not_imported(tmp_path, monkeypatch):
    write_transform(tmp_path / "t.h5", Transform(some_field()))
    foreign(tmp_path / "t.h5")
    (tmp_path / "h5py.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", ".", *sys.path])
    assert read_transform("t.h5").field.data.shape == (3, *GRID.shape)


def test_a_file_that_this_process_wrote_needs_no_child(tmp_path, monkeypatch):
    """Whatever touches the file makes it a foreign one."""
    monkeypatch.setattr(itk, "CHILD", tmp_path / "none.py")
    transform = Transform(some_field(), np.diag([1.1, 1.0, 0.9, 1.0]), ENDS)
    write_transform(tmp_path / "a.h5", transform)
    (tmp_path / "a.h5").rename(tmp_path / "t.h5")
    np.testing.assert_array_equal(read_transform(tmp_path / "t.h5").field.data, transform.field.data)
    foreign(tmp_path / "t.h5")
    refused(tmp_path / "t.h5", "E140", "could not start")


def test_any_changed_number_is_seen_and_written_bytes_repeat(tmp_path):
    transform = Transform(some_field(), np.diag([1.1, 1.0, 0.9, 1.0]), ENDS)
    path = tmp_path / "t.h5"
    write_transform(path, transform)
    for name, at in (("2/TransformParameters", 7), ("1/TransformParameters", 3), ("2/TransformFixedParameters", 3)):
        with h5py.File(path, "r+") as h5:
            h5[f"TransformGroup/{name}"][at] += 0.5
        refused(path, "E102", "SHA-256")
        write_transform(path, transform)
    with h5py.File(path, "r+") as h5:
        h5.attrs["start_grid_sha256"] = "0" * 64
    refused(path, "E102", "hash of its start grid")
    for name in ("a.h5", "b.h5"):
        write_transform(tmp_path / name, Transform(some_field(), ends=ENDS))
        time.sleep(1.1 if name == "a.h5" else 0)  # a time stamp would differ
    content = (tmp_path / "a.h5").read_bytes()
    assert content == (tmp_path / "b.h5").read_bytes()
    assert os.uname().release.encode() not in content
    with h5py.File(tmp_path / "a.h5") as h5:
        assert h5.attrs["direction"] == b"fixed_to_moving"
        assert h5.attrs["start_grid_sha256"].decode() == grid_hash(GRID)
        assert h5.attrs["target_grid_sha256"].decode() == grid_hash(OTHER)
        assert h5[PARAMETERS].dtype == np.float32
    ends = read_transform(tmp_path / "a.h5").ends
    assert ends.direction == "fixed_to_moving"
    np.testing.assert_array_equal(ends.target.affine, OTHER.affine)


def test_displacements_and_matrices_beyond_sense(tmp_path):
    for entry in [1e30, 5e3]:
        for suffix in [".tfm", ".h5", ".mat"]:
            matrix = np.eye(4)
            matrix[0, 1] = entry
            write_linear(tmp_path / f"t{suffix}", matrix)
            refused(tmp_path / f"t{suffix}", "E115", "physical sense")
    vectors = np.zeros((6, 4, 5, 3))
    vectors[0, 0, 0, 0] = 1e300
    itk = sitk.DisplacementFieldTransform(sitk.GetImageFromArray(vectors, isVector=True))
    for name in ("t.h5", "t.tfm"):
        sitk.WriteTransform(itk, str(tmp_path / name))
        refused(tmp_path / name, "E115", "1e\\+300 mm")
    for suffix in [".h5", ".tfm"]:
        write_transform(tmp_path / f"t{suffix}", Transform(some_field(scale=1e6)))
        refused(tmp_path / f"t{suffix}", "E115", "allowed are up to 1e\\+05 mm")


def test_hash_is_that_of_the_voxels_in_space():
    rng = np.random.default_rng(5)
    affine = np.eye(4)
    affine[:3, :3] = np.linalg.qr(rng.normal(size=(3, 3)))[0] * [0.9, 1.2, 2.5]
    affine[:3, 3] = (-20.3, 11.7, 400.1)
    grid = Geometry((5, 6, 7), affine)
    step = np.eye(4)[:, [2, 0, 1, 3]]
    step[:3, 3] = (0, 5, 0)
    step[1] *= -1
    step[1, 3] = 5
    turned = Geometry((7, 5, 6), affine @ step)
    assert same_voxels(grid, turned)
    assert grid_hash(grid) == grid_hash(turned)
    for other in (Geometry((5, 6, 8), affine), Geometry((5, 6, 7), affine @ np.diag([1, 1, 1.01, 1]))):
        assert not same_voxels(grid, other)
        assert grid_hash(grid) != grid_hash(other)
    shifted = affine.copy()
    shifted[0, 3] += 0.05
    assert not same_voxels(grid, Geometry((5, 6, 7), shifted))


@pytest.mark.parametrize(("shape", "bound"), [((60, 60, 60), 0.0), ((100, 90, 80), 0.0005), ((150, 150, 140), 0.0099)])
def test_rounding_keeps_its_bound(shape, bound):
    field = some_field(Geometry(shape, np.eye(4)))
    assert bound_mm(field) == bound
    listed = np.concatenate(list(pieces_of(field))).reshape(*shape[::-1], 3)
    error = np.linalg.norm(listed.transpose(3, 2, 1, 0).astype(np.float64) - field.data, axis=0)
    assert error.max() <= bound * (1 + 1e-5)
    if bound:
        assert error.max() > bound / 2
    assert bound_mm(Field(field.data, Geometry(shape, np.diag([1e-3, 1, 1, 1.0])))) <= 1e-3 / 32


def test_few_planes_at_a_time_give_the_same_file_by_the_filters_of_the_library(tmp_path, monkeypatch):
    transform = Transform(some_field(Geometry((90, 80, 75), np.eye(4))))
    for name, planes, threads in (("one", 75, 1), ("some", 7, 2)):
        monkeypatch.setattr(files, "SLAB_VOXELS", planes * 90 * 80)
        with kernel_threads(threads):
            write_transform(tmp_path / f"{name}.h5", transform)
    assert (tmp_path / "one.h5").read_bytes() == (tmp_path / "some.h5").read_bytes()
    assert read_transform(tmp_path / "one.h5").field.data.shape == (3, 90, 80, 75)
    with h5py.File(tmp_path / "one.h5") as file:
        found = file["TransformGroup/2/TransformParameters"]
        listed = np.concatenate(list(pieces_of(transform.field)))
        assert (found.compression, found.shuffle, found.dtype) == ("gzip", True, np.float32)
        np.testing.assert_array_equal(found[:], listed)


def test_a_write_that_does_not_fit_is_an_error_of_ours(tmp_path):
    """What a quota or a full disk does: the program ends with the code, silently otherwise."""
    code = (
        "import sys, numpy as np\nfrom regweave.io import write_transform\n"
        "from regweave.types import *\nfrom regweave.errors import RegweaveError\n"
        "grid = Geometry((40, 40, 40), np.eye(4))\n"
        "field = Field(np.random.default_rng(0).normal(size=(3, 40, 40, 40)).astype(np.float32), grid)\n"
        "for suffix in ('.h5', '.tfm'):\n"
        f"    try:\n        write_transform({str(tmp_path)!r} + '/t' + suffix, Transform(field))\n"
        "    except RegweaveError as error:\n        assert error.code == 'E153'\n"
        "    else:\n        sys.exit(31)\n"
        "sys.exit(30)\n"
    )

    def little_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, preexec_fn=little_room, check=False)
    assert (done.returncode, done.stderr) == (30, b"")
    assert list(tmp_path.iterdir()) == []
