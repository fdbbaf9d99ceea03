"""Close-ups: pixels square in millimetres, tiles of both images, the outline in the structure's colour."""

from __future__ import annotations

import base64
import struct
import zlib
from types import SimpleNamespace

import numpy as np

from regweave.report.pictures import closeups, square_rows
from regweave.types import Geometry


def pixels(picture):
    """Decode a picture that `encode_png` wrote."""
    raw = base64.b64decode(picture.address.partition(",")[2])
    width, height = struct.unpack(">II", raw[16:24])
    begin = raw.index(b"IDAT")
    length = struct.unpack(">I", raw[begin - 4 : begin])[0]
    rows = np.frombuffer(zlib.decompress(raw[begin + 4 : begin + 4 + length]), np.uint8).reshape(height, -1)
    return rows[:, 1:].reshape(height, width, 3)


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
    assert [one.text for one in found[7]] == ["cord, axial", "cord, coronal", "cord, sagittal"]
    # 20 mm and twice 15 mm of margin across; along the slices 30 mm, and what the scan has beyond
    for one, size_mm in zip(found[7], [(50, 50), (60, 50), (60, 50)], strict=True):
        picture = pixels(one)
        assert picture.shape[0] / picture.shape[1] == size_mm[0] / size_mm[1]
        line = (picture == [255, 136, 0]).all(axis=2)
        grey = picture[~line]
        assert {0, 255} == set(np.unique(grey))
        assert 0.3 < (grey == 255).mean() < 0.7
        assert 0.005 < line.mean() < 0.2


def test_rows_are_repeated_or_left_out_evenly():
    plane = np.arange(4)[:, None]
    assert square_rows(plane, 1.5)[:, 0].tolist() == [0, 1, 1, 2, 3, 3]
    assert square_rows(plane, 0.5)[:, 0].tolist() == [1, 3]
