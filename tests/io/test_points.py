import json

import numpy as np
import pytest

from regweave.errors import RegweaveError
from regweave.io import read_points, write_points

POINTS = np.array([[1.5, -2.25, 3.0], [100.125, 0.1, -40.0]])
LABELS = ["nose, tip", "é 2"]


@pytest.mark.parametrize("suffix", [".mrk.json", ".fcsv", ".csv"])
def test_round_trip(tmp_path, suffix):
    write_points(tmp_path / f"p{suffix}", POINTS, LABELS)
    points, labels = read_points(tmp_path / f"p{suffix}")
    np.testing.assert_array_equal(points, POINTS)
    assert labels == LABELS
    write_points(tmp_path / f"p{suffix}", POINTS)
    assert read_points(tmp_path / f"p{suffix}")[1] == ["", ""]


def test_written_markups_are_what_slicer_expects(tmp_path):
    write_points(tmp_path / "p.mrk.json", POINTS, LABELS)
    (markup,) = json.loads((tmp_path / "p.mrk.json").read_text())["markups"]
    assert (markup["type"], markup["coordinateSystem"], markup["coordinateUnits"]) == ("Fiducial", "LPS", "mm")
    assert markup["controlPoints"][1]["position"] == POINTS[1].tolist()


def markups(frame, **point):
    point = {"label": "a", "position": [1, 2, 3], **point}
    return json.dumps({"markups": [{"coordinateSystem": frame, "controlPoints": [point]}]})


FCSV = "# Markups fiducial file\n# CoordinateSystem = {}\n# columns = id,x,y,z,label\nF_1,1,2,3,a\n"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("p.mrk.json", markups("LPS"), (1, 2, 3)), ("p.mrk.json", markups("RAS"), (-1, -2, 3)),
        ("p.fcsv", FCSV.format("LPS"), (1, 2, 3)), ("p.fcsv", FCSV.format("1"), (1, 2, 3)),
        ("p.fcsv", FCSV.format("RAS"), (-1, -2, 3)), ("p.fcsv", FCSV.format("0"), (-1, -2, 3)),
        ("p.csv", "x_lps,y_lps,z_lps,label\n1,2,3,a\n", (1, 2, 3)),
        ("p.csv", "label,z_ras,y_ras,x_ras\na,3,2,1\n", (-1, -2, 3)),
    ],
)  # fmt: skip
def test_frames(tmp_path, name, text, expected):
    (tmp_path / name).write_text(text)
    points, labels = read_points(tmp_path / name)
    assert points.tolist() == [list(expected)]
    assert labels == ["a"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.mrk.json", markups(None)), ("p.mrk.json", markups("IJK")),
        ("p.mrk.json", markups("LPS", positionStatus="undefined")), ("p.mrk.json", markups("LPS", position=[1, 2])),
        ("p.mrk.json", markups("LPS", position=[1, 2, float("nan")])), ("p.mrk.json", "{"),
        ("p.mrk.json", '{"markups": []}'), ("p.fcsv", FCSV.format("IJK")),
        ("p.fcsv", "# columns = id,x,y,z\nF,1,2,3\n"), ("p.csv", "x,y,z\n1,2,3\n"),
        ("p.csv", "x_lps,y_lps,z_ras\n1,2,3\n"), ("p.csv", "x_lps,y_lps,z_lps\n1,2,\n"), ("p.csv", ""),
        ("p.xyz", "1 2 3"),
    ],
)  # fmt: skip
def test_points_without_a_frame_or_a_number_are_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(RegweaveError) as caught:
        read_points(tmp_path / name)
    assert caught.value.code == "E116"
    assert name in caught.value.message


def test_bad_writes(tmp_path):
    with pytest.raises(RegweaveError, match="E116"):
        write_points(tmp_path / "p.csv", POINTS, ["one"])
    with pytest.raises(RegweaveError, match="E116"):
        write_points(tmp_path / "p.vtk", POINTS)
    assert list(tmp_path.iterdir()) == []
