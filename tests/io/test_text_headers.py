"""NRRD and MetaImage: valid files are read as SimpleITK reads them, and what has two readings is refused."""

import gzip
import zlib

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813

from regweave.errors import RegweaveError, RegweaveWarning
from regweave.io import inspect_image, read_image
from regweave.io.textheader import read_header
from regweave.io.transforms.files import read_displacement

SHAPE = (6, 5, 4)
TYPES = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"]
NRRD_NAMES = ["uchar", "int8", "ushort", "short", "uint", "int32_t", "ulonglong", "int64", "float", "double"]
NRRD_TYPES = dict(zip(TYPES, NRRD_NAMES, strict=True))
META_NAMES = ["UCHAR", "CHAR", "USHORT", "SHORT", "UINT", "INT", "ULONG_LONG", "LONG_LONG", "FLOAT", "DOUBLE"]
META_TYPES = dict(zip(TYPES, META_NAMES, strict=True))
FRAME = "space: {}\nspace directions: (0,1.5,0) (0,0,-2) (2.5,0,0)\nspace origin: (-3,4.25,7)\n"
META_FRAME = "TransformMatrix = 0 1 0 0 0 -1 1 0 0\nOffset = -3 4.25 7\nElementSpacing = 1.5 2 2.5\n"


def values(kind="i2"):
    rng = np.random.default_rng(4)
    return rng.integers(0 if kind[0] == "u" else -100, 100, SHAPE).astype(kind)


def nrrd(path, frame=None, kind="i2", encoding="raw", order="<", body=None, more=""):
    data = values(kind).astype(np.dtype(kind).newbyteorder(order)).tobytes(order="F")
    head = f"NRRD0004\n# made by a test\ntype: {NRRD_TYPES[kind]}\ndimension: 3\nsizes: 6 5 4\n"
    head += FRAME.format("left-posterior-superior") if frame is None else frame
    head += (
        f"kinds: domain domain domain\nendian: {'little' if order == '<' else 'big'}\nencoding: {encoding}\n{more}\n"
    )
    path.write_bytes(head.encode() + ((gzip.compress(data) if encoding == "gzip" else data) if body is None else body))
    return path


def meta(path, frame=META_FRAME, kind="i2", order="<", more="", body=None, packed=False):
    data = values(kind).astype(np.dtype(kind).newbyteorder(order)).tobytes(order="F")
    if packed:
        data = zlib.compress(data)
        more += f"CompressedDataSize = {len(data)}\n" * ("CompressedDataSize" not in more)
    head = f"ObjectType = Image\nNDims = 3\nBinaryData = True\nBinaryDataByteOrderMSB = {order == '>'}\n"
    head += f"CompressedData = {packed}\n{frame}{more}" + "DimSize = 6 5 4\n" * ("DimSize" not in more)
    head += f"ElementType = MET_{META_TYPES[kind]}\n"
    local = path.suffix == ".mha"
    head += "ElementDataFile = " * ("ElementDataFile" not in more) + ("LOCAL\n" if local else f"{path.stem}.raw\n")
    content = data if body is None else body
    path.write_bytes(head.encode() + (content if local else b""))
    if not local:
        path.with_suffix(".raw").write_bytes(content)
    return path


def assert_as_itk(path, kind):
    image = sitk.ReadImage(str(path))
    head = read_header(path)
    data = head.read_voxels()
    assert data.dtype.newbyteorder("=") == np.dtype(kind)
    np.testing.assert_array_equal(data, sitk.GetArrayViewFromImage(image).T)
    np.testing.assert_array_equal(data, values(kind))
    spacing = np.reshape(image.GetDirection(), (3, 3)) * np.array(image.GetSpacing())
    np.testing.assert_allclose(head.affine[:3, :3], spacing, atol=1e-12)
    np.testing.assert_allclose(head.affine[:3, 3], image.GetOrigin(), atol=1e-12)


