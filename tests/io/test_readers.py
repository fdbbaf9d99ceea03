"""An image is a file, a folder or an object, and a new reader is one new file."""

import hashlib

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813

from regweave import io
from regweave.errors import RegweaveError, UsageError
from regweave.io import inspect_image, read_image, read_labels, write_image
from regweave.jobs.table import read_pairs
from regweave.types import Geometry, Volume

# Turned, anisotropic and away from the origin: no wrong frame gives the same affine.
TURN = np.array([[0.0, -1.0, 0.0], [0.6, 0.0, -0.8], [0.8, 0.0, 0.6]])
SPACING, ORIGIN = np.array([1.0, 2.0, 3.0]), np.array([-7.0, 11.0, 5.0])
AFFINE = np.eye(4)
AFFINE[:3, :3], AFFINE[:3, 3] = TURN * SPACING, ORIGIN
RAS = np.diag([-1.0, -1.0, 1.0, 1.0]) @ AFFINE


@pytest.fixture
def volume():
    data = np.random.default_rng(0).integers(0, 9, (5, 6, 7)).astype(np.float32)
    return Volume(data, Geometry((5, 6, 7), AFFINE))


def same(found, volume):
    np.testing.assert_array_equal(found.data, volume.data)
    np.testing.assert_allclose(found.geometry.affine, volume.geometry.affine, atol=1e-5)


def code_of(source, read=read_image):
    with pytest.raises(RegweaveError) as caught:
        read(source)
    return caught.value.code, f"{caught.value.message} | {caught.value.hint}"


def imitation(package, name, **attributes):
    """Return an object whose class has the name and the package of another library's."""
    return type(name, (), {"__module__": f"{package}.somewhere", **attributes})()


def ants_like(volume, components=1):
    return imitation(
        "ants", "ANTsImage", direction=TURN, spacing=tuple(SPACING), origin=tuple(ORIGIN), components=components,
        numpy=lambda self: volume.data,
    )  # fmt: skip


def torchio_like(volume, channels=1):
    base = type("Image", (), {"__module__": "torchio.data.image"})
    made = type("LabelMap", (base,), {"__module__": "torchio.data.image"})()
    made.data, made.affine = np.stack([volume.data] * channels), RAS
    return made


def monai_like(volume, space=None, channel=True):
    meta = {} if space is None else {"space": space}
    data = volume.data[None] if channel else volume.data
    return imitation("monai", "MetaTensor", array=data, affine=AFFINE if space == "LPS" else RAS, meta=meta)


IN_MEMORY = {
    "ants": ants_like, "torchio": torchio_like, "monai": monai_like,
    "monai without a channel": lambda v: monai_like(v, "RAS", channel=False),
    "monai in LPS": lambda v: monai_like(v, "LPS"), "array": lambda v: (v.data, RAS),
    "nibabel": lambda v: nib.Nifti1Image(v.data, RAS), "nibabel, another format": lambda v: nib.MGHImage(v.data, RAS),
}  # fmt: skip


def test_objects_lie_where_their_library_says(volume):
    for make in IN_MEMORY.values():
        source = make(volume)
        same(read_image(source), volume)
        labels = read_labels(source)
        assert labels.data.dtype.kind == "u"
        same(labels, volume)
    for source in (ants_like(volume, components=2), torchio_like(volume, channels=2)):
        assert code_of(source)[0] == "E103"
    with pytest.raises(UsageError, match=r"E108.*numpy\.ndarray"):
        read_image(volume.data)
    said = code_of({"image": 1})[1]
    assert all(word in said for word in ("SimpleITK", "nibabel", "ANTsPy", "TorchIO", "MONAI", "(array, affine)"))
    # Only the package of that name is meant, not one that merely has such a class.
    assert code_of(imitation("elsewhere", "ANTsImage"))[0] == "E108"
    for other in (object(), 3, np.zeros((5, 5, 5)), (1, 2, 3)):
        with pytest.raises(RegweaveError, match=r"E108.*from an object of type"):
            read_image(other)


def test_real_ants_object(volume):
    ants = pytest.importorskip("ants")
    made = ants.from_numpy(volume.data, origin=tuple(ORIGIN), spacing=tuple(SPACING), direction=TURN)
    same(read_image(made), volume)
    assert code_of(ants.merge_channels([made, made]))[0] == "E103"


