"""What is written: small files that hold the whole map, and those that were asked for."""

import h5py
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813

from phantoms import make_phantom
from regweave import register
from regweave.cli import main
from regweave.config.settings import preset
from regweave.errors import RegweaveError
from regweave.io import read_transform, write_image
from regweave.run import result
from regweave.spatial.warp import warp_image, warp_points

ALWAYS = {"result.json", ".regweave-result"}


@pytest.fixture(scope="module")
def pair():
    found = make_phantom(shape=(38, 33, 30), spacing_mm=(3.0, 3.1, 4.0), seed=2).pair
    return found.with_fixed(labels=None).with_moving(labels=None)


@pytest.fixture(scope="module")
def shrunken(pair):
    """A registration whose last stage works on a grid of half the resolution."""
    settings = preset("default")
    settings = settings.model_copy(update={"refine": settings.refine.model_copy(update={"max_voxels": 8000})})
    return register(pair.fixed, pair.moving, config=settings, init="affine")


@pytest.fixture(scope="module")
def folder(shrunken, tmp_path_factory):
    target = tmp_path_factory.mktemp("result") / "out"
    shrunken.save(target, write=("warped", "transform", "inverse", "displacement"))
    return target


def points_in(geometry, n=300):
    index = np.random.default_rng(0).uniform(-0.45, np.array(geometry.shape) - 0.55, (n, 3))
    return geometry.points(index)


def by_itk(transform, points):
    return np.array([transform.TransformPoint(p) for p in points.tolist()])


def test_field_is_stored_at_the_resolution_it_has(shrunken, folder):
    assert shrunken.transform.knots is not None
    with h5py.File(folder / "transform.h5") as h5:
        stored = h5["TransformGroup/2/TransformParameters"]
        assert stored.size == shrunken.transform.knots.data.size
        assert stored.size < shrunken.transform.field.data.size / 3
    back = read_transform(folder / "transform.h5", shrunken.transform.field.geometry)
    np.testing.assert_allclose(back.field.data, shrunken.transform.field.data, atol=1e-3)


def test_itk_composes_what_the_result_says_at_voxels_and_between(shrunken, folder, pair):
    forward = sitk.ReadTransform(str(folder / "transform.h5"))
    points = points_in(pair.fixed.geometry)
    ours = warp_points(points, shrunken.transform)
    assert np.abs(ours - points).max() > 3.0
    assert np.linalg.norm(by_itk(forward, points) - ours, axis=1).max() < 0.01
    field = sitk.DisplacementFieldTransform(sitk.ReadImage(str(folder / "displacement.nii.gz"), sitk.sitkVectorFloat64))
    assert np.linalg.norm(by_itk(field, points) - ours, axis=1).max() < 0.01
    index = np.random.default_rng(1).integers(0, pair.fixed.geometry.shape, (300, 3))
    centres = pair.fixed.geometry.points(index.astype(float))
    exact = centres + shrunken.transform.field.data[(slice(None), *index.T)].T
    exact = exact @ shrunken.transform.affine[:3, :3].T + shrunken.transform.affine[:3, 3]
    assert np.linalg.norm(by_itk(forward, centres) - exact, axis=1).max() < 0.01


def test_inverse_and_warped_image_are_those_of_the_file(folder, pair, shrunken):
    """Each moving voxel returns to where it was: the inverse is that of the stored map, not of its voxels alone."""
    there, back = (sitk.ReadTransform(str(folder / f"{name}.h5")) for name in ("transform", "inverse"))
    size = np.array(pair.moving.geometry.shape)
    index = np.random.default_rng(3).integers(size // 4, size - size // 4, (300, 3))
    centres = pair.moving.geometry.points(index.astype(float))
    error = np.linalg.norm(by_itk(there, by_itk(back, centres)) - centres, axis=1)
    assert np.percentile(error, 95) < 0.01
    again = warp_image(pair.moving, read_transform(folder / "transform.h5", pair.fixed.geometry))
    inside = (slice(3, -3),) * 3
    difference = np.abs(again.data - shrunken.warped.data)[inside]
    assert np.percentile(difference, 99.5) < 1e-3 * np.ptp(pair.moving.data)


def test_chosen_files_here_and_by_the_command(shrunken, tmp_path, folder, pair, monkeypatch, capsys):
    assert {p.name for p in folder.iterdir()} == ALWAYS | {
        "warped.nii.gz", "transform.h5", "inverse.h5", "displacement.nii.gz",
    }  # fmt: skip
    shrunken.save(tmp_path / "one", write=["transform"])
    assert {p.name for p in (tmp_path / "one").iterdir()} == ALWAYS | {"transform.h5"}
    shrunken.save(tmp_path / "usual")
    assert (tmp_path / "usual" / "displacement.nii.gz").exists()  # the image is small
    kept = shrunken.images
    for size, there in ((kept.warped.data.size, True), (kept.warped.data.size - 1, False)):
        monkeypatch.setattr(result, "SMALL_VOXELS", size)
        made = result.Images.made(kept.transform, kept.inverse, kept.warped, None, kept.pair)
        assert ("displacement" in made.usual) is there
    for wrong in (["warped", "nonsense"], [], ["report", "warped"]):
        with pytest.raises(RegweaveError, match="E119"):
            shrunken.save(tmp_path / "none", write=wrong)
    assert not (tmp_path / "none").exists()
    monkeypatch.chdir(tmp_path)
    write_image(tmp_path / "f.nii.gz", pair.fixed)
    write_image(tmp_path / "m.nii.gz", pair.moving)
    words = ["register", "f.nii.gz", "m.nii.gz", "--preset", "paper", "--quiet", "-o"]
    assert main([*words, "out", "--write", "inverse,warped"]) == 0
    assert {p.name for p in (tmp_path / "out").iterdir()} == ALWAYS | {"warped.nii.gz", "inverse.h5"}
    assert main([*words, "out2", "--write", "nonsense"]) == 2
    assert "E119" in capsys.readouterr().err
