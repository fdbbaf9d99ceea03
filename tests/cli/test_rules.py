"""Rules on the command line: printed, edited, checked, and obeyed by `register`."""

import json
from dataclasses import asdict

import pytest

from made_pairs import SAD, small_settings
from phantoms import make_phantom
from regweave.cli import main
from regweave.errors import EXIT_VERDICT
from regweave.io import write_image, write_labels
from regweave.measures.verdict import default_rules, read_rules

SETTINGS = small_settings((48.0, 1, 1), refine=2, banks={"mr": [SAD]}).toml()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A pair whose moving labels have a structure that the fixed ones lack."""
    folder = tmp_path_factory.mktemp("inputs")
    pair = make_phantom(seed=1, shape=(24, 24, 24), spacing_mm=(8.0, 8.0, 8.0)).pair
    for name in ("fixed", "moving"):
        write_image(folder / f"{name}.nii.gz", getattr(pair, name))
        labels = getattr(pair, f"{name}_labels")
        data = labels.data.copy()
        data[data == 6] = 0 if name == "fixed" else 6
        write_labels(folder / f"{name}_labels.nii.gz", type(labels)(data, labels.geometry))
    (folder / "small.toml").write_text(SETTINGS)
    return folder


def register(inputs, *words):
    labels = [f"--{name}-labels={inputs / name}_labels.nii.gz" for name in ("fixed", "moving")]
    images = [str(inputs / "fixed.nii.gz"), str(inputs / "moving.nii.gz")]
    return main(["register", *images, *labels, "--config", str(inputs / "small.toml"), *map(str, words)])


def test_the_printed_rules_are_the_shipped_ones_and_a_file_is_checked(tmp_path, capsys, inputs):
    assert main(["rules"]) == 0
    (tmp_path / "mine.toml").write_text(capsys.readouterr().out)
    assert read_rules(tmp_path / "mine.toml") == default_rules()
    assert main(["rules", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == asdict(default_rules())
    path = tmp_path / "mine.toml"
    path.write_text("[vanished_structures]\nlook = 2\n")
    assert main(["rules", str(path)]) == 0
    assert capsys.readouterr().out == "vanished_structures: look above 2\n"
    path.write_text("[vanished]\nlook = 2\n")
    assert main(["rules", str(path)]) == 2
    assert "error E177" in capsys.readouterr().err
    assert register(inputs, "-o", tmp_path / "out", "--rules", path) == 2
    assert "E177" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_structure_without_a_fixed_contour_does_not_fail_the_pair(inputs, tmp_path, capsys):
    assert register(inputs, "-o", tmp_path / "out", "--write", "transform") == 0
    out = capsys.readouterr().out
    assert "no fixed contour" in out
    assert "verdict     pass" in out
    lines = out.splitlines()
    assert lines[-1].startswith("solver      within ")
    assert "says nothing about anatomy" in lines[-1]
    assert "certified" not in out
    record = json.loads((tmp_path / "out" / "result.json").read_text())
    landmarks = ["landmark_mean_mm", "landmark_max_mm"]
    assert record["verdict"] == {"verdict": "pass", "reasons": [], "unchecked": landmarks, "rules": "default"}
    assert "not checked: landmarks (none given: --fixed-points, --moving-points)" in " ".join(out.split())
    assert record["rules"] == asdict(default_rules())


def test_rules_of_a_department_decide_terminal_record_and_page(inputs, tmp_path, capsys):
    path = tmp_path / "dept.toml"
    path.write_text("[least_structure_dice]\nlook = 0.99\n[surface_distance_mm]\nfail = 0.01\n")
    assert register(inputs, "-o", tmp_path / "out", "--rules", path) == 0
    out = capsys.readouterr().out
    words = ("--rules", path, "--write", "transform", "--overwrite", "--strict")
    for more, status in ((("--quiet",), EXIT_VERDICT), (("--json",), EXIT_VERDICT)):
        assert register(inputs, "-o", tmp_path / "strict", *words, *more) == status
        assert "verdict     fail: largest HD95 of a structure: " in capsys.readouterr().err
    assert (tmp_path / "strict" / "result.json").exists()
    assert register(inputs, "-o", tmp_path / "strict", *words[2:], "--quiet") == 0  # the shipped rules
    assert capsys.readouterr().err == ""
    assert "verdict     fail: largest HD95 of a structure: " in out
    assert "lowest Dice of a structure: " in out
    verdict = json.loads((tmp_path / "out" / "result.json").read_text())["verdict"]
    assert [r["rule"] for r in verdict["reasons"]] == ["surface_distance_mm", "least_structure_dice"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "✗ fail" in page
    assert all(r["text"] in page for r in verdict["reasons"])


def test_a_record_that_is_run_again_is_judged_by_its_rules(inputs, tmp_path, capsys):
    path = tmp_path / "dept.toml"
    path.write_text("[least_structure_dice]\nlook = 0.99\n")
    assert register(inputs, "-o", tmp_path / "one", "--rules", path, "--write", "transform", "--quiet") == 0
    path.unlink()
    words = ["register", "--from", str(tmp_path / "one"), "-o"]
    assert main([*words, str(tmp_path / "two"), "--write", "transform", "--quiet"]) == 0
    one, two = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("one", "two"))
    assert one["verdict"] == two["verdict"]
    limits = {"least_structure_dice": {"look": 0.99}}
    assert two["rules"] == {"name": "dept", "limits": limits, "sources": {}, "reference": None}
    capsys.readouterr()
    (tmp_path / "one" / "result.json").write_text(json.dumps({**one, "rules": {"name": "x", "limits": {"y": {}}}}))
    assert main([*words, str(tmp_path / "three")]) == 3
    assert "E178" in capsys.readouterr().err


def test_rules_where_there_is_no_verdict(tmp_path, capsys):
    (tmp_path / "demo.json").write_text("{}")
    path = tmp_path / "mine.toml"
    path.write_text("[vanished_structures]\nlook = 2\n")
    assert main(["report", str(tmp_path), "--rules", str(path)]) == 2
    assert "E192" in capsys.readouterr().err
