"""Compressed pixels: the plug-ins of the extra give the stored numbers, and a missing one is named."""

from pathlib import Path

import numpy as np
import pydicom
import pytest
from made_dicom import Made, image, save
from pydicom.uid import UID

from regweave.errors import RegweaveError, UsageError
from regweave.io.dicom import series as pixels
from regweave.io.dicom.series import read_series

MADE = Made(size=(24, 20), spacing=(1.0, 1.0), along=(0.0, 2.0, 4.0, 6.0))
LOSSLESS = ("JPEGLosslessProcess14", "JPEGLosslessProcess14_1", "JPEGLSLossless", "JPEG2000Lossless", "RLELossless")


def stored(k: int, signed: bool) -> np.ndarray:
    """Twelve bits, some negative if they may be, that a wrong sign or order of bytes would change."""
    values = np.random.default_rng(k).integers(0, 4096, (20, 24))
    return (values - 2048 * signed).astype("<i2" if signed else "<u2")


def write_plain(folder: Path, *, signed: bool) -> None:
    folder.mkdir()
    for k in range(len(MADE.along)):
        data = image(MADE, k)
        data.BitsStored, data.HighBit, data.PixelRepresentation = 12, 11, int(signed)
        data.RescaleSlope, data.RescaleIntercept = 1, 0
        data.PixelData = stored(k, signed).tobytes()
        save(folder / f"{k}.dcm", data)


def recode(gdcm, source: Path, target: Path, syntax: str) -> None:
    """Let GDCM compress a file, which is another program than the one that decodes it here."""
    reader = gdcm.ImageReader()
    reader.SetFileName(str(source))
    assert reader.Read()
    change = gdcm.ImageChangeTransferSyntax()
    change.SetTransferSyntax(gdcm.TransferSyntax(getattr(gdcm.TransferSyntax, syntax)))
    change.SetInput(reader.GetImage())
    assert change.Change()
    writer = gdcm.ImageWriter()
    writer.SetFileName(str(target))
    writer.SetFile(reader.GetFile())
    writer.SetImage(change.GetOutput())
    assert writer.Write()


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("syntax", LOSSLESS)
def test_lossless_pixels_come_back_bit_by_bit(tmp_path, syntax, signed):
    gdcm = pytest.importorskip("gdcm", reason="the extra dicom is not installed")
    write_plain(tmp_path / "plain", signed=signed)
    (tmp_path / "packed").mkdir()
    for path in (tmp_path / "plain").iterdir():
        recode(gdcm, path, tmp_path / "packed" / path.name, syntax)
    first = pydicom.dcmread(tmp_path / "packed" / "0.dcm")
    assert first.file_meta.TransferSyntaxUID.is_compressed
    found = read_series(tmp_path / "packed").image.data
    expected = np.stack([stored(k, signed) for k in range(4)]).transpose(2, 1, 0)
    np.testing.assert_array_equal(found, expected)


def packed_as(folder: Path, syntax: str) -> Path:
    """Mark a series as compressed; its pixels are no stream of any coder."""
    folder.mkdir()
    for k in range(len(MADE.along)):
        data = image(MADE, k)
        data.PixelData = pydicom.encaps.encapsulate([b"\xff\xd8not a picture\xff\xd9"])
        data["PixelData"].VR, data["PixelData"].is_undefined_length = "OB", True
        save(folder / f"{k}.dcm", data, syntax=UID(syntax))
    return folder


def test_a_missing_plug_in_is_named(tmp_path, monkeypatch):
    class Missing:
        is_available = False

    monkeypatch.setattr(pixels, "get_decoder", lambda uid: Missing())
    for syntax in ("1.2.840.10008.1.2.4.70", "1.2.840.10008.1.2.4.80", "1.2.840.10008.1.2.4.90"):
        name, package = pixels.PLUG_INS[syntax]
        with pytest.raises(UsageError, match=rf'E163: image 1 .* as {name}, .* {package}, .*"regweave\[dicom\]"'):
            read_series(packed_as(tmp_path / syntax, syntax))


def test_pixels_that_cannot_be_decoded(tmp_path):
    syntax = "1.2.840.10008.1.2.5"  # pydicom itself decodes it, so that the plug-in is there
    with pytest.raises(RegweaveError, match=r"E1(02|63)") as caught:
        read_series(packed_as(tmp_path / "s", syntax))
    assert "pip install" not in str(caught.value)
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    extra = next(line for line in project.splitlines() if line.startswith("dicom = "))
    for _, package in pixels.PLUG_INS.values():
        assert package == "pydicom" or f'"{package}>=' in extra
