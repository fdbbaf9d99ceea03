"""``regweave evaluate`` and ``regweave models`` as a user sees them."""

import json
from dataclasses import replace

import numpy as np
import pytest

from made_pairs import SAD, small_settings, write_pair
from phantoms import make_phantom
from regweave.cli import evaluate as command, main
from regweave.cli.tables import terminal_text
from regweave.config.settings import preset
from regweave.errors import RegweaveError
from regweave.model.model import Model
from regweave.model.record import TrainingRecord
from regweave.progress import BatchBar, BatchProgress
from regweave.types import WeightTable

pytestmark = pytest.mark.usefixtures("in_process")
SETTINGS = small_settings((48.0, 1, 1), banks={"mr": [SAD]}).toml()


@pytest.fixture
def case(tmp_path):
    pair = make_phantom(shape=(24, 24, 24), spacing_mm=(8.0, 8.0, 8.0)).pair
    write_pair(tmp_path, pair)
    (tmp_path / "broken.nii.gz").write_bytes(b"no image")
    files = "fixed.nii.gz,moving.nii.gz,fixed_labels.nii.gz,moving_labels.nii.gz"
    header = "id,fixed,moving,fixed_labels,moving_labels\n"
    (tmp_path / "pairs.csv").write_text(f"{header}a,{files}\n")
    (tmp_path / "mixed.csv").write_text(f"{header}a,{files}\nb,broken.nii.gz,{files.split(',', 1)[1]}\n")
    (tmp_path / "small.toml").write_text(SETTINGS)
    return tmp_path