def code_of(path):
    with pytest.raises(RegweaveError) as caught:
        read_image(path)
    assert str(path) in caught.value.message
    assert [p.code for p in inspect_image(path).problems] == [caught.value.code]
    return caught.value.code


@pytest.mark.parametrize("kind", TYPES)
def test_types_orders_and_encodings(tmp_path, kind):
    for order in "<>":
        for packed in (False, True):
            assert_as_itk(nrrd(tmp_path / "x.nrrd", kind=kind, order=order, encoding="gzip" if packed else "raw"), kind)
            for suffix in (".mha", ".mhd"):
                assert_as_itk(meta(tmp_path / f"x{suffix}", kind=kind, order=order, packed=packed), kind)


def test_rare_encodings_and_wrong_skips_are_refused(tmp_path):
    for encoding in ["ascii", "txt", "hex", "bzip2", "bz2"]:
        path = nrrd(tmp_path / "x.nrrd", encoding=encoding)
        with pytest.raises(RegweaveError, match=f"E103.*encoding {encoding}.*raw and gzip"):
            read_image(path)
        assert code_of(path) == "E103"
    for skip in [-1, 10]:
        more, body = f"byte skip: {skip}\n", b"0123456789" + values().tobytes(order="F")
        assert code_of(nrrd(tmp_path / "x.nrrd", encoding="gzip", more=more)) == "E113"
        assert_as_itk(nrrd(tmp_path / "x.nrrd", more=more, body=body), "i2")
        assert code_of(nrrd(tmp_path / "x.nrrd", more=more, body=body[:-50])) == "E102"


def test_nrrd_spaces_and_fields_that_change_nothing(tmp_path):
    for space in ("LPS", "RAS", "LAS", "left-posterior-superior", "right-anterior-superior", "Left-Anterior-Superior"):
        assert_as_itk(nrrd(tmp_path / "x.nrrd", FRAME.format(space)), "i2")
    for frame in [
        "", "spacings: 1 2 3\n", FRAME.format("3D-left-handed"), FRAME.format("scanner-xyz"),
        FRAME.replace("space: {}", "space dimension: 3"),
    ]:  # fmt: skip
        path = nrrd(tmp_path / "x.nrrd", frame)
        with pytest.warns(RegweaveWarning, match="W207"):
            assert_as_itk(path, "i2")
    for more in [
        "measurement frame: (1,0,0) (0,1,0) (0,0,1)\n", "thicknesses: NaN 2 1\n", "centerings: cell cell node\n",
        "spacings: 1.5 2 2.5\n", 'content: a text: with colons\nlabels: "x" "y" "z"\n', "my key:=my: value\n",
        "Byte Skip: 0\nlineskip: 0\n", 'space units: "mm" "mm" "mm"\n',
    ]:  # fmt: skip
        path = nrrd(tmp_path / "x.nrrd", more=more)
        read = read_header(path)
        np.testing.assert_array_equal(read.read_voxels(), values())
        np.testing.assert_array_equal(read.affine, read_header(nrrd(tmp_path / "y.nrrd")).affine)


def test_units_are_converted_and_keys_of_simpleitk_kept(tmp_path):
    for unit, factor in [("m", 1e3), ("um", 1e-3), ("cm", 10.0), ("micron", 1e-3)]:
        plain = read_image(nrrd(tmp_path / "a.nrrd")).geometry.affine
        found = read_image(nrrd(tmp_path / "b.nrrd", more=f'space units: "{unit}" "{unit}" "{unit}"\n')).geometry.affine
        np.testing.assert_allclose(found[:3], plain[:3] * factor)
        with pytest.warns(RegweaveWarning, match="W207"):
            old = read_image(nrrd(tmp_path / "c.nrrd", f'spacings: 1 2 3\nunits: "{unit}" "{unit}" "{unit}"\n'))
        np.testing.assert_allclose(old.geometry.spacing_mm, np.array([1, 2, 3]) * factor)
        if unit != "micron":
            plain = read_image(meta(tmp_path / "a.mha")).geometry.affine
            found = read_image(meta(tmp_path / "b.mha", more=f"DistanceUnits = {unit}\n")).geometry.affine
            np.testing.assert_allclose(found[:3], plain[:3] * factor)
    for suffix in [".mha", ".nrrd"]:
        image = sitk.GetImageFromArray(values().T)
        image.SetMetaData("0008|0060", "CT")
        image.SetMetaData("ITK_note", "a: b = c, \u00e4")
        sitk.WriteImage(image, str(tmp_path / f"x{suffix}"))
        assert_as_itk(tmp_path / f"x{suffix}", "i2")
        assert read_header(tmp_path / f"x{suffix}").keys["0008|0060"] == "CT"


