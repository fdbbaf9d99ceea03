"""Outputs are whole or absent."""

import gzip
import zlib

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813

from regweave.errors import RegweaveError
from regweave.io import (
    atomic_path,
    check_overlap,
    fill_value,
    overlap_fraction,
    prepare_output,
    read_labels,
    require_absent,
    write,
    write_displacement,
    write_image,
    write_labels,
)
from regweave.io import write as deflate
from regweave.threads import kernel_threads
from regweave.types import Field, Geometry, LabelMap, Volume

GRID = Geometry((6, 5, 4), np.diag([-1.0, -2.0, 3.0, 1.0]))
RAMP = np.arange(120, dtype=np.float32).reshape(GRID.shape)


def fail_inside(context, error):
    with context as part:
        (part / "half.txt" if part.is_dir() else part).write_text("half")
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_file_is_whole_or_absent(tmp_path, error):
    path = tmp_path / "a.nii.gz"
    with pytest.raises(error):
        fail_inside(atomic_path(path), error)
    assert list(tmp_path.iterdir()) == []
    path.write_text("old")
    with pytest.raises(error):
        fail_inside(atomic_path(path), error)
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]
    with atomic_path(path) as part:
        assert part.parent.parent == tmp_path
        assert part.name.endswith(".nii.gz")
        part.write_text("new")
    assert [p.read_text() for p in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_folder_is_whole_or_absent(tmp_path, error):
    target = tmp_path / "deep" / "result"
    with pytest.raises(error):
        fail_inside(prepare_output(target), error)
    assert list(tmp_path.iterdir()) == []
    with prepare_output(target) as folder:
        (folder / "a.txt").write_text("first")
        assert not target.exists()
    assert (target / "a.txt").read_text() == "first"
    with pytest.raises(RegweaveError, match="E150"), prepare_output(target):
        pytest.fail("the block must not run")
    with pytest.raises(error):
        fail_inside(prepare_output(target, overwrite=True), error)
    assert (target / "a.txt").read_text() == "first"
    with prepare_output(target, overwrite=True) as folder:
        (folder / "b.txt").write_text("second")
    assert not (target / "a.txt").exists()
    assert (target / "b.txt").read_text() == "second"
    assert list(target.parent.iterdir()) == [target]


def test_require_absent(tmp_path):
    path = tmp_path / "a.txt"
    require_absent(path)
    path.touch()
    with pytest.raises(RegweaveError, match="E150"):
        require_absent(path)
    require_absent(path, overwrite=True)
    with pytest.raises(RegweaveError, match="E150"):
        require_absent(tmp_path, overwrite=True)
    with pytest.raises(RegweaveError, match="E153"):
        require_absent(tmp_path / "none" / "a.txt")


@pytest.mark.parametrize("suffix", [".nii.gz", ".nrrd", ".mha"])
def test_failed_write_leaves_nothing(tmp_path, suffix):
    with pytest.raises(RegweaveError, match="E153"):
        write_image(tmp_path / "none" / f"x{suffix}", Volume(RAMP, GRID))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".nii.gz", ".nrrd", ".mha"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64])
def test_labels_keep_type_and_values(tmp_path, suffix, dtype):
    values = np.array([0, 1, np.iinfo(dtype).max], dtype=dtype)
    labels = LabelMap(values[np.random.default_rng(0).integers(0, 3, GRID.shape)], GRID)
    write_labels(tmp_path / f"x{suffix}", labels)
    back = read_labels(tmp_path / f"x{suffix}")
    assert back.data.dtype == dtype
    np.testing.assert_array_equal(back.data, labels.data)


