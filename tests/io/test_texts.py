"""Text files: one reader for all of them, which refuses what has two readings or no end."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from regweave.config.settings import load, parse
from regweave.errors import RegweaveError, UsageError
from regweave.io import read_names, read_points, write_points
from regweave.io.disk.files import (
    MAX_JSON_CHARACTERS,
    MAX_NESTING,
    MAX_TOML_CHARACTERS,
    exists,
    is_file,
    open_file,
    parse_json,
    parse_rows,
    parse_table,
    parse_toml,
    read_json,
    read_text,
    require_file,
    sha256,
)
from regweave.jobs.table import read_pairs
from regweave.model import find_model
from regweave.model.model import Model
from regweave.run.start import require_start

READERS = {
    "m.json": (Model.load, "E170"), "s.toml": (load, "E185"), "p.mrk.json": (read_points, "E116"),
    "p.csv": (read_points, "E116"), "p.fcsv": (read_points, "E116"), "n.json": (read_names, "E107"),
    "n.tsv": (read_names, "E107"), "pairs.csv": (read_pairs, "E132"), "result.json": (read_json, "E102"),
}  # fmt: skip
"""Each text that users and strangers hand in, what reads it, and the code of one that cannot be understood."""
JSON_AND_TOML = ["m.json", "s.toml", "p.mrk.json", "n.json", "result.json"]


def code_of(name, path):
    with pytest.raises(RegweaveError) as caught:
        READERS[name][0](path)
    assert str(path) in caught.value.message
    return caught.value.code


def test_long_nested_and_unreadable_texts_have_the_code_of_their_file(tmp_path):
    for text in (
        "[" * 100_000, '{"a":' * 50_000, "1" * 5000, '{"a": ' + "1" * 5000 + "}", "a = " + "[" * 100_000,
        "a = " + "1" * 5000,
    ):  # fmt: skip
        for name in JSON_AND_TOML:
            (tmp_path / name).write_text(text)
            assert code_of(name, tmp_path / name) == READERS[name][1], (name, text[:9])
    for name, head in {
        "n.tsv": "index\tname\n1\t", "p.csv": "x_lps,y_lps,z_lps,label\n1,2,3,",
        "p.fcsv": "# CoordinateSystem = LPS\n1,1,2,3,0,0,0,1,1,1,0,",
        "pairs.csv": "id,fixed,moving,fixed_labels,moving_labels\n1,",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(head + "x" * 200_000 + "\n")
        assert code_of(name, tmp_path / name) == READERS[name][1]


def test_pipes_devices_long_texts_and_those_that_are_not_utf8_are_not_read(tmp_path):
    for name in READERS:
        path = tmp_path / name
        path.write_bytes(b"\xff\xfe\x00abc")
        assert code_of(name, path) == READERS[name][1], name
        path.unlink()
        os.mkfifo(path)
        assert code_of(name, path) == "E101", name
        path.unlink()
        path.symlink_to("/dev/zero")
        assert code_of(name, path) == "E101", name
        path.unlink()
        with path.open("wb") as stream:
            stream.truncate((64 << 20) + 1)
        assert code_of(name, path) == "E114", name


def test_names_of_files_and_keys_that_mislead(tmp_path):
    for bad in ("n" * 300, "a\0b", "", "none"):
        for name in READERS:
            path = f"{tmp_path}/{bad}{name}" if bad else ""
            assert code_of(name, path) == "E101", name
            assert not exists(path or "no such file")
            assert not is_file(path or "no such file")
    with pytest.raises(UsageError, match="E187"):
        require_start("n" * 300, None)
    with pytest.raises(UsageError, match="E171"):
        find_model("n" * 300)
    (tmp_path / "p.csv").write_text("id,fixed,moving,fixed_labels,moving_labels\na,x\0y.nii,b,c,d\n")
    with pytest.raises(RegweaveError, match=r"E101.*pair 1 \(a\), fixed"):
        read_pairs(tmp_path / "p.csv")
    text = (Path(__file__).parents[1] / "model/tissue.json").read_text(encoding="utf-8")
    (tmp_path / "m.json").write_text(text)
    Model.load(tmp_path / "m.json")
    (tmp_path / "m.json").write_text(text.replace('"pairwise":', '"pairwise": 99, "pairwise":', 1))
    with pytest.raises(RegweaveError, match=r"E170.*'pairwise' is repeated"):
        Model.load(tmp_path / "m.json")
    for text in ('{"1_0": "a"}', '{"٣": "a"}', '{"-1": "a"}', '{"+1": "a"}'):
        (tmp_path / "n.json").write_text(text, encoding="utf-8")
        with pytest.raises(RegweaveError, match="E107"):
            read_names(tmp_path / "n.json")


def test_json_is_strict():
    for text in ('{"a": 1, "a": 1}', '{"x": {"a": 1, "a": 2}}', "NaN", "[Infinity]", "1e999", "{", "", "[1,]", "01"):
        with pytest.raises(ValueError, match=r"."):
            parse_json(text)
    value = {"a": [1, -2.5, "x", None, True], "b": {}}
    assert parse_json(json.dumps(value)) == value
    deep = parse_json("[" * MAX_NESTING + "]" * MAX_NESTING)
    assert isinstance(deep, list)
    with pytest.raises(ValueError, match="nests deeper"):
        parse_json("[" * (MAX_NESTING + 1) + "]" * (MAX_NESTING + 1))
    # Counting each key would take hours here.
    keys = ",".join(f'"k{n}": 1' for n in range(300_000))
    with pytest.raises(ValueError, match=r"'k299999' is repeated"):
        parse_json(f'{{{keys}, "k299999": 2}}')
    for reader, most in ((parse_json, MAX_JSON_CHARACTERS), (parse_toml, MAX_TOML_CHARACTERS)):
        with pytest.raises(ValueError, match=f"allowed are {most}"):  # it would take long
            reader(" " * (most + 1))


def test_toml_is_strict_and_tables_are_whole():
    assert parse_toml("a = 1\nb = 2.5\n[c]\nd = [1]\n") == {"a": 1, "b": 2.5, "c": {"d": [1]}}
    for text in ("a = 1\na = 2", "a = nan", "a = inf", "a = 1e999", "a = " + "9" * 50, "a = " + "[" * 80 + "]" * 80):
        with pytest.raises(ValueError, match=r"."):
            parse_toml(text)
    with pytest.raises(UsageError, match=r"E185.*my settings"):
        parse("a = nan", "my settings")
    assert parse_rows(["a,b", '"x,y",z']) == [["a", "b"], ["x,y", "z"]]
    assert parse_table("Index\t Name\n1\tLiver\n\n2\n", "\t") == [{"index": "1", "name": "Liver"}, {"index": "2"}]
    assert parse_table("") == []
    for bad in ("a,A\n1,2\n", "a\n1,2\n"):
        with pytest.raises(ValueError, match=r"."):
            parse_table(bad)


def test_regular_files_are_opened_through_links(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfhello")
    (tmp_path / "b.txt").symlink_to("a.txt")
    assert read_text(tmp_path / "b.txt") == "hello"
    assert require_file(str(tmp_path / "b.txt")) == tmp_path / "b.txt"
    assert sha256(tmp_path / "a.txt") == sha256(tmp_path / "b.txt")
    with open_file(tmp_path / "b.txt") as stream:
        assert stream.read() == b"\xef\xbb\xbfhello"
    with pytest.raises(RegweaveError, match=r"E114.*longer than 4 bytes"):
        read_text(tmp_path / "a.txt", limit=4)
    (tmp_path / "c.txt").symlink_to("c.txt")
    for bad in ("c.txt", "."):
        with pytest.raises(RegweaveError, match="E101"):
            open_file(tmp_path / bad)


POINTS = np.array([[1.5, -2.25, 3.0], [100.125, 0.1, -40.0]])
LABELS = ["nose, tip", "é 2"]


def test_points_come_back_in_their_frames_or_are_refused(tmp_path):
    for suffix in (".mrk.json", ".fcsv", ".csv"):
        write_points(tmp_path / f"p{suffix}", POINTS, LABELS)
        points, labels = read_points(tmp_path / f"p{suffix}")
        np.testing.assert_array_equal(points, POINTS)
        assert labels == LABELS
        write_points(tmp_path / f"q{suffix}", POINTS)
        assert read_points(tmp_path / f"q{suffix}")[1] == ["", ""]
    (markup,) = json.loads((tmp_path / "p.mrk.json").read_text())["markups"]  # what Slicer expects
    assert (markup["type"], markup["coordinateSystem"], markup["coordinateUnits"]) == ("Fiducial", "LPS", "mm")
    assert markup["controlPoints"][1]["position"] == POINTS[1].tolist()
    for name, text, expected in (
        ("p.mrk.json", markups("LPS"), (1, 2, 3)), ("p.mrk.json", markups("RAS"), (-1, -2, 3)),
        ("p.fcsv", FCSV.format("LPS"), (1, 2, 3)), ("p.fcsv", FCSV.format("1"), (1, 2, 3)),
        ("p.fcsv", FCSV.format("RAS"), (-1, -2, 3)), ("p.fcsv", FCSV.format("0"), (-1, -2, 3)),
        ("p.csv", "x_lps,y_lps,z_lps,label\n1,2,3,a\n", (1, 2, 3)),
        ("p.csv", "label,z_ras,y_ras,x_ras\na,3,2,1\n", (-1, -2, 3)),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
        points, labels = read_points(tmp_path / name)
        assert (points.tolist(), labels) == ([list(expected)], ["a"]), text
    for name, text in (
        ("p.mrk.json", markups(None)), ("p.mrk.json", markups("IJK")),
        ("p.mrk.json", markups("LPS", positionStatus="undefined")), ("p.mrk.json", markups("LPS", position=[1, 2])),
        ("p.mrk.json", markups("LPS", position=[1, 2, float("nan")])), ("p.mrk.json", "{"),
        ("p.mrk.json", '{"markups": []}'), ("p.fcsv", FCSV.format("IJK")),
        ("p.fcsv", "# columns = id,x,y,z\nF,1,2,3\n"), ("p.csv", "x,y,z\n1,2,3\n"),
        ("p.csv", "x_lps,y_lps,z_ras\n1,2,3\n"), ("p.csv", "x_lps,y_lps,z_lps\n1,2,\n"), ("p.csv", ""),
        ("p.xyz", "1 2 3"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
        with pytest.raises(RegweaveError, match=f"E116.*{name}"):
            read_points(tmp_path / name)
    for name, labels in (("r.csv", ["one"]), ("r.vtk", None)):
        with pytest.raises(RegweaveError, match="E116"):
            write_points(tmp_path / name, POINTS, labels)
        assert not (tmp_path / name).exists()


def markups(frame, **point):
    point = {"label": "a", "position": [1, 2, 3], **point}
    return json.dumps({"markups": [{"coordinateSystem": frame, "controlPoints": [point]}]})


FCSV = "# Markups fiducial file\n# CoordinateSystem = {}\n# columns = id,x,y,z,label\nF_1,1,2,3,a\n"
