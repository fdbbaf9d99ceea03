"""The index of a batch: one row a pair, failures named, pictures inside the page; all from results.json."""

import json
import re
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reading import Reader

from phantoms import make_phantom
from regweave import notices
from regweave.cli import main
from regweave.jobs.batch import Batch, BatchRow
from regweave.report.batch import LARGEST_THUMBNAIL, good_results, write_page
from regweave.report.pictures import data_address, encode_png, thumbnail
from regweave.run.register import register
from regweave.run.result import load
from regweave.types import Geometry, Volume

HOSTILE = "</script><script>alert(1)</script>"
PICTURE = encode_png(np.full((4, 4, 3), 90, dtype=np.uint8))
REASON = {"rule": "folding_percent", "level": "look", "text": "voxels folded: 0.02 % (look above 0 %)"}


def done(name: str, verdict: str = "pass", **more: object) -> dict:
    numbers = {
        "mean_dice_before": 0.5,
        "mean_dice_after": 0.75,
        "folding_percent": 0.0,
        "seconds": 12.25,
        "likeness": 0.31,
    }
    return {"id": name, "status": "ok", "folder": name, "verdict": verdict, **numbers, **more}


ROWS = [
    done("a", thumbnail="a/thumbnail.png"),
    done("b", "look", reasons=[REASON], mean_dice_before=None, mean_dice_after=None),
    {"id": "c", "status": "failed", "code": "E102", "message": f"'c.nii' is cut {HOSTILE}"},
]


@pytest.fixture
def folder(tmp_path) -> Path:
    write(tmp_path, ROWS)
    for name in "ab":
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "report.html").write_text("")
    (tmp_path / "a" / "thumbnail.png").write_bytes(PICTURE)
    return tmp_path


def write(folder: Path, rows: list[dict]) -> None:
    record = Batch(rules="shipped", rows=[BatchRow.model_validate(row) for row in rows])
    (folder / "results.json").write_text(record.model_dump_json())


def test_every_pair_has_its_row_and_columns_that_it_needs(folder, tmp_path):
    found = Reader(write_page(folder))
    a, b, c = found.rows[1:]
    assert a[1] == ["a", "✓ pass", "", "0.500", "0.750", "+0.250", "+0.31", "0.0000", "12.2"]
    assert b[1][1:7] == ["● look closer", REASON["text"], "–", "–", "–", "+0.31"]
    assert c[1][1] == "✗ fail"
    assert c[1][2].startswith("E102: 'c.nii' is cut </script>")
    marks = [attributes["data-marks"].split() for attributes, _ in (a, b, c)]
    assert marks == [["pass"], ["look", "folding_percent"], ["fail", "error", "E102"]]
    assert "1 of 3 passed, 1 to look at, 1 failed" in found.text
    assert not any(part in found.text for part in ("<script>alert", " style=", "http://", "https://"))
    write(tmp_path, [done("a", mean_dice_before=None, mean_dice_after=None)])
    found = Reader(write_page(tmp_path))
    assert found.rows[0][1] == ["pair", "verdict", "reasons", "likeness", "folding %", "seconds"]
    assert found.rows[1][1][:5] == ["a", "✓ pass", "", "+0.31", "0.0000"]


def test_pages_and_pictures_are_those_that_exist(folder):
    found = Reader(write_page(folder))
    assert found.links == [
        "#pictures",
        "#table",
        "a/report.html",
        "a/report.html",
    ]  # of the contact sheet and of the table
    assert found.pictures == [data_address(PICTURE)]
    (folder / "a" / "report.html").unlink()
    (folder / "a" / "thumbnail.png").write_bytes(b"GIF89a")
    found = Reader(write_page(folder))
    assert (found.links, found.pictures) == ([], [])
    (folder / "a" / "thumbnail.png").write_bytes(PICTURE + bytes(LARGEST_THUMBNAIL))
    assert Reader(write_page(folder)).pictures == []


def test_the_contact_sheet_begins_with_the_worst(tmp_path):
    rows = [
        done("good", thumbnail="p.png"),
        done("less", thumbnail="p.png", likeness=-0.6),
        done("bad", "fail", thumbnail="p.png", mean_dice_after=0.9, reasons=[REASON]),
        done("odd", "look", thumbnail="p.png", mean_dice_after=0.9, reasons=[REASON]),
    ]
    write(tmp_path, rows)
    (tmp_path / "p.png").write_bytes(PICTURE)
    text = Reader(write_page(tmp_path)).text
    assert re.findall(r'class="tile \w+".*?data-row="(\d)"', text) == ["2", "3", "1", "0"]
    assert "Dice&nbsp;0.75" in text


