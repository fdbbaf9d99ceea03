"""Image files that nobody means well: headers that contradict themselves, streams without end, names of other files."""

import gzip
import hashlib
import os
import tracemalloc
import zlib

import nibabel as nib
import numpy as np
import pytest

from regweave.cli import main
from regweave.errors import RegweaveError, RegweaveWarning, ResourceError
from regweave.io import image_sha256, inspect_image, read_image, read_labels, read_transform, sha256
from regweave.io.disk import files as limits
from regweave.jobs.runner import Runner
from regweave.jobs.table import PairFiles
from regweave.run.read import Reading

SHAPE = (8, 7, 6)
MHD = (
    "ObjectType = Image\nNDims = 3\nBinaryData = True\nCompressedData = False\nTransformMatrix = 1 0 0 0 1 0 0 0 1\n"
    "Offset = 0 0 0\nElementSpacing = 1 1 1\nDimSize = 8 7 6\nElementType = MET_UCHAR\nElementDataFile = "
)
NHDR = (
    "NRRD0004\ntype: uchar\ndimension: 3\nspace: LPS\nsizes: 8 7 6\nspace directions: (1,0,0) (0,1,0) (0,0,1)\n"
    "encoding: raw\nspace origin: (0,0,0)\ndata file: "
)
VOXELS = bytes(range(1, 29)) * 12


def header(shape=SHAPE, kind=np.int16, **fields):
    head = nib.Nifti1Header()
    head.set_data_dtype(kind)
    head["dim"] = [len(shape), *shape, *[1] * (7 - len(shape))]
    head["vox_offset"], head["magic"], head["pixdim"][:4] = 352, b"n+1", 1
    head.set_sform(np.eye(4), 1)
    head.set_qform(np.eye(4), 0)
    for name, value in fields.items():
        head[name] = value
    return head


def save(path, head, body=None):
    content = np.arange(np.prod(SHAPE)).astype(np.int16).tobytes() if body is None else body
    content = head.binaryblock + bytes(4) + content
    path.write_bytes(gzip.compress(content) if path.name.endswith("gz") else content)
    return path


def code_of(path, **options):
    with pytest.raises(RegweaveError) as caught:
        read_image(path, **options)
    assert str(path) in caught.value.message
    return caught.value.code


def test_nifti_headers_that_contradict_themselves(tmp_path):
    for fields, code in [
        ({"datatype": 0}, "E102"), ({"datatype": 3}, "E102"), ({"datatype": 255}, "E102"),
        ({"datatype": 511}, "E102"), ({"datatype": -1}, "E102"), ({"datatype": 1, "bitpix": 1}, "E103"),
        ({"datatype": 1536, "bitpix": 128}, "E103"), ({"datatype": 2048, "bitpix": 256}, "E103"),
        ({"bitpix": 64}, "E113"), ({"bitpix": 0}, "E113"), ({"scl_slope": np.inf}, "E102"),
        ({"scl_slope": 2, "scl_inter": np.inf}, "E102"), ({"vox_offset": 352.5}, "E102"),
        ({"vox_offset": 8e9}, "E102"), ({"vox_offset": -352}, "E102"), ({"vox_offset": np.nan}, "E102"),
        ({"xyzt_units": 5}, "E102"), ({"sform_code": 77}, "E102"), ({"sform_code": -1}, "E102"),
        ({"qform_code": 1, "quatern_b": 5}, "E113"),
        ({"qform_code": 1, "quatern_b": 0.8, "quatern_c": 0.8, "quatern_d": 0.8}, "E113"),
        ({"qform_code": 1, "quatern_c": np.nan}, "E113"),
        ({"qform_code": 1, "sform_code": 0, "pixdim": [1, -1, 1, 1, 0, 0, 0, 0]}, "E113"),
        ({"qform_code": 1, "sform_code": 0, "pixdim": [1, np.inf, 1, 1, 0, 0, 0, 0]}, "E113"),
        ({"qform_code": 1, "sform_code": 0, "pixdim": [7, 1, 1, 1, 0, 0, 0, 0]}, "E113"),
        ({"pixdim": [1, 1, -1, 1, 0, 0, 0, 0]}, "E113"), ({"pixdim": [1, 1, np.nan, 1, 0, 0, 0, 0]}, "E113"),
        ({"pixdim": [1, 7, 7, 7, 0, 0, 0, 0]}, "E113"), ({"pixdim": [1, 1, 1, 1.02, 0, 0, 0, 0]}, "E113"),
        ({"srow_x": [1e-6, 0, 0, 0], "srow_z": [0, 0, 1e6, 0], "pixdim": [1, 1e-6, 1, 1e6, 0, 0, 0, 0]}, "E111"),
        ({"srow_x": [1, 0, 0, 1e30]}, "E111"),
    ]:  # fmt: skip
        for suffix in [".nii", ".nii.gz"]:
            path = save(tmp_path / f"x{suffix}", header(**fields))
            assert code_of(path) == code
            assert [p.code for p in inspect_image(path).problems] == [code]


