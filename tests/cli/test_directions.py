"""Transforms know their direction: what goes the wrong way is refused, whatever the file is called."""

import shutil

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813

from regweave.cli import main
from regweave.io import read_points, read_transform, write_displacement, write_image, write_labels, write_points
from regweave.io.transforms.files import total_displacement, write_transform
from regweave.types import Ends, Field, Geometry, LabelMap, Transform, Volume

FIXED = Geometry((12, 11, 10), np.diag([2.0, 2.0, 2.5, 1.0]))
MOVING = Geometry((13, 10, 9), np.diag([-2.0, 2.1, 2.5, 1.0]))
THIRD = Geometry((8, 8, 8), np.diag([3.0, 3.0, 3.0, 1.0]))


def store(folder, moving):
    rng = np.random.default_rng(0)
    ends = Ends("fixed_to_moving", FIXED, moving)
    for name, grid in (("fixed", FIXED), ("moving", moving), ("third", THIRD)):
        data = rng.normal(0, 1, grid.shape).astype(np.float32)
        write_image(folder / f"{name}.nii.gz", Volume(data, grid))
        write_labels(folder / f"{name}_labels.nii.gz", LabelMap((data > 0).astype(np.uint8), grid))
    forward = Transform(Field(np.full((3, *FIXED.shape), 0.5, np.float32), FIXED), ends=ends)
    back = Transform(Field(np.full((3, *moving.shape), -0.5, np.float32), moving), ends=ends.turned())
    for suffix in (".h5", ".tfm"):
        write_transform(folder / f"forward{suffix}", forward)
        write_transform(folder / f"inverse{suffix}", back)
    for suffix in (".nii.gz", ".nii", ".nrrd", ".mha"):
        write_displacement(folder / f"forward{suffix}", total_displacement(forward), ends)
        write_displacement(folder / f"inverse{suffix}", total_displacement(back), ends.turned())
    write_points(folder / "p.csv", np.array([[3.0, 4.0, 5.0]]), ["=HYPERLINK(1)"])
    return folder


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return store(tmp_path_factory.mktemp("other_grids"), MOVING)


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    """Both images on one grid: the grids tell nothing."""
    return store(tmp_path_factory.mktemp("one_grid"), FIXED)


@pytest.fixture
def warp(monkeypatch, capsys):
    def call(folder, kind, name, transform, reference, *more):
        monkeypatch.chdir(folder)
        file = f"{name}_labels.nii.gz" if kind == "labels" else f"{name}.nii.gz"
        words = ["warp", kind, file, "-t", transform, "-r", f"{reference}.nii.gz", "-o", "out.nii.gz", "--overwrite"]
        status = main([*words, *more])
        return status, capsys.readouterr().err

    return call


def test_images_and_labels(case, warp):
    for kind in ("image", "labels"):
        for suffix in [".h5", ".tfm", ".nii.gz", ".nii", ".nrrd", ".mha"]:
            shutil.copy(case / f"inverse{suffix}", case / f"back{suffix}")  # no name gives it away
            assert warp(case, kind, "moving", f"forward{suffix}", "fixed") == (0, "")
            assert warp(case, kind, "fixed", f"back{suffix}", "moving") == (0, "")
            status, text = warp(case, kind, "moving", f"back{suffix}", "fixed")
            assert status == 2
            assert "E117" in text
            assert "transform.h5" in text
            status, text = warp(case, kind, "fixed", f"forward{suffix}", "moving")
            assert status == 2
            assert "inverse.h5" in text