def test_image_types_suffixes_and_fill(tmp_path):
    write_image(tmp_path / "x.nii", Volume(RAMP + 0.4, GRID), np.int16)
    image = nib.load(tmp_path / "x.nii")
    assert image.get_data_dtype() == np.int16
    np.testing.assert_array_equal(np.asanyarray(image.dataobj), RAMP)
    write_image(tmp_path / "x.mha", Volume(RAMP, GRID), "uint8")
    assert sitk.ReadImage(str(tmp_path / "x.mha")).GetPixelIDTypeAsString() == "8-bit unsigned integer"
    with pytest.raises(RegweaveError, match="E152"):
        write_image(tmp_path / "y.nii", Volume(RAMP * 10, GRID), np.uint8)
    assert not (tmp_path / "y.nii").exists()
    for name in ("x.png", "x.mhd", "x"):
        with pytest.raises(RegweaveError, match="E152"):
            write_image(tmp_path / name, Volume(RAMP, GRID))
    assert fill_value(Volume(RAMP, GRID)) == 0
    assert fill_value(Volume(RAMP - 50, GRID)) == 0
    assert fill_value(Volume(RAMP, GRID, "ct")) == -1000


def test_packed_file_holds_what_nibabel_writes(tmp_path, monkeypatch):
    """Blocks of noise and of repeated values, few planes at a time, header and vectors of a field included."""
    monkeypatch.setattr(deflate, "BLOCK", 1 << 17)
    monkeypatch.setattr(write, "SLAB_VOXELS", 3 * 70 * 60)
    rng = np.random.default_rng(4)
    grid = Geometry((70, 60, 50), np.diag([1.0, 2.0, 3.0, 1.0]))
    data = rng.normal(size=grid.shape).astype(np.float32)
    data[:35] = np.tile(np.arange(50, dtype=np.float32), (35, 60, 1))
    vectors = Field(rng.normal(size=(3, *grid.shape)).astype(np.float32), grid)
    for n in (1, 3):
        with kernel_threads(n):
            write_image(tmp_path / f"{n}.nii.gz", Volume(data, grid))
            write_displacement(tmp_path / f"{n}u.nii.gz", vectors)
    write_image(tmp_path / "1.nii", Volume(data, grid))
    write_displacement(tmp_path / "1u.nii", vectors)
    for name in ("1", "1u"):
        packed = (tmp_path / f"{name}.nii.gz").read_bytes()
        assert packed == (tmp_path / f"{name.replace('1', '3')}.nii.gz").read_bytes()
        assert gzip.decompress(packed) == (tmp_path / f"{name}.nii").read_bytes()


def test_noise_is_packed_by_runs_and_repeated_values_by_words():
    noise = memoryview(np.random.default_rng(0).normal(size=1 << 16).astype(np.float32)).cast("B")
    steps = memoryview(np.tile(np.arange(512, dtype=np.float32), 128)).cast("B")
    for raw, runs in ((noise, True), (steps, False)):
        packed = deflate._deflated(raw)
        assert zlib.decompressobj(-15).decompress(packed) == raw
        assert (packed == deflate._packed(raw, zlib.Z_RLE)) == runs


def test_overlap():
    big = Geometry((40, 40, 40), np.diag([2.0, 2.0, 2.0, 1.0]))
    small = Geometry((10, 10, 10), np.eye(4))
    small.affine[:3, 3] = 30
    for fixed, moving in ((big, small), (small, big)):
        assert overlap_fraction(fixed, moving, np.eye(4)) == 1.0
    shift = np.eye(4)
    shift[0, 3] = 60.0
    assert overlap_fraction(big, big, shift) == pytest.approx(0.25, abs=0.02)
    assert check_overlap(big, big, shift) == overlap_fraction(big, big, shift)
    shift[0, 3] = 90.0
    with pytest.raises(RegweaveError) as caught:
        check_overlap(big, big, shift)
    assert caught.value.code == "E120"
    assert "90.0 mm" in caught.value.message
    assert "--init moments" in caught.value.hint


def test_a_failed_run_leaves_no_parents_behind(tmp_path):
    with pytest.raises(KeyboardInterrupt), prepare_output(tmp_path / "a" / "b" / "out"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with prepare_output(tmp_path / "a" / "b" / "out"):
        pass
    assert (tmp_path / "a" / "b" / "out").is_dir()
