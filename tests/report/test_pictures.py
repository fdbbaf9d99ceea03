"""Pictures: PNG, close-ups square in millimetres with tiles of both images, outlines in the structure's colour."""

import base64
import struct
import zlib
from types import SimpleNamespace

import numpy as np
import pytest

from regweave.report.pictures import closeups, draw_line, encode_png, square_rows
from regweave.types import Geometry


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


def test_pixels_come_back_and_other_arrays_are_refused():
    shapes = ((1, 1), (5, 3), (4, 7, 3))
    arrays = [np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8) for shape in shapes]
    for pixels in (*arrays, np.arange(24, dtype=np.uint8).reshape(4, 6)[::-1, ::2]):
        np.testing.assert_array_equal(decode(encode_png(pixels)), pixels)
    for pixels in (np.zeros((2, 2)), np.zeros((2, 2, 4), dtype=np.uint8), np.zeros(3, dtype=np.uint8)):
        with pytest.raises(ValueError, match="needed are uint8"):
            encode_png(pixels)


def shown():
    shape = (60, 50, 20)
    labels = np.zeros(shape, np.uint8)
    labels[20:40, 15:35, 5:15] = 1
    codes = {
        "fixed": np.zeros(shape, np.uint8),
        "moving": np.zeros(shape, np.uint8),
        "warped": np.ones(shape, np.uint8),
    }
    table = np.array([0.0, 100.0], np.float32)
    return SimpleNamespace(
        windows=[{"fixed": (0.0, 100.0), "moving": (0.0, 100.0)}],
        tables={"fixed": table, "moving": table},
        codes=codes,
        contours=None,
        labels={"after": labels},
        structures=[{"code": 1, "label": 7, "name": "cord", "colour": "#ff8800", "centre": [29, 24, 9]}],
        display=SimpleNamespace(geometry=Geometry(shape, np.diag([1.0, 1.0, 3.0, 1.0]))),
    )


def test_planes_are_square_in_millimetres_and_show_both_images_and_the_outline():
    found = closeups(shown())
    assert list(found) == [7]
    assert [one["text"] for one in found[7]] == ["cord, axial", "cord, coronal", "cord, sagittal"]
    # 20 mm and twice 15 mm of margin across; along the slices 30 mm, and what the scan has beyond
    for one, size_mm in zip(found[7], [(50, 50), (60, 50), (60, 50)], strict=True):
        head, body = one["address"].split(",")
        assert head == "data:image/png;base64"
        picture = decode(base64.b64decode(body))
        assert picture.shape[0] / picture.shape[1] == size_mm[0] / size_mm[1]
        line = (picture == [255, 136, 0]).all(axis=2)
        grey = picture[~line]
        assert {0, 255} == set(np.unique(grey))
        assert 0.3 < (grey == 255).mean() < 0.7
        assert 0.005 < line.mean() < 0.2


def test_rows_are_repeated_evenly_and_a_line_has_a_rim_that_is_seen_beside_it():
    plane = np.arange(4)[:, None]
    assert square_rows(plane, 1.5)[:, 0].tolist() == [0, 1, 1, 2, 3, 3]
    assert square_rows(plane, 0.5)[:, 0].tolist() == [1, 3]
    for colour, rim in [("#ffffff", 0), ("#ffee00", 0), ("#000080", 255)]:
        picture = np.full((20, 20, 3), 255 - rim, np.uint8)
        inside = np.zeros((20, 20), bool)
        inside[5:15, 5:15] = True
        draw_line(picture, inside, colour)
        assert "#{:02x}{:02x}{:02x}".format(*picture[5, 9]) == colour
        assert picture[4, 9].tolist() == picture[6, 9].tolist() == [rim] * 3