def test_references_on_a_third_grid_and_in_another_order(case, warp):
    status, text = warp(case, "image", "moving", "forward.h5", "third")
    assert status == 3
    assert "E118" in text
    assert "[12, 11, 10]" in text
    assert warp(case, "image", "moving", "forward.h5", "third", "--other-grid") == (0, "")
    status, text = warp(case, "image", "moving", "inverse.h5", "third", "--other-grid")
    assert (status, "E117" in text) == (2, True)
    assert warp(case, "image", "fixed", "inverse.h5", "third", "--other-grid", "--to", "moving") == (0, "")
    image = nib.load(case / "fixed.nii.gz")
    turned = nib.as_closest_canonical(image)
    assert not np.allclose(turned.affine, image.affine)
    nib.save(turned, case / "turned.nii.gz")
    assert warp(case, "image", "moving", "forward.h5", "turned") == (0, "")
    assert warp(case, "image", "moving", "inverse.h5", "turned")[0] == 2


def test_one_grid_for_both_images(twins, warp):
    assert warp(twins, "image", "moving", "forward.h5", "fixed") == (0, "")
    status, text = warp(twins, "image", "moving", "inverse.h5", "fixed")
    assert (status, "E117" in text) == (2, True)
    assert warp(twins, "image", "fixed", "inverse.h5", "moving", "--to", "moving") == (0, "")
    assert warp(twins, "image", "fixed", "forward.h5", "moving", "--to", "moving")[0] == 2


def test_foreign_files_and_starts(case, warp, monkeypatch, capsys):
    sitk.WriteTransform(sitk.TranslationTransform(3, (1.0, 0.0, 0.0)), str(case / "foreign.h5"))
    status, text = warp(case, "image", "moving", "foreign.h5", "fixed")
    assert status == 0
    assert text.count("W212") == 1
    assert warp(case, "image", "moving", "identity", "fixed") == (0, "")
    monkeypatch.chdir(case)
    words = ["register", "fixed.nii.gz", "moving.nii.gz", "-o", "result", "--preset", "paper", "--init"]
    assert main([*words, "inverse.h5"]) == 2
    assert "E117" in capsys.readouterr().err


def test_points_and_their_labels(case, monkeypatch, capsys):
    for suffix in [".h5", ".tfm", ".nii.gz", ".nrrd", ".mha"]:
        monkeypatch.chdir(case)
        shutil.copy(case / f"inverse{suffix}", case / f"there{suffix}")
        shutil.copy(case / f"forward{suffix}", case / f"inverse_of_nothing{suffix}")
        words = ["warp", "points", "p.csv", "-o", "q.csv", "--overwrite", "-t"]
        assert main([*words, f"inverse_of_nothing{suffix}"]) == 0
        np.testing.assert_allclose(read_points(case / "q.csv")[0], [[3.5, 4.5, 5.5]], atol=1e-5)
        assert main([*words, f"there{suffix}", "--from", "moving", "--to", "fixed"]) == 0
        np.testing.assert_allclose(read_points(case / "q.csv")[0], [[2.5, 3.5, 4.5]], atol=1e-5)
        capsys.readouterr()
        assert main([*words, f"there{suffix}"]) == 2
        assert "E117" in capsys.readouterr().err
        assert main([*words, f"inverse_of_nothing{suffix}", "--from", "moving", "--to", "fixed"]) == 2
        assert "E117" in capsys.readouterr().err
    monkeypatch.chdir(case)
    assert main(["warp", "points", "p.csv", "-o", "q.csv", "--overwrite", "-t", "forward.h5"]) == 0
    cells = (case / "q.csv").read_text().splitlines()[1].split(",")
    assert cells[3] == "'=HYPERLINK(1)"
    assert read_points(case / "q.csv")[1] == ["'=HYPERLINK(1)"]


def test_convert_carries_the_ends(case, monkeypatch, capsys):
    for suffix in [".h5", ".tfm", ".nii.gz", ".nrrd", ".mha"]:
        monkeypatch.chdir(case)
        assert main(["convert", "inverse.h5", "-o", f"copy{suffix}", "--overwrite"]) == 0
        assert "moving points to fixed points" in capsys.readouterr().out
        ends = read_transform(case / f"copy{suffix}").ends
        assert ends.direction == "moving_to_fixed"
        np.testing.assert_array_equal(ends.start.affine, MOVING.affine)
        np.testing.assert_array_equal(ends.target.affine, FIXED.affine)