def test_nifti_headers_of_ordinary_programs(tmp_path):
    for fields in [
        {"scl_slope": np.nan, "scl_inter": np.nan}, {"scl_slope": 0, "scl_inter": np.inf},
        {"pixdim": [0, 1.005, 1, 0.999, 5, -3, np.nan, 0]}, {"pixdim": [0] * 8},
        {"qform_code": 1, "quatern_b": 0, "pixdim": [0, 1, 1, 1, 0, 0, 0, 0]}, {"quatern_b": 5}, {"sform_code": 5},
        {"xyzt_units": 10}, {"vox_offset": 0},
    ]:  # fmt: skip
        path = save(tmp_path / "x.nii", header(**fields))
        np.testing.assert_array_equal(read_image(path).data.ravel(order="F"), np.arange(np.prod(SHAPE)))
    path = save(tmp_path / "x.nii", header(sform_code=4, srow_x=[2, 0, 0, 0]))
    with pytest.raises(RegweaveError, match=r"E113.*nifti_frame sform"):
        read_image(path)
    assert read_image(path, nifti_frame="sform").geometry.spacing_mm.tolist() == [2, 1, 1]


def test_contradictions_in_memory_and_what_is_refused_before_its_voxels_are_read(tmp_path):
    data = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    image = nib.Nifti1Image(data, np.eye(4))
    assert read_image(image).data.shape == SHAPE
    image.header["pixdim"][1:4] = 7
    with pytest.raises(RegweaveError, match=r"E113.*the nibabel image"):
        read_image(image)
    for suffix in [".nii", ".nii.gz"]:
        path = save(tmp_path / f"x{suffix}", header((8, 7, 6, 1000)), b"far too few")
        assert code_of(path) == "E103"
        assert "sha256" not in inspect_image(path).facts
    for shape in [(8, 7, 6, 1, 3000), (8, 7, 6), (8, 7, 6, 3)]:
        path = save(tmp_path / "x.nii.gz", header(shape, np.float32, intent_code=1007), b"far too few")
        with pytest.raises(RegweaveError, match="E115"):
            read_transform(path)


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".mha", ".nrrd"])
def test_an_image_beyond_the_memory_is_refused_before_it_is_taken(tmp_path, suffix, monkeypatch):
    path = tmp_path / f"x{suffix}"
    if suffix.startswith(".nii"):
        save(path, header())
    elif suffix == ".mha":
        path.write_bytes((MHD + "LOCAL\n").encode() + VOXELS)
    else:
        path.write_bytes((NHDR.replace("data file: ", "") + "\n").encode() + VOXELS)
    read_image(path)
    assert 1 << 20 < limits.available_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    count = int(np.prod(SHAPE))
    monkeypatch.setattr(limits, "available_memory", lambda: count * (limits.BYTES_PER_VALUE + 1) - 1)
    with pytest.raises(ResourceError, match=r"E140.*needs about"):
        read_image(path)
    assert main(["check", str(path)]) == 4