def test_nrrd_headers_with_two_readings_and_fields_that_cannot_be(tmp_path):
    for frame, more, code in [
        (None, "sizes: 6 5 4\n", "E113"), (None, "data file: x.raw\ndatafile: y.raw\n", "E113"),
        (None, "spacings: 3 2 2.5\n", "E113"), (None, 'units: "m" "m" "m"\n', "E113"),
        (None, 'space units: "parsec" "mm" "mm"\n', "E102"), (None, 'space units: "mm"\n', "E113"),
        (None, 'space units: "mm" "mm" "s"\n', "E102"), (None, 'space units: "ms" "mm" "mm"\n', "E102"),
        (None, "colour: red\n", "E102"), (None, "no field at all\n", "E102"), (None, "byte skip: -2\n", "E113"),
        (None, "line skip: 2\n", "E103"), (None, "data file: s%03d.raw 1 8 1\n", "E103"),
        (None, "data file: LIST\n", "E103"), (FRAME.format("RAST"), "", "E103"), (FRAME.format("north"), "", "E102"),
        (FRAME.format("LPS") + "space dimension: 3\n", "", "E113"), ("space: LPS\nspacings: 1 2 3\n", "", "E113"),
        (FRAME.format("LPS").replace("(2.5,0,0)", ""), "", "E113"),
        (FRAME.format("LPS").replace("(2.5,0,0)", "(2.5,0)"), "", "E113"),
        (FRAME.format("LPS").replace("4.25", "4,25"), "", "E113"),
        (FRAME.format("LPS").replace("4.25", "inf"), "", "E102"),
        (FRAME.format("LPS").replace("4.25", "9" * 2000), "", "E102"),
        (FRAME.format("LPS").replace("(2.5,0,0)", "none"), "", "E103"),
        (FRAME.format("LPS").replace("(2.5,0,0)", "(0,1.5,0)"), "", "E111"),
        ("axis mins: 0 0 0\naxis maxs: 5 4 3\n", "", "E103"), ("spacings: 1 2 3\naxis mins: 10 20 30\n", "", "E103"),
    ]:  # fmt: skip
        assert code_of(nrrd(tmp_path / "x.nrrd", frame, more=more)) == code
    for old, new, code in [
        ("kinds: domain domain domain", "kinds: " + "9" * 2000 + " domain domain", "E102"),
        ("kinds: domain domain domain", "kinds: domain domain", "E113"),
        ("kinds: domain domain domain", "kinds: vector domain domain", "E113"),
        ("type: short", "type: block", "E102"), ("type: short", "type: shorts", "E102"),
        ("endian: little\n", "", "E113"), ("endian: little", "endian: middle", "E102"),
        ("encoding: raw", "encoding: zrl", "E102"), ("encoding: raw\n", "", "E102"),
        ("dimension: 3", "dimension: 17", "E102"), ("dimension: 3", "dimension: 4", "E113"),
        ("sizes: 6 5 4", "sizes: 6 5 -4", "E102"), ("sizes: 6 5 4", "sizes: 6 5 4.5", "E102"),
        ("sizes: 6 5 4", "sizes: 4294967296 4294967296 4294967297", "E102"), ("NRRD0004", "NRRD0009", "E102"),
    ]:  # fmt: skip
        path = nrrd(tmp_path / "x.nrrd")
        content = path.read_bytes()
        assert old.encode() in content
        path.write_bytes(content.replace(old.encode(), new.encode()))
        assert code_of(path) == code


