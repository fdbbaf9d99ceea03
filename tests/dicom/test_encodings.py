"""Encodings of pixels: whatever the bits, the byte order and the compression, the same numbers come out."""

import numpy as np
import pydicom
import pytest
from made_dicom import Made, image, save, uid
from pydicom.dataset import Dataset
from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, RLELossless

from regweave.io.dicom.series import read_series

MADE = Made(size=(7, 5), spacing=(1.0, 1.0))
SLICES = 4
KINDS = ("u1", "i1", "u2", "i2", "u4", "i4")
WAYS = ("little", "big", "big without header", "RLE")


def stored(kind: str, k: int) -> np.ndarray:
    """Numbers that fill the range of their type, so that a wrong sign or byte order shows."""
    span = np.iinfo(kind)
    return np.random.default_rng(k).integers(span.min, span.max, (5, 7), dtype=kind, endpoint=True)


def rescaling(kind: str) -> tuple[float, float]:
    """Slope and intercept; those of 32 bits leave small values, which single precision would lose on the way."""
    return (2.0**-13, -262144.0) if kind[1] == "4" else (0.5, -100.0)


def one_image(kind: str, k: int) -> Dataset:
    data = image(MADE, k)
    pixels, bits = stored(kind, k), 8 * np.dtype(kind).itemsize
    data.BitsAllocated, data.BitsStored, data.HighBit = bits, bits, bits - 1
    data.PixelRepresentation = int(kind[0] == "i")
    data.RescaleSlope, data.RescaleIntercept = rescaling(kind)
    data.PixelData = padded(pixels.astype(f"<{kind}").tobytes())
    data["PixelData"].VR = "OB" if bits == 8 else "OW"
    return data


def padded(raw: bytes) -> bytes:
    return raw + b"\0" * (len(raw) % 2)


def expected(kind: str) -> np.ndarray:
    """Values [x, y, z]."""
    slope, intercept = rescaling(kind)
    planes = [stored(kind, k) * slope + intercept for k in range(SLICES)]
    return np.stack(planes).transpose(2, 1, 0).astype(np.float32)


def big_endian(data: Dataset, words: bool = False) -> Dataset:
    """Turn the pixels; the elements are turned in writing."""
    wide = max(data.BitsAllocated // 8, 2 if words else 1)
    data.PixelData = np.frombuffer(data.PixelData, dtype=f"<u{wide}").byteswap().tobytes()
    data["PixelData"].VR = "OW" if words or wide > 1 else "OB"
    return data


@pytest.mark.parametrize(
    ("kind", "way"),
    [(kind, way) for kind in KINDS for way in WAYS if (kind[1], way) != ("4", "RLE")],  # which DICOM does not allow
)
def test_the_same_numbers_come_out(tmp_path, kind, way):
    for k in range(SLICES):
        data, path = one_image(kind, k), tmp_path / f"{k}.dcm"
        if way == "little":
            save(path, data, syntax=ExplicitVRLittleEndian)
        elif way == "big":
            save(path, big_endian(data), syntax=ExplicitVRBigEndian)
        elif way == "RLE":
            save(path, data)
            packed = pydicom.dcmread(path)
            packed.compress(RLELossless, encoding_plugin="pydicom", generate_instance_uid=False)
            packed.save_as(path)
        else:
            pydicom.dcmwrite(path, big_endian(data), implicit_vr=False, little_endian=False, enforce_file_format=False)
    np.testing.assert_array_equal(read_series(tmp_path).image.data, expected(kind))


def test_words_and_tables_are_turned_in_big_endian(tmp_path):
    for k in range(SLICES):
        save(tmp_path / f"{k}.dcm", big_endian(one_image("u1", k), words=True), syntax=ExplicitVRBigEndian)
    np.testing.assert_array_equal(read_series(tmp_path).image.data, expected("u1"))
    for k in range(SLICES):
        data, lut = image(MADE, k), Dataset()
        lut.ModalityLUTType = "HU"
        lut.add_new("LUTDescriptor", "US", [4, 10, 16])
        lut.add_new("LUTData", "OW", np.array([5, 7, 11, 13], dtype=">u2").tobytes())
        data.ModalityLUTSequence = [lut]
        data.PixelData = padded(np.arange(35, dtype="<u2").tobytes())
        save(tmp_path / f"{k}.dcm", big_endian(data), syntax=ExplicitVRBigEndian)
    series = read_series(tmp_path)
    assert series.image.data[:, 1, 0].tolist() == [5, 5, 5, 5, 7, 11, 13]
    assert series.slices[0].instance_uid == uid(2, 1, 1)


def test_spare_bits_are_dropped_after_decompression(tmp_path):
    for k in range(SLICES):
        data = image(MADE, k)
        pixels = np.arange(35, dtype="<u2").reshape(5, 7) | 0x7000  # an overlay in the bits that are not stored
        data.BitsStored, data.HighBit, data.RescaleSlope, data.RescaleIntercept = 12, 11, 1, 0
        planes = pixels.view(np.uint8).reshape(5, 7, 2)
        rle = pydicom.encaps.encapsulate([_rle([planes[..., 1], planes[..., 0]])])
        data.PixelData = rle
        data["PixelData"].VR = "OB"
        data["PixelData"].is_undefined_length = True
        save(tmp_path / f"{k}.dcm", data, syntax=RLELossless)
    np.testing.assert_array_equal(read_series(tmp_path).image.data[:, :, 0], np.arange(35).reshape(5, 7).T)


def _rle(planes: list[np.ndarray]) -> bytes:
    """Encode byte planes, the highest first, each row as one literal run."""
    parts = [padded(b"".join(bytes([len(row) - 1]) + row.tobytes() for row in plane)) for plane in planes]
    starts = 64 + np.cumsum([0, *map(len, parts)])[: len(parts)]
    head = np.zeros(16, dtype="<u4")
    head[0], head[1 : 1 + len(parts)] = len(parts), starts
    return head.tobytes() + b"".join(parts)