def test_real_torchio_objects(volume):
    torchio = pytest.importorskip("torchio")
    same(read_image(torchio.ScalarImage(tensor=volume.data[None], affine=RAS)), volume)
    labels = read_labels(torchio.LabelMap(tensor=volume.data[None].astype(np.uint8), affine=RAS))
    same(labels, volume)


def test_real_monai_object(volume):
    monai, torch = pytest.importorskip("monai.data"), pytest.importorskip("torch")
    same(read_image(monai.MetaTensor(torch.as_tensor(volume.data)[None], affine=torch.as_tensor(RAS))), volume)


def test_content_tells_a_file_without_a_suffix_and_dicom_that_holds_nothing_is_refused(tmp_path, volume):
    for suffix in (".nii", ".nii.gz", ".nrrd", ".mha"):
        write_image(tmp_path / f"x{suffix}", volume)
        (tmp_path / f"x{suffix}").rename(tmp_path / "scan.001")
        same(read_image(tmp_path / "scan.001"), volume)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "IM0001").write_bytes(bytes(128) + b"DICM" + bytes(400))
    for path in (tmp_path / "a" / "IM0001", tmp_path / "a"):
        assert code_of(path)[0] in {"E101", "E102"}
    (tmp_path / "b").mkdir()
    code, said = code_of(tmp_path / "b")
    assert code == "E101"
    assert "DICOM" in said


@pytest.fixture
def folder(tmp_path, volume):
    """Return a folder with one image, a sidecar and names of labels."""
    made = tmp_path / "sub-01"
    made.mkdir()
    write_image(made / "sub-01_T1w.nii.gz", volume)
    (made / "sub-01_T1w.json").write_text("{}")
    (made / "dseg.tsv").write_text("index\tname\n3\tLiver\n")
    (made / ".hidden.nii").write_bytes(b"")
    return made


def test_folders_with_one_image_or_two_and_their_names(folder, volume, tmp_path):
    same(read_image(folder), volume)
    same(read_image(str(folder)), volume)
    assert read_labels(folder).names == {3: "Liver"}
    assert io.image_sha256(folder) == io.sha256(folder / "sub-01_T1w.nii.gz")
    found = inspect_image(folder)
    assert found.problems == ()
    assert found.facts["nifti"]["version"] == 1
    assert found.facts["bytes"] == (folder / "sub-01_T1w.nii.gz").stat().st_size
    write_image(folder / "other.nrrd", volume)
    code, said = code_of(folder)
    assert code == "E101"
    assert "2 images" in said
    assert "other.nrrd, sub-01_T1w.nii.gz" in said
    (folder / "other.nrrd").unlink()
    (tmp_path / "two").mkdir()  # a detached header
    sitk.WriteImage(volume_itk(volume), str(tmp_path / "two" / "x.mhd"))
    same(read_image(tmp_path / "two"), volume)
    files = [(tmp_path / "two" / name).read_bytes() for name in ("x.mhd", "x.raw")]
    assert io.image_sha256(tmp_path / "two") == hashlib.sha256(b"".join(files)).hexdigest()
    assert inspect_image(tmp_path / "two").facts["bytes"] == sum(map(len, files))
    line = "id,fixed,moving,fixed_labels,moving_labels\na,sub-01,sub-01,sub-01,{}\n"
    (tmp_path / "pairs.csv").write_text(line.format("sub-01"))
    assert read_pairs(tmp_path / "pairs.csv")[0].fixed == folder
    (tmp_path / "empty").mkdir()
    (tmp_path / "pairs.csv").write_text(line.format("empty"))
    with pytest.raises(RegweaveError, match=r"E101.*moving_labels.*folder without an image"):
        read_pairs(tmp_path / "pairs.csv")
    path = tmp_path / "labels.txt"
    path.write_text(
        '# ITK-SnAP Label Description File\n# IDX   -R-  -G-  -B-  -A--  VIS MSH  LABEL\n'
        '    0     0    0    0        0  0  0    "Clear Label"\n'
        '    7   255    0  127      0.5  1  1    "Left parotid"\n'
    )  # fmt: skip
    assert io.read_names(path) == {0: "Clear Label", 7: "Left parotid"}
    path.write_text("seven is the parotid\n")
    with pytest.raises(RegweaveError, match=r"E107.*ITK-SNAP"):
        io.read_names(path)


def volume_itk(volume):
    image = sitk.GetImageFromArray(volume.data.T)
    image.SetSpacing(SPACING.tolist())
    image.SetOrigin(ORIGIN.tolist())
    image.SetDirection(TURN.ravel().tolist())
    return image
