"""Contours of a list of patients: a folder a row, failures named, resumed, graded."""

import json
import shutil

import pydicom
import pytest
from made_body import write_study

from regweave.cli import main
from regweave.errors import EXIT_VERDICT

pytestmark = pytest.mark.usefixtures("in_process", "few_steps")


@pytest.fixture(scope="module")
def done(tmp_path_factory, in_process, few_steps):
    """Two rows, of which one has no plan with contours."""
    where = tmp_path_factory.mktemp("list")
    study = write_study(where / "study")
    shutil.copytree(study / "today", where / "study" / "bare")
    lines = ["id,plan,today", "good,study/plan,study/today", "bad,study/bare,study/today"]
    (where / "list.csv").write_text("\n".join(lines) + "\n")
    status = main([*_words(where), "--structures", "Liver"])
    return where, status


def _words(where, *more):
    return ["contours", str(where / "list.csv"), "-o", str(where / "out"), "--workers", "1", "--quiet", *more]


def test_each_row_has_its_folder_and_a_failed_row_stops_no_other(done):
    where, status = done
    rows = {row["id"]: row for row in json.loads((where / "out" / "results.json").read_text())["rows"]}
    assert status == 1
    assert (rows["good"]["status"], rows["bad"]["status"]) == ("ok", "failed")
    assert rows["bad"]["code"].startswith("E1")
    assert (where / "out" / "good" / "rtstruct.dcm").is_file()
    page = (where / "out" / "index.html").read_text()
    tiles = page.split('id="sheet"')[1]
    assert tiles.index('data-id="bad"') < tiles.index('data-id="good"')  # failures are on the sheet, and first


def test_a_failed_verdict_reaches_a_script_and_the_file(done, tmp_path, capsys):
    study, out = done[0] / "study", tmp_path / "out"
    (tmp_path / "r.toml").write_text("[structure_volume_percent]\nfail = -1\n")
    words = ["contours", str(study / "plan"), str(study / "today"), "-o", str(out), "--structures", "Liver"]
    assert main([*words, "--init", "none", "--rules", str(tmp_path / "r.toml"), "--quiet", "--strict"]) == EXIT_VERDICT
    assert "verdict     fail: change of a structure's volume" in capsys.readouterr().err
    roi = pydicom.dcmread(out / "rtstruct.dcm").StructureSetROISequence[0]
    assert roi.ROIDescription.startswith("regweave: FAIL")


def test_a_list_is_resumed_and_a_changed_result_runs_again(done, capsys):
    where, _ = done
    result = where / "out" / "good" / "result.json"
    before = result.stat().st_mtime_ns
    assert main([*_words(where), "--structures", "Liver", "--resume"]) == 1
    assert result.stat().st_mtime_ns == before
    result.write_text(result.read_text() + " ")
    assert main([*_words(where), "--structures", "Liver", "--resume"]) == 1
    assert result.stat().st_mtime_ns != before
    assert "W251" in capsys.readouterr().err


def test_grades_are_compared_with_the_verdicts(done, tmp_path, capsys):
    out = str(done[0] / "out")
    table = tmp_path / "grades.tsv"
    table.write_bytes(b"id\tgrade\r\ngood\t4\r\nbad\t3\r\n")  # as a spreadsheet saves it
    assert main(["report", out, "--grades", str(table), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["usable_but_fail"] == ["bad"]
    assert (found["of"], found["unusable_but_pass"], found["rank_correlation"]) == (2, [], None)
    for text in ("", "id\tgrade\n", "id\tgrade\ngood\t5\n", "id\tgrade\nnobody\t1\n", "id\tgrade\ngood\t1\ngood\t2\n",
                 "grade\tid\n4\tgood\n", "id\tgrade\ngood\n"):  # fmt: skip
        table.write_text(text)
        assert main(["report", out, "--grades", str(table)]) == 3, text
        assert "E145" in capsys.readouterr().err
    table.write_bytes(b"id\tgrade\n\xff\t1\n")
    assert main(["report", out, "--grades", str(table)]) == 3


def test_lists_and_options_that_cannot_be_used_are_refused_before_anything_is_computed(done, tmp_path, capsys):
    for lines, code in [
        (["id,plan,today"], "E132"),
        (["id,plan,today", "a,study/plan,nowhere"], "E101"),
        (["id,plan,today", "tasks,study/plan,study/today"], "E132"),
        (["id,plan", "a,study/plan"], "E132"),
    ]:
        path = done[0] / "wrong.csv"
        path.write_text("\n".join(lines) + "\n")
        assert main(["contours", str(path), "-o", str(tmp_path / "out")]) != 0
        assert code in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
    where = done[0]
    for words in (
        [str(where / "list.csv"), "--threads", "1"], [str(where / "study" / "plan")],
        [str(where / "study" / "plan"), str(where / "study" / "today"), "--resume"],
    ):  # fmt: skip
        assert main(["contours", *words, "-o", str(tmp_path / "out")]) == 2
        assert "E192" in capsys.readouterr().err
