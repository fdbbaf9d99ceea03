from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import pytest

from regweave.report.pictures import data_address, encode_png


def decode(png: bytes) -> np.ndarray:
    """A reader of unfiltered 8-bit PNG, which checks every chunk's sum."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, []
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, content = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        (total,) = struct.unpack(">I", png[at + 8 + length : at + 12 + length])
        assert total == zlib.crc32(kind + content)
        chunks.append((kind, content))
        at += 12 + length
    assert [kind for kind, _ in chunks] == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", chunks[0][1])
    assert (depth, rest) == (8, [0, 0, 0])
    channels = {0: 1, 2: 3}[colour]
    rows = np.frombuffer(zlib.decompress(chunks[1][1]), dtype=np.uint8).reshape(height, 1 + width * channels)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape((height, width) if channels == 1 else (height, width, 3))


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (4, 7, 3)])
def test_pixels_come_back(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.testing.assert_array_equal(decode(encode_png(pixels)), pixels)


def test_a_view_with_strides_comes_back():
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 6)[::-1, ::2]
    np.testing.assert_array_equal(decode(encode_png(pixels)), pixels)


@pytest.mark.parametrize("pixels", [np.zeros((2, 2)), np.zeros((2, 2, 4), dtype=np.uint8), np.zeros(3, dtype=np.uint8)])
def test_other_arrays_are_refused(pixels):
    with pytest.raises(ValueError, match="needed are uint8"):
        encode_png(pixels)


def test_the_address_holds_the_picture():
    png = encode_png(np.zeros((2, 2), dtype=np.uint8))
    head, body = data_address(png).split(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(body) == png
