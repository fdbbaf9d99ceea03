"""Files that are not whole, not images, or not what their name says."""

import gzip
import io
import itertools
import json
import struct
import zipfile
from contextlib import nullcontext

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813

from regweave.errors import RegweaveError, RegweaveWarning
from regweave.io import inspect_image, read_image, read_labels, write_image
from regweave.types import Geometry, Volume

SUFFIXES = [".nii", ".nii.gz", ".nrrd", ".mha", ".raw.nrrd", ".raw.mha"]
GRID = Geometry((12, 11, 10), np.diag([1.0, 2.0, 3.0, 1.0]))
COMPRESSED = [".nii.gz", ".nrrd", ".mha"]


@pytest.fixture(scope="module")
def data():
    return np.random.default_rng(3).normal(100, 20, GRID.shape).astype(np.float32)


@pytest.fixture(params=SUFFIXES)
def whole(request, tmp_path, data):
    return write(tmp_path, request.param, data)


def write(folder, suffix, data):
    path = folder / f"scan{suffix}"
    if ".raw." in path.name:
        sitk.WriteImage(sitk.GetImageFromArray(data.T), str(path), False)
    else:
        write_image(path, Volume(data, GRID))
    np.testing.assert_array_equal(read_image(path).data, data)
    return path


def code_of(path, **options):
    with pytest.raises(RegweaveError) as caught:
        read_image(path, **options)
    assert str(path) in caught.value.message
    assert caught.value.exit_status == 3
    assert [p.code for p in inspect_image(path).problems] == [caught.value.code]
    return caught.value.code


def test_a_cut_file_and_other_content_in_its_place(whole):
    content = whole.read_bytes()
    for kept in [0, 1, 4, 60, 200, 0.3, 0.5, 0.99, -9, -1]:
        keep = int(kept * len(content)) if isinstance(kept, float) else kept
        whole.write_bytes(content[:keep])
        assert code_of(whole) == "E102"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("scan", whole.read_bytes())
    whole.write_bytes(buffer.getvalue())
    assert code_of(whole) == "E102"
    for content in (b"hello, this is no image\n" * 40, np.random.default_rng(0).bytes(4000)):
        whole.write_bytes(content)
        assert code_of(whole) == "E102"


def test_a_changed_bit_of_a_compressed_stream_or_its_check_sum(tmp_path, data):
    for place in [0.4, 0.7, 0.95]:
        for suffix in COMPRESSED:
            path = write(tmp_path, suffix, data)
            content = bytearray(path.read_bytes())
            content[int(place * len(content))] ^= 0x10
            path.write_bytes(content)
            assert code_of(path) == "E102"
    path = tmp_path / "x.nii.gz"
    write_image(path, Volume(data, GRID))
    content = bytearray(path.read_bytes())
    content[-6] ^= 1
    path.write_bytes(content)
    assert code_of(path) == "E102"


def test_renamed_and_absent_files(tmp_path, data):
    for old, new in list(itertools.permutations([".nii", ".nii.gz", ".nrrd", ".mha"], 2)):
        renamed = tmp_path / f"other{new}"
        renamed.write_bytes(write(tmp_path, old, data).read_bytes())
        assert code_of(renamed) == "E102"
    assert code_of(tmp_path / "none.nii.gz") == "E101"
    assert code_of(tmp_path) == "E101"
    (tmp_path / "x.dcm").write_bytes(b"abc")
    assert code_of(tmp_path / "x.dcm") == "E103"
    for suffix in [".mhd", ".nhdr"]:
        path = tmp_path / f"x{suffix}"
        sitk.WriteImage(sitk.GetImageFromArray(data.T), str(path))
        (tmp_path / "x.raw").unlink()
        assert code_of(path) == "E102"