def bomb(head, wrap, megabytes=16):
    packer = zlib.compressobj(9, zlib.DEFLATED, wrap)
    blocks = [packer.compress(head)] + [packer.compress(bytes(1 << 20)) for _ in range(megabytes)]
    return b"".join(blocks) + packer.flush()


def test_members_of_a_gzip_file_and_longer_files(tmp_path):
    content = gzip.decompress(save(tmp_path / "x.nii.gz", header()).read_bytes())
    parts = [gzip.compress(content[at : at + 100]) for at in range(0, len(content), 100)]
    (tmp_path / "x.nii.gz").write_bytes(b"".join(parts) + bytes(512))
    np.testing.assert_array_equal(read_image(tmp_path / "x.nii.gz").data.ravel(order="F"), np.arange(np.prod(SHAPE)))
    (tmp_path / "x.nii.gz").write_bytes(b"".join(parts) + b"behind the last one")
    assert code_of(tmp_path / "x.nii.gz") == "E102"
    for suffix in [".nii", ".nii.gz"]:
        body = np.arange(np.prod(SHAPE)).astype(np.int16).tobytes()
        path = save(tmp_path / f"x{suffix}", header(), body + body[:-1])
        with pytest.warns(RegweaveWarning, match=rf"W208.*{len(body) - 1} bytes"):
            read_image(path)
        assert code_of(save(path, header(), body + body)) == "E102"


def test_a_stream_that_goes_on_and_on_is_left(tmp_path):
    body = np.arange(np.prod(SHAPE)).astype(np.int16).tobytes()
    (tmp_path / "x.nii.gz").write_bytes(bomb(header().binaryblock + bytes(4) + body, 31))
    text = NHDR.replace("data file: ", "").replace("raw", "gzip")
    (tmp_path / "x.nrrd").write_bytes((text + "\n").encode() + bomb(VOXELS, 31))
    packed = bomb(VOXELS, 15)
    text = MHD.replace("CompressedData = False", f"CompressedData = True\nCompressedDataSize = {len(packed)}")
    (tmp_path / "x.mha").write_bytes((text + "LOCAL\n").encode() + packed)
    for name in ("x.nii.gz", "x.nrrd", "x.mha"):
        tracemalloc.start()
        with pytest.raises(RegweaveError, match=r"E102.*twice as many"):
            read_image(tmp_path / name)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20  # 16 MB are there
        tracemalloc.stop()


def test_pipes_devices_and_loops(tmp_path):
    for suffix in [".nii", ".nii.gz", ".nrrd", ".nhdr", ".mha", ".mhd"]:
        path = tmp_path / f"x{suffix}"
        os.mkfifo(path)
        assert code_of(path) == "E101"
        for target in ("/dev/zero", "nowhere", path.name, "."):
            path.unlink()
            path.symlink_to(target)
            assert code_of(path) == "E101"


@pytest.fixture(params=[".mhd", ".nhdr"])
def elsewhere(request, tmp_path):
    """A header in a folder of its own, a function that lets it name a file, and voxels outside of the folder."""
    folder = tmp_path / "images"
    folder.mkdir()
    (tmp_path / "secret.raw").write_bytes(VOXELS)

    def write(name):
        path = folder / f"x{request.param}"
        path.write_text((MHD if request.param == ".mhd" else NHDR) + f"{name}\n")
        return path

    return write


@pytest.mark.parametrize("way", ["absolute", "up", "link", "linked folder"])
def test_voxels_outside_of_the_folder(tmp_path, elsewhere, way):
    secret = tmp_path / "secret.raw"
    names = {"absolute": secret, "up": "../secret.raw", "link": "l.raw", "linked folder": "l/secret.raw"}
    path = elsewhere(names[way])
    if way == "link":
        (path.parent / "l.raw").symlink_to(secret)
    if way == "linked folder":
        (path.parent / "l").symlink_to(tmp_path)
    assert code_of(path) == "E109"
    assert main(["check", str(path)]) == 3
    assert main(["check", "--follow-links", str(path)]) == 0
    followed = read_image(path, follow_links=True).data
    np.testing.assert_array_equal(followed.ravel(order="F"), np.frombuffer(VOXELS, np.uint8))
    np.testing.assert_array_equal(Reading(follow_links=True).image(path).data, followed)
    with pytest.raises(RegweaveError, match="E109"):
        read_labels(path)
    assert read_labels(path, follow_links=True).data.shape == SHAPE


