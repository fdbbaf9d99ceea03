"""Kept numbers of a reproduction, and the page of the documentation that is made from them."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from regweave.config.settings import preset
from regweave.datasets.manifest import PairFiles
from regweave.jobs.store import Outcome
from regweave.model.model import Model
from regweave.report.reproduce.records import ReproduceRecord
from regweave.types import WeightTable

ROOT = Path(__file__).parents[2]


def load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script(in_process):
    in_process.setattr(sys, "path", [str(ROOT / "benchmark"), *sys.path])
    return load(ROOT / "benchmark" / "reproduced.py")


@pytest.fixture
def run(tmp_path) -> Path:
    """A run of one experiment with two splits, whose names must not get into the documentation."""
    experiment = load(ROOT / "tests" / "report" / "test_reproduce_page.py").experiment()
    experiment |= {"rules": {"patients": 18, "test_pairs": 72, "initial": None}, "cases_found": 52}
    experiment["cases"] = ["patient-jones"] * 8
    for row in experiment["results"]:
        row["id"], row["group"] = f"jones-{row['id']}", f"jones+{row['group']}"
        for scores in row["labels"].values():
            scores["state"] = "scored"
    content = {
        "experiment": "parotid",
        "quick": False,
        "max_pairs": 24,
        "models": ["mw", "joint"],
        "seed": 0,
        "experiments": [experiment],
    }
    content |= {"settings": {"name": "paper@1"}, "timing": {"parotid-time": {"model:mw": 0.5}}}
    (tmp_path / "reproduce.json").write_text(json.dumps(content))
    return tmp_path


def test_numbers_are_kept_and_the_page_is_made_of_them(script, run, tmp_path, monkeypatch):
    for name, path in (("RESULTS", tmp_path), ("ROOT", tmp_path), ("IMAGES", tmp_path), ("PAGE", tmp_path / "page.md")):
        monkeypatch.setattr(script, name, path)
    monkeypatch.setattr(sys.modules["_common"], "RESULTS", tmp_path)
    monkeypatch.setattr(sys.modules["_common"], "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmark/reproduced.py", "--run", str(run)])
    script.main()
    text = (tmp_path / "reproduced-paper1.json").read_text()
    kept = json.loads(text)
    assert "jones" not in text
    kept["experiments"][0]["anchored"] = {"n": 1, "mean_dice": 0.8, "minus": kept["experiments"][0]["mw_minus"]}
    (tmp_path / "reproduced-paper1.json").write_text(json.dumps(kept))
    script.keep(run, 0, 1)  # what was measured with the same models is kept
    again = json.loads((tmp_path / "reproduced-paper1.json").read_text())
    assert again["experiments"] == kept["experiments"]
    assert kept["experiments"][0]["mw_minus"]["model:joint"]["mean"] == pytest.approx(-0.01)
    assert next(c["what"] for c in kept["claims"]) == "MW − mean of single metrics, mean Dice, parotid-time, paper@1"
    page = (tmp_path / "page.md").read_text()
    assert "`regweave reproduce parotid --preset paper@1 --max-pairs 24 --model joint`, seed 0: `parotid-time`." in page
    assert "**Not finished: `parotid-between`.**" in page
    assert "| `parotid-time` | 2 of 2 | +0.035 | +0.019 to +0.033 | +0.020 | +0.010 | – | 0.50 |" in page
    assert "8 scans (52 cases found)" in page
    assert "0.788" in page
    for kind in ("dice", "weights"):
        assert f"(images/reproduced-paper1-parotid-time-{kind}.svg)" in page
        assert (tmp_path / f"reproduced-paper1-parotid-time-{kind}.svg").read_text().startswith("<svg")


def test_experiments_that_were_run_one_by_one_are_joined(script, run, tmp_path, monkeypatch):
    """A run adds its experiment to those of the same protocol, and replaces those of another."""
    for where in (script, sys.modules["_common"]):
        monkeypatch.setattr(where, "RESULTS", tmp_path)
        monkeypatch.setattr(where, "ROOT", tmp_path)
    path, source = tmp_path / "reproduced-paper1.json", run / "reproduce.json"
    script.keep(run, 0, 1)
    content = json.loads(source.read_text())
    content["experiments"][0]["name"] = "ibsr"
    source.write_text(json.dumps(content | {"experiment": "ibsr", "timing": {"ibsr": {"model:mw": 0.7}}}))
    script.keep(run, 0, 1)
    joined = json.loads(path.read_text())
    assert [e["name"] for e in joined["experiments"]] == ["ibsr", "parotid-time"]
    assert joined["experiment"] == "all"
    assert joined["timing"] == {"ibsr": {"model:mw": 0.7}, "parotid-time": {"model:mw": 0.5}}
    source.write_text(json.dumps(content | {"experiment": "ibsr", "max_pairs": 8}))
    script.keep(run, 0, 1)
    assert [e["name"] for e in json.loads(path.read_text())["experiments"]] == ["ibsr"]


def test_classes_at_the_nodes_are_measured_with_the_models_of_the_run(script, run, monkeypatch):
    """Only the place that tells the class is changed, and differences are those on the same pairs."""
    module = sys.modules["_reproduced_anchored"]
    settings = preset("paper@1")
    weights = WeightTable.constant({"sad": 1.0, "mi": 1.0}, 0.1, (0, 1, 2))
    seen = []

    class Runner:
        def __init__(self, reading, *_):
            assert reading.classes == (1, 2)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def __call__(self, plan, *, dice_only):
            assert dice_only
            seen.extend(method.tried.settings for _, method, _ in plan)
            scores = {"labels": {"1": {"dice_before": 0.5, "dice_after": 0.8}}}
            return [Outcome(key, scores) for key, _, _ in plan]

    listed = [PairFiles(f"jones-{i}1", *(Path("x"),) * 4, f"jones+{i}1") for i in "ab"]
    monkeypatch.setattr(module, "Runner", Runner)
    monkeypatch.setattr(module, "read_pairs", lambda path: listed if "fold1" in path.name else [])
    monkeypatch.setattr(module.Model, "load", lambda _: Model(weights, settings, "ct"))
    (experiment,) = module.content_of(run)["experiments"]
    found = module.anchored(run, experiment, 1, 1)
    assert [s.class_at for s in seen] == ["anchored"]
    assert settings.class_at == "displaced"
    assert found["n"] == 1
    assert found["mean_dice"] == pytest.approx(0.8)
    assert found["minus"]["model:mw"]["mean"] == pytest.approx(0.1)
    record = {
        "experiments": [{**script.kept_of(experiment), "anchored": found}],
        "quick": False,
        "seed": 0,
        "timing": {},
    }
    table = script.anchored_table(ReproduceRecord.model_validate({**record, "settings": {"name": "paper@1"}}))
    assert "| `parotid-time` | 1 | 0.800 | +0.100" in table


def test_without_any_run_it_says_what_to_do(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmark/reproduced.py"])
    with pytest.raises(SystemExit, match="--run"):
        script.main()