def test_meta_keys_that_change_nothing_or_are_absent(tmp_path):
    for more in [
        "CenterOfRotation = 5 6 7\n", "AnatomicalOrientation = RAI\n", "ElementByteOrderMSB = False\n",
        "ElementSize = 9 9 9\n", "HeaderSize = 0\n", "DistanceUnits = mm\n", "Comment = a = b\nName = somebody\n",
        "Modality = MET_MOD_CT\n\n", "Position = -3 4.25 7\n",
    ]:  # fmt: skip
        assert_as_itk(meta(tmp_path / "x.mha", more=more), "i2")
    for frame in ["", META_FRAME.replace("ElementSpacing", "ElementSize"), "Origin = 1 2 3\n"]:
        path = meta(tmp_path / "x.mha", frame)
        if "ElementSize" in frame:
            assert_as_itk(path, "i2")
            continue
        with pytest.warns(RegweaveWarning, match="W207"):
            assert_as_itk(path, "i2")
    for size in [100, 0, -1]:
        body = values().tobytes(order="F")
        path = meta(tmp_path / "x.mhd", more=f"HeaderSize = {size}\n", body=bytes(100 if size else 0) + body)
        assert_as_itk(path, "i2")
        meta(path, more=f"HeaderSize = {size}\n", body=body[:-1])
        assert code_of(path) == "E102"


def test_meta_headers_with_two_readings(tmp_path):
    for old, new, code in [
        ("Offset = -3", "Offset = nan", "E102"), ("Offset = -3", "Offset = abc", "E102"),
        ("Offset = -3 4.25", "Offset = -3,5 4", "E102"), ("Offset = -3 4.25 7", "Offset = -3 4.25 7 8", "E113"),
        ("Offset = -3 4.25 7", "Offset = -3 4.25 7\nOffset = -3 4.25 7", "E113"),
        ("Offset = -3 4.25 7", "Offset = -3 4.25 7\nPosition = 0 0 0", "E113"), ("Offset", "offset", "E113"),
        ("ElementSpacing = 1.5", "ElementSpacing = -1.5", "E102"),
        ("ElementSpacing = 1.5", "ElementSpacing = 0", "E102"),
        ("ElementSpacing = 1.5", "ElementSpacing = 1e-6", "E111"), ("Offset = -3", "Offset = 1e30", "E111"),
        ("TransformMatrix = 0 1 0 0 0 -1 1 0 0", "TransformMatrix = 0 1 0 0 0 -1 5 0 0", "E113"),
        ("TransformMatrix = 0 1 0 0 0 -1 1 0 0", "TransformMatrix = 0 1 0 0 0 -1 1 0", "E113"),
        ("TransformMatrix = 0 1 0 0 0 -1 1 0 0", "TransformMatrix = 0 1 0 0 1 0 1 0 0", "E111"),
        ("DimSize = 6 5 4", "DimSize = 6 5 4 1", "E113"), ("DimSize = 6 5 4", "DimSize = 6 5 0", "E102"),
        ("DimSize = 6 5 4", "DimSize = 65536 65536 65536", "E102"), ("NDims = 3", "NDims = 1000000", "E102"),
        ("BinaryData = True", "BinaryData = Maybe", "E102"), ("BinaryData = True", "BinaryData = False", "E103"),
        ("CompressedData = False", "CompressedData = T1", "E102"),
        ("CompressedData = False", "CompressedData = True", "E113"),
        ("CompressedData = False", "CompressedData = True\nCompressedDataSize = 240", "E102"),
        ("BinaryDataByteOrderMSB = False", "BinaryDataByteOrderMSB = False\nElementByteOrderMSB = True", "E113"),
        ("ElementType = MET_SHORT", "ElementType = MET_SHORTS", "E102"),
        ("ElementType = MET_SHORT", "DistanceUnits = parsec\nElementType = MET_SHORT", "E102"),
        ("ElementType", "ElementNumberOfChannels = 2\nElementType", "E103"),
        ("ElementType", "ElementToIntensityFunctionSlope = 2\nElementType", "E103"),
        ("ElementType", "HeaderSize = 7\nElementType", "E113"), ("ObjectType = Image", "ObjectType = Tube", "E103"),
        ("LOCAL", "LoCAL", "E102"), ("LOCAL", "LIST", "E103"), ("LOCAL", "s%03d.raw 1 4 1", "E103"),
    ]:  # fmt: skip
        path = meta(tmp_path / "x.mha")
        content = path.read_bytes()
        assert old.encode() in content
        path.write_bytes(content.replace(old.encode(), new.encode(), 1))
        assert code_of(path) == code