def test_sizes_and_dimensions_that_cannot_be(tmp_path, data):
    for dims in [(3, 32767, 32767, 32767), (3, 4000, 4000, 4000), (3, 12, 11, 11)]:
        for suffix in [".nii", ".nii.gz"]:
            path = tmp_path / f"x{suffix}"
            write_image(path, Volume(data, GRID))
            content = path.read_bytes() if suffix == ".nii" else gzip.decompress(path.read_bytes())
            content = content[:40] + struct.pack("<4h", *dims) + content[48:]
            path.write_bytes(content if suffix == ".nii" else gzip.compress(content))
            assert code_of(path) == "E102"
    for dim in [(0, 1, 1, 1), (9, 12, 11, 10), (3, -4, 11, 10), (3, 0, 11, 10)]:
        path = tmp_path / "x.nii"
        write_image(path, Volume(data, GRID))
        content = path.read_bytes()
        path.write_bytes(content[:40] + struct.pack("<4h", *dim) + content[48:])
        assert code_of(path) == "E102"
    assert code_of(save(tmp_path / "2d.nii", data[0])) == "E103"
    assert code_of(save(tmp_path / "4d.nii", np.stack([data, data], -1))) == "E103"
    assert code_of(save(tmp_path / "slice.nii", data[:, :, :1])) == "E103"
    assert code_of(save(tmp_path / "thin.nii", data[:, :3])) == "E103"
    assert code_of(save(tmp_path / "5d.nii", data[..., None, None] * np.ones(3, np.float32))) == "E103"
    np.testing.assert_array_equal(read_image(save(tmp_path / "ok.nii", data[..., None])).data, data)
    np.testing.assert_array_equal(read_image(save(tmp_path / "ok5.nii", data[..., None, None])).data, data)
    rgb = np.zeros(GRID.shape, dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")])
    assert code_of(save(tmp_path / "rgb.nii", rgb)) == "E103"
    assert code_of(save(tmp_path / "c.nii", data.astype(np.complex64))) == "E103"
    with pytest.raises(RegweaveError, match="E103"):
        read_image((np.zeros((4, 4)), np.eye(4)))
    with pytest.raises(RegweaveError, match="E105"):
        read_image((np.zeros((4, 4, 4)), np.eye(4)))


def save(path, array, dtype=None):
    image = nib.Nifti1Image(array, np.eye(4), dtype=dtype or array.dtype)
    nib.save(image, path)
    return path


@pytest.mark.parametrize("suffix", [".nrrd", ".mha"])
def test_dimensions_of_itk_files(tmp_path, data, suffix):
    path = tmp_path / f"x{suffix}"
    for bad in (data[0], np.stack([data, data]), data[:, :, :1]):
        sitk.WriteImage(sitk.GetImageFromArray(bad.T, isVector=False), str(path))
        assert code_of(path) == "E103"
    vector = np.moveaxis(np.stack([data] * 3), 0, -1)
    sitk.WriteImage(sitk.GetImageFromArray(vector, isVector=True), str(path))
    assert code_of(path) == "E103"
    sitk.WriteImage(sitk.GetImageFromArray(data.T[np.newaxis], isVector=False), str(path))
    # SimpleITK names no space in an NRRD file of four dimensions.
    with pytest.warns(RegweaveWarning, match="W207") if suffix == ".nrrd" else nullcontext():
        np.testing.assert_array_equal(read_image(path).data, data)


def test_numbers_that_are_not_finite(tmp_path, data):
    for value in [np.nan, np.inf, -np.inf]:
        for suffix in [".nii.gz", ".nrrd", ".mha"]:
            path = tmp_path / f"x{suffix}"
            bad = data.copy()
            bad[2:4, 3, 5:8] = value
            write_image(path, Volume(bad, GRID))
            with pytest.raises(RegweaveError) as caught:
                read_image(path)
            assert caught.value.code == "E104"
            assert "6 non-finite" in caught.value.message
            assert "[2, 3, 5] to [3, 3, 7]" in caught.value.message
            with pytest.warns(RegweaveWarning, match="W205"):
                masked = read_image(path, nonfinite="mask").data
            assert (masked[2:4, 3, 5:8] == data[np.isfinite(bad)].min()).all()
            np.testing.assert_array_equal(masked[np.isfinite(bad)], data[np.isfinite(bad)])
    big = data.astype(np.float64)
    big[0, 0, 0] = 1e300
    assert code_of(save(tmp_path / "x.nii", big)) == "E104"
    assert code_of(save(tmp_path / "n.nii", np.full(GRID.shape, np.nan)), nonfinite="error") == "E104"
    with pytest.raises(RegweaveError, match="E104"), pytest.warns(RegweaveWarning):
        read_image(tmp_path / "n.nii", nonfinite="mask")


def with_scaling(path, stored, slope, inter):
    header = nib.Nifti1Header()
    header.set_data_dtype(stored.dtype)
    header.set_data_shape(stored.shape)
    header.set_sform(np.eye(4), 1)
    header["scl_slope"], header["scl_inter"] = slope, inter
    header["magic"], header["vox_offset"] = b"n+1", 352
    path.write_bytes(header.binaryblock + b"\0" * 4 + stored.tobytes(order="F"))
    return path


def test_scaling_byte_order_and_version(tmp_path, data):
    scalings = [(0, 7, 1, 0), (np.nan, np.nan, 1, 0), (2, -1024, 2, -1024), (1, 0, 1, 0), (-0.5, 3, -0.5, 3)]
    for slope, inter, factor, offset in scalings:
        stored = np.random.default_rng(0).integers(0, 2000, GRID.shape).astype(np.int16)
        path = with_scaling(tmp_path / "x.nii", stored, slope, inter)
        np.testing.assert_array_equal(read_image(path).data, (stored * factor + offset).astype(np.float32))
        np.testing.assert_array_equal(read_image(path).data, nib.load(path).get_fdata().astype(np.float32))
    stored = (data * 3).astype(np.int16)
    assert code_of(with_scaling(tmp_path / "i.nii", stored, 2, np.nan)) == "E102"
    path = with_scaling(tmp_path / "c.nii", np.full(GRID.shape, 5, np.int16), 2, -4)
    assert code_of(path) == "E105"
    with pytest.raises(RegweaveError, match="minimum 6, maximum 6, scl_slope 2, scl_inter -4"):
        read_image(path)
    for kind in [nib.Nifti1Image, nib.Nifti2Image]:
        for order in ["<", ">"]:
            stored = np.random.default_rng(0).integers(-5, 2000, GRID.shape).astype(np.dtype("i2").newbyteorder(order))
            image = kind(stored, np.eye(4), header=kind.header_class(endianness=order))
            nib.save(image, tmp_path / "x.nii.gz")
            volume = read_image(tmp_path / "x.nii.gz")
            np.testing.assert_array_equal(volume.data, stored.astype(np.float32))


def test_labels_and_their_names(tmp_path):
    labels = np.random.default_rng(0).integers(0, 3, GRID.shape)
    for dtype in (np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64):
        path = save(tmp_path / "x.nii.gz", (labels * 70).astype(dtype))
        found = read_labels(path)
        assert found.data.dtype == dtype
        assert found.values() == [70, 140]
    for dtype in (np.float32, np.float64):
        found = read_labels(save(tmp_path / "f.nii.gz", (labels * 200).astype(dtype)))
        assert found.data.dtype == np.uint16
        assert found.values() == [200, 400]
    with pytest.raises(RegweaveError, match=r"E106.*not whole"):
        read_labels(save(tmp_path / "h.nii.gz", labels * np.float32(0.5)))
    with pytest.raises(RegweaveError, match=r"E106.*negative"):
        read_labels(save(tmp_path / "n.nii.gz", (labels - 1).astype(np.int16)))
    holes = labels.astype(np.float32)
    holes[0, 0, 0] = np.nan
    with pytest.raises(RegweaveError, match="E104"):
        read_labels(save(tmp_path / "nan.nii.gz", holes))
    assert read_labels((labels.astype(np.uint8), np.eye(4))).values() == [1, 2]
    assert read_labels(read_labels(path)).names == {}
    path = save(tmp_path / "seg.nii.gz", np.random.default_rng(0).integers(0, 3, GRID.shape).astype(np.uint8))
    (tmp_path / "labels.json").write_text('{"1": "Liver", "2": "Spleen"}')
    assert read_labels(path).names == {1: "Liver", 2: "Spleen"}
    (tmp_path / "names.json").write_text('{"Heart": 1}')
    assert read_labels(path, names_path=tmp_path / "names.json").names == {1: "Heart"}
    (tmp_path / "seg.tsv").write_text("index\tname\tcolor\n1\tKidney\t#fff\n")
    assert read_labels(path).names == {1: "Kidney"}
    for bad in ("{", "[1, 2]", '{"1": 1.5}', '{"a": "b"}', '{"1": "a", "01": "b"}'):
        (tmp_path / "bad.json").write_text(bad)
        with pytest.raises(RegweaveError, match="E107"):
            read_labels(path, names_path=tmp_path / "bad.json")
    for source in (path, read_labels(path)):
        with pytest.raises(RegweaveError, match=r"E107: the names are of 7 Liver; .* holds the labels \[1, 2\]"):
            read_labels(source, names_path={7: "Liver"})


def test_values_of_an_image_are_no_labels(tmp_path):
    """Whole numbers that scatter are refused; atlases are read, those of over 256 labels with their names."""
    grid = np.indices((40, 40, 40)) // 5
    blocks = grid[0] * 64 + grid[1] * 8 + grid[2]  # 512 blocks of 5 voxels
    freesurfer = np.where(blocks < 190, blocks * 74, 0).astype(np.uint16)  # numbers up to 14,000
    assert len(read_labels(save(tmp_path / "fs.nii.gz", freesurfer)).values()) == 189
    noise = np.random.default_rng(0).integers(0, 200, blocks.shape).astype(np.uint8)
    for data, found in ((noise, "199 different labels, and .* of neighbours differ"), (blocks, "511 different labels")):
        path = save(tmp_path / "image.nii.gz", data.astype(np.uint16))
        with pytest.raises(RegweaveError, match=f"E127.*{found}"):
            read_labels(path)
    names = {str(v): f"region {v}" for v in range(1, 512)}
    (tmp_path / "labels.json").write_text(json.dumps(dict(list(names.items())[:100])))
    with pytest.raises(RegweaveError, match="E127"):  # names of a few state nothing
        read_labels(path)
    (tmp_path / "labels.json").write_text(json.dumps(names))
    assert len(read_labels(path).values()) == 511


def test_messages_do_not_repeat_header_text(tmp_path, data):
    image = nib.Nifti1Image(np.full_like(data, 3), np.eye(4))
    image.header["descrip"] = b"DOE^JANE 1970"
    nib.save(image, tmp_path / "x.nii.gz")
    found = inspect_image(tmp_path / "x.nii.gz")
    assert [p.code for p in found.problems] == ["E105"]
    assert "DOE" not in str(found)