def test_voxels_inside_of_the_folder_and_their_digests(tmp_path, elsewhere):
    path = elsewhere("below/../deep/x.raw")
    (path.parent / "deep").mkdir()
    (path.parent / "below").mkdir()
    (path.parent / "deep" / "x.raw").write_bytes(VOXELS)
    expected = np.frombuffer(VOXELS, np.uint8)
    np.testing.assert_array_equal(read_image(path).data.ravel(order="F"), expected)
    # A link to the header itself, or to its folder, is the user's own.
    (tmp_path / "images2").symlink_to(path.parent)
    np.testing.assert_array_equal(read_image(tmp_path / "images2" / path.name).data.ravel(order="F"), expected)
    (path.parent / "l.raw").symlink_to("deep/x.raw")
    read_image(elsewhere("l.raw"))
    for bad, code in (("none.raw", "E102"), ("n" * 300, "E101"), ("deep", "E101"), ("", "E102")):
        assert code_of(elsewhere(bad)) == code
    os.mkfifo(path.parent / "pipe.raw")
    assert code_of(elsewhere("pipe.raw")) == "E101"
    path = elsewhere("x.raw")
    assert image_sha256(path) == sha256(path)  # no voxels: reading will say so
    (path.parent / "x.raw").write_bytes(VOXELS)
    first = image_sha256(path)
    assert first == inspect_image(path).facts["sha256"]
    assert first == hashlib.sha256(path.read_bytes() + VOXELS).hexdigest()
    (path.parent / "x.raw").write_bytes(VOXELS[::-1])
    assert image_sha256(path) != first
    pair = PairFiles("p", path, path, path, path, "g")
    assert Runner(Reading(), None, None, tmp_path, None).hashes(pair)["fixed"] == image_sha256(path)
    path = elsewhere(tmp_path / "secret.raw")
    assert image_sha256(path) == sha256(path)
    assert image_sha256(path, follow_links=True) != sha256(path)
    local = path.with_suffix(".mha")
    local.write_bytes((MHD + "LOCAL\n").encode() + VOXELS)
    save(tmp_path / "x.nii", header())
    for whole in (local, tmp_path / "x.nii"):
        assert image_sha256(whole) == sha256(whole)


def test_fields_outside_of_the_folder(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    text = MHD.replace("MET_UCHAR", "MET_FLOAT").replace("DimSize", "ElementNumberOfChannels = 3\nDimSize")
    (tmp_path / "deep" / "x.mhd").write_text(text + "../v.raw\n")
    np.full((3, *SHAPE), 0.5, np.float32).tofile(tmp_path / "v.raw")
    with pytest.raises(RegweaveError, match="E109"):
        read_transform("x.mhd")
    assert (read_transform("x.mhd", follow_links=True).field.data == 0.5).all()
    save(tmp_path / "deep" / "r.nii", header(), (np.arange(np.prod(SHAPE)) % 30).astype(np.int16).tobytes())
    (tmp_path / "deep" / "p.csv").write_text("x_lps,y_lps,z_lps\n1,2,3\n")
    for command in (
        ["convert", "x.mhd", "-o", "a.nii.gz"],
        ["warp", "image", "r.nii", "-t", "x.mhd", "-r", "r.nii", "-o", "b.nii.gz"],
        ["warp", "labels", "r.nii", "-t", "x.mhd", "-r", "r.nii", "-o", "c.nii.gz"],
        ["warp", "points", "p.csv", "-t", "x.mhd", "-o", "d.csv"],
    ):
        assert main(command) == 3
        assert main([*command, "--follow-links"]) == 0
