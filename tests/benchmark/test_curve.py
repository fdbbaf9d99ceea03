"""Curve over the number of people: who trains, who tests, and what is drawn."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmark"))
import curve
from regweave.datasets.manifest import PairFiles
from regweave.jobs.store import Outcome

FOLDS = {f"hippocampus_{n:03d}": (n + 1) // 2 % 5 for n in range(1, 41)}  # two crops of each person, in one fold


@pytest.fixture
def _split(monkeypatch):
    monkeypatch.setattr(curve, "folds_of", lambda set_name, seed: FOLDS)


@pytest.mark.usefixtures("_split")
def test_a_larger_number_only_adds_people_and_none_is_for_the_test():
    found = curve.sizes("msd_hippocampus", (4, 8, 99), 0)
    assert list(found) == [4, 8, 16]
    people = {n: {curve.subject_of(case) for case in cases} for n, cases in found.items()}
    assert {n: len(of) for n, of in people.items()} == {4: 4, 8: 8, 16: 16}
    assert people[4] < people[8] < people[16]
    tested = {curve.subject_of(case) for case, fold in FOLDS.items() if fold == curve.TEST_FOLD}
    assert not people[16] & tested
    assert len(found[16]) == 32  # both crops of a person


def test_scores_are_those_of_each_method():
    pairs = [PairFiles(f"p{n}", *[Path("x")] * 4, f"g{n}") for n in range(3)]

    def run(plan, dice_only):
        values = {"default": 0.5, "4/mask": 0.75}
        rows = [values[key.rsplit("/", 1)[0]] for key, _, _ in plan]
        labels = [{"labels": {"1": {"state": "scored", "dice_after": v, "dice_before": 0.1}}} for v in rows]
        return [Outcome(key, value) for (key, _, _), value in zip(plan, labels, strict=True)]

    found = curve.judged({"default": None, "4/mask": None}, pairs, run)
    assert {name: scores["mean"] for name, scores in found.items()} == {"default": 0.5, "4/mask": 0.75}
    assert list(found["4/mask"]["dice"]) == ["p0", "p1", "p2"]


def test_the_picture_and_the_table_say_what_the_files_say(tmp_path, monkeypatch):
    monkeypatch.setattr(curve, "CHART", tmp_path / "patients.svg")
    cell = {"low": 0.7, "high": 0.9}
    scores = {"default": {"mean": 0.6}} | {
        f"{n}/{way}": {"mean": mean, **cell} for n, way, mean in ((4, "mask", 0.71), (4, "no mask", 0.72),
                                                                  (8, "mask", 0.81), (8, "no mask", 0.82))
    }  # fmt: skip
    path = tmp_path / "curve-x.json"
    path.write_text(json.dumps({"data": "brains", "people": [4, 8], "scores": scores}))
    table = curve.draw([path])
    assert "| brains | 8 | 0.820 [0.700, 0.900] | 0.810 [0.700, 0.900] | 0.600 |" in table
    picture = (tmp_path / "patients.svg").read_text()
    assert picture.count("<polyline") == 2
    assert "brains, no mask" in picture


def test_what_was_judged_without_the_mask_alone_leaves_the_other_column_empty(tmp_path, monkeypatch):
    monkeypatch.setattr(curve, "CHART", tmp_path / "patients.svg")
    scores = {"default": {"mean": 0.6}, "4/no mask": {"mean": 0.72, "low": 0.7, "high": 0.9}}
    path = tmp_path / "curve-x.json"
    path.write_text(json.dumps({"data": "brains", "people": [4], "scores": scores}))
    assert "| brains | 4 | 0.720 [0.700, 0.900] | – | 0.600 |" in curve.draw([path])
    assert "brains, mask" not in (tmp_path / "patients.svg").read_text()