def test_evaluate(case, capsys):
    words = ["evaluate", str(case / "pairs.csv"), "-o", str(case / "out"), "--config", str(case / "small.toml")]
    assert main([*words, "--workers", "1"]) == 0
    out, err = capsys.readouterr()
    pages = [case / "out" / "pages" / "a" / "report.html", case / "out" / "report.html"]
    assert err == "[1/1] preset:small/a, 0:00 left\n" + "".join(f"page {page}\n" for page in pages)
    assert all(page.is_file() for page in (*pages, case / "out" / "index.html"))
    kept = json.loads((case / "out" / "pages" / "a" / "result.json").read_text())
    (scored,) = json.loads((case / "out" / "results.json").read_text())["results"]
    after = {str(row["label"]): row["dice_after"] for row in scored["scores"]["structures"]}
    assert {label: row["after"] for label, row in kept["dice"].items()} == after
    assert 'href="pages/a/report.html"' in pages[1].read_text()
    summary = (case / "out" / "summary.md").read_text()
    assert out.rstrip("\n") == terminal_text(summary).rstrip("\n")
    assert out.startswith("Evaluation\n")
    assert "1 pairs of 1 patients" in out
    assert main(words) == 3
    assert "error E150" in capsys.readouterr().err
    assert main([*words, "--resume", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main([*words, "--preset", "default"]) == 2
    assert main([*words, "--workers", "1", "--scheduler", "tcp://x:1"]) == 2
    assert "error E192" in capsys.readouterr().err


def test_some_pairs_or_pages_fail(case, capsys, monkeypatch):
    words = ["evaluate", str(case / "mixed.csv"), "-o", str(case / "out"), "--config", str(case / "small.toml")]
    assert main([*words, "--workers", "1", "--quiet"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("failed preset:small/b: E102")
    assert "E102" in (case / "out" / "index.html").read_text()

    def full(*_: object) -> None:
        raise RegweaveError("E153", "cannot write", "check the free space")

    monkeypatch.setattr(command, "keep_registration", full)
    words = ["evaluate", str(case / "pairs.csv"), "-o", str(case / "full"), "--config", str(case / "small.toml")]
    assert main([*words, "--workers", "1", "--quiet"]) == 3
    assert "no page of a: E153: cannot write" in capsys.readouterr().err
    assert (case / "full" / "results.csv").is_file()


def test_no_pages(case, capsys):
    words = ["evaluate", str(case / "pairs.csv"), "-o", str(case / "out"), "--config", str(case / "small.toml")]
    assert main([*words, "--workers", "1", "--quiet", "--no-report"]) == 0
    names = [".regweave-result", "results.csv", "results.json", "summary.md", "tasks"]
    assert sorted(p.name for p in (case / "out").iterdir()) == names
    assert main([*words, "--workers", "1", "--quiet", "--resume", "--pages", "0"]) == 0
    assert {p.name for p in (case / "out").glob("*")} >= {"report.html", "index.html"}
    assert not (case / "out" / "pages").exists()
    (case / "out" / "report.html").unlink()
    assert main(["report", str(case / "out")]) == 0
    assert "report.html" in capsys.readouterr().out
    assert (case / "out" / "report.html").is_file()


def test_cancelling_says_what_is_kept(case, capsys, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command.workflow, "evaluate", interrupted)
    assert main(["evaluate", str(case / "pairs.csv"), "-o", str(case / "out")]) == 5
    assert capsys.readouterr().err == "cancelled; finished registrations are kept; continue with --resume\n"


def test_progress_lines(capsys):
    shown = BatchBar(lines=True)
    shown(BatchProgress(3, 9, 0, "", float("nan")))
    shown(BatchProgress(4, 9, 1, "uniform/a", 3723.4))
    assert capsys.readouterr().err == (
        "[3/9] taken from the earlier run\n[4/9] uniform/a, 1 failed, 1:02:03 left\n"
    )  # fmt: skip


def save(path, matrix, members=("sad", "ncc"), classes=(0, 4), **more):
    weights = WeightTable(np.array(matrix), members, classes, more.pop("pairwise", 0.05))
    Model(weights, preset("default"), "ct", {4: "parotid"}, **more).save(path)
    return str(path)


def test_models_show(tmp_path, capsys):
    evidence = {
        "method": "joint",
        "pairs": {"x": {}, "y": {}, "z": {}},
        "groups": ["p1+p3", "p1", "p2"],
        "gates": {"0": {"used": False, "gain": -0.01}, "4": {"used": True}},
        "left_out_gain": {"mean": 0.0123, "low": -0.001, "high": 0.025},
    }
    path = save(tmp_path / "a.json", [[0.5, 0.25], [0.5, 0.75]], training=TrainingRecord.model_validate(evidence))
    assert main(["models", "show", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"{path}: weights for ct",
        "smoothness   0.05",
        "trained      joint, 3 pairs, 3 patients",
        "Dice gain    +0.0123 on left-out patients, 95 % interval [-0.0010, +0.0250]",
        "",
        "class          sad     ncc     gate",
        "background  0.5000  0.5000  uniform",
        "parotid     0.2500  0.7500  learned",
    ]
    assert main(["models", "show", "--json", path]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["weights"]["ncc"]["4"] == 0.75
    assert found["evidence"] == evidence
    mixed = {"gain": {"mean": 0.01, "low": 0.002, "high": 0.019}}
    record = TrainingRecord(left_out_gain=None, refinement=mixed)
    none = save(tmp_path / "b.json", [[0.5, 0.5], [0.5, 0.5]], training=record)
    assert main(["models", "show", none]) == 0
    out = capsys.readouterr().out
    assert "refinement   +0.0100 on left-out patients, 95 % interval [+0.0020, +0.0190]" in out
    assert "none on left-out patients: the columns of the levels are uniform" in out


def test_models_show_whom_the_predictor_knows_and_what_needs_a_mask(tmp_path, capsys):
    path = save(tmp_path / "a.json", [[0.5, 0.25], [0.5, 0.75]], training=TrainingRecord(predictor_groups=("p1", "p2")))
    replace(Model.load(path), outline_without_mask=False).save(path)
    assert main(["models", "show", path]) == 0
    assert capsys.readouterr().out.splitlines()[2:4] == [
        "predictor    fitted to 2 patients",
        "without mask members that compare the moving labels are left out",
    ]


def test_wide_tables_stay_within_80_columns(tmp_path, capsys):
    members = tuple(f"member-number-{i}" for i in range(12))
    path = save(tmp_path / "a.json", np.full((12, 2), 1 / 12), members)
    assert main(["models", "show", path]) == 0
    lines = capsys.readouterr().out.splitlines()[3:]
    assert max(map(len, lines)) <= 80
    assert [f"member-number-{i}" in "\n".join(lines) for i in range(12)] == [True] * 12
    assert sum(line.startswith("parotid") for line in lines) == 3


def test_models_compare(tmp_path, capsys):
    first = save(tmp_path / "a.json", [[0.5, 0.25], [0.5, 0.75]])
    second = save(tmp_path / "b.json", [[0.5], [0.25], [0.25]], ("sad", "ncc", "mi"), (0,), pairwise=0.1)
    assert main(["models", "compare", first, second]) == 0
    assert capsys.readouterr().out.splitlines()[3:] == [
        "class member         1       2      2-1",
        "smoothness      0.0500  0.1000  +0.0500",
        "background sad  0.5000  0.5000  +0.0000",
        "background ncc  0.5000  0.2500  -0.2500",
        "background mi        -  0.2500        -",
        "parotid sad     0.2500       -        -",
        "parotid ncc     0.7500       -        -",
        "parotid mi           -       -        -",
    ]
    assert main(["models", "compare", "--json", first, second]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[2] == {"class": "background", "member": "ncc", "weights": [0.5, 0.25], "differences": [-0.25]}
    assert main(["models", "compare", first]) == 2
    assert main(["models", "show", str(tmp_path / "none.json")]) == 3