def test_a_thumbnail_is_small_and_grey_where_images_agree():
    rng = np.random.default_rng(0)
    fixed = Volume(rng.normal(size=(64, 60, 40)).astype(np.float32), Geometry((64, 60, 40), np.diag([2.0, 2, 4, 1])))
    same = thumbnail(fixed, fixed)
    assert len(same) < len(thumbnail(fixed, replace(fixed, data=fixed.data[::-1].copy()))) <= LARGEST_THUMBNAIL
    row = zlib.decompress(same[same.index(b"IDAT") + 4 : -16])[: 3 * 96 + 1]
    pixels = np.frombuffer(row, np.uint8)[1:].reshape(-1, 3)
    assert (np.ptp(pixels, axis=1) == 0).all()


def test_the_command_tells_a_batch_from_an_evaluation(folder, tmp_path, capsys):
    assert main(["report", str(folder)]) == 0
    assert (folder / "index.html").is_file()
    assert not (folder / "report.html").exists()
    (tmp_path / "mine.toml").write_text("[folding_percent]\nfail = 1.0\n")
    assert main(["report", str(folder), "--rules", str(tmp_path / "mine.toml")]) == 2
    assert "E192: --rules is given, but" in capsys.readouterr().err


def test_a_batch_of_a_stranger_is_refused_with_the_place(folder, capsys):
    whole = (folder / "results.json").read_text()
    for change, words in [
        ({"id": "../x"}, "rows.0.id"),
        ({"folder": "../x"}, "rows.0.folder"),
        ({"folder": "a/../../x"}, "rows.0.folder"),
        ({"thumbnail": "/etc/passwd"}, "rows.0.thumbnail"),
        ({"verdict": "fine"}, "rows.0.verdict"),
        ({"verdict": None}, "a is ok, but has no folder or no verdict"),
        ({"seconds": "1"}, "rows.0.seconds: a number is needed"),
        ({"status": "failed"}, "a has failed, but there is no message"),
        ({"id": "b"}, "a pair stands twice"),
    ]:
        content = json.loads(whole)
        content["rows"][0] |= change
        (folder / "results.json").write_text(json.dumps(content))
        assert main(["report", str(folder)]) == 3
        text = capsys.readouterr().err
        assert "error E178: " in text
        assert words in text
        assert not (folder / "index.html").exists()


def test_who_lies_apart_from_the_group_is_named_first_where_it_is_large(tmp_path):
    rows = [done(f"p{n}", mean_dice_after=0.8 + 0.005 * n, seconds=10.0 + n) for n in range(8)]
    rows += [done("low", mean_dice_after=0.35, seconds=12.0), done("slow", mean_dice_after=0.99, seconds=400.0)]
    rows.append({"id": "failed", "status": "failed", "code": "E102", "message": "cut"})
    (tmp_path / "results.json").write_text(json.dumps({"rules": "default", "rows": rows}))
    text = write_page(tmp_path).read_text()
    listed = re.findall(r"<li>(.*?): (.*?) (\S+), median", text)
    assert sorted(listed) == [
        ("low", "Dice after", "0.350"),
        ("low", "change", "-0.150"),
        ("slow", "seconds", "400.0"),
    ]  # a Dice that is too good is no outlier
    assert len(re.findall('class="far"', text)) == 3
    assert 'data-name="folding %"' not in text  # all the same
    rows = [done(f"p{n}", mean_dice_after=0.1 * n) for n in range(4)]
    (tmp_path / "results.json").write_text(json.dumps({"rules": "default", "rows": rows}))
    assert 'id="group"' not in write_page(tmp_path).read_text()


def test_pairs_that_were_graded_as_usable_give_their_likeness(folder, tmp_path):
    made = make_phantom(seed=1, shape=(16, 16, 16), spacing_mm=(12.0, 12.0, 12.0)).pair
    for name, init in (("a", "none"), ("b", "moments")):
        with notices.muted():
            register(made.fixed, made.moving, init=init, progress=False).write(folder / name, ["transform"])
    (tmp_path / "grades.tsv").write_text("id\tgrade\na\t2\nb\t1\nc\t4\n")
    assert good_results(folder, tmp_path / "grades.tsv") == [load(folder / "a").likeness]