def test_lengths_that_are_not_those_of_the_data(tmp_path):
    for stated in ["-5", "10", "0", "none", "+5"]:
        path = meta(tmp_path / "x.mha", packed=True)
        content = path.read_bytes()
        found = next(line for line in content.split(b"\n") if line.startswith(b"CompressedDataSize"))
        size = int(found.split(b"=")[1])
        n = size + int(stated) if stated[0] in "+-" else stated
        path.write_bytes(
            content.replace(found + b"\n", b"" if stated == "none" else f"CompressedDataSize = {n}\n".encode())
        )
        assert code_of(path) in {"E102", "E113"}
    for write in [nrrd, meta]:
        path = tmp_path / ("x.nrrd" if write is nrrd else "x.mha")
        body = values().tobytes(order="F")
        write(path, body=body + b"extra")
        with pytest.warns(RegweaveWarning, match=r"W208.*5 bytes"):
            np.testing.assert_array_equal(read_image(path).data, values())
        write(path, body=body + body)
        assert code_of(path) == "E102"


def test_vector_images(tmp_path):
    vectors = np.random.default_rng(1).normal(size=(*SHAPE[::-1], 3)).astype(np.float32)
    image = sitk.GetImageFromArray(vectors, isVector=True)
    image.SetOrigin([1, 2, 3])
    for name, packed in (("a.nrrd", False), ("b.nrrd", True), ("a.mha", True), ("a.mhd", False)):
        sitk.WriteImage(image, str(tmp_path / name), packed)
        field, _ = read_displacement(tmp_path / name)
        np.testing.assert_array_equal(field.data, vectors.transpose(3, 2, 1, 0))
        np.testing.assert_array_equal(field.geometry.origin_mm, [1, 2, 3])
    content = (tmp_path / "a.nrrd").read_bytes()
    head, body = content.split(b"\n\n", 1)
    last = head.replace(b"3 6 5 4", b"6 5 4 3").replace(
        b"none (1,0,0) (0,1,0) (0,0,1)", b"(1,0,0) (0,1,0) (0,0,1) none"
    )
    last = last.replace(b"vector domain domain domain", b"domain domain domain vector")
    planes = np.frombuffer(body, "<f4").reshape(3, *SHAPE, order="F").transpose(1, 2, 3, 0)
    (tmp_path / "last.nrrd").write_bytes(last + b"\n\n" + planes.tobytes(order="F"))
    np.testing.assert_array_equal(read_displacement(tmp_path / "last.nrrd")[0].data, vectors.transpose(3, 2, 1, 0))
    for old, new in (
        (b"left-posterior-superior", b"right-anterior-superior"),
        (b"endian", b"measurement frame: (-1,0,0) (0,-1,0) (0,0,1)\nendian"),
    ):
        (tmp_path / "ras.nrrd").write_bytes(content.replace(old, new))
        with pytest.raises(RegweaveError, match=r"E115.*not along the axes of LPS"):
            read_displacement(tmp_path / "ras.nrrd")
