"""Where the scans of a demo come from, and the summary of its numbers."""

from pathlib import Path

import numpy as np
import pytest
from making import evaluation

from phantoms import make_phantom
from regweave.errors import RegweaveError
from regweave.io import read_labels
from regweave.io.disk.records import DEMO, read_record
from regweave.jobs.table import read_pairs
from regweave.model.model import Model
from regweave.model.record import TrainingRecord
from regweave.study.demo import SETTINGS, DemoSummary, Lists, make_cohort, split_folder, summarise
from regweave.types import WeightTable


def tiny(seed):
    return make_phantom(seed=seed % 100, shape=(16, 16, 16), spacing_mm=(12.0, 12.0, 12.0)).pair


def cases(folder, *names):
    for name in names:
        (folder / name).mkdir(parents=True)
        for part in ("image", "labels"):
            (folder / name / f"{part}.nii.gz").write_bytes(b"x")
    return folder


def patients(path):
    return {name for pair in read_pairs(path) for name in pair.patients}


def test_a_cohort_has_two_lists_without_a_patient_in_common(tmp_path):
    lists = make_cohort(tmp_path / "scans", 1, n_train=2, n_test=1, make=tiny)
    assert patients(lists.train) == {"train01", "train02"}
    assert patients(lists.test) == {"test01"}
    first, second = read_pairs(lists.train)
    assert read_labels(first.moving_labels).names[3] == "mandible"
    assert first.moving.read_bytes() != second.moving.read_bytes()


def test_held_out_patients_do_not_depend_on_the_number_trained_on(tmp_path):
    few = make_cohort(tmp_path / "a", n_train=1, n_test=1, make=tiny)
    more = make_cohort(tmp_path / "b", n_train=2, n_test=1, make=tiny)
    one, other = (read_labels(read_pairs(lists.test)[0].fixed_labels) for lists in (few, more))
    np.testing.assert_array_equal(one.data, other.data)


def test_cases_become_couples_and_the_halves_share_none(tmp_path):
    data = cases(tmp_path / "data", *"abcdefgh")
    (data / "notes").mkdir()
    lists = split_folder(data, tmp_path / "lists")
    assert [pair.id for pair in read_pairs(lists.train)] == ["b-to-a", "a-to-b", "d-to-c", "c-to-d"]
    assert patients(lists.test) == set("efgh")
    assert "8 of 8 cases" in lists.source


def test_six_cases_leave_two_couples_to_learn_from(tmp_path):
    lists = split_folder(cases(tmp_path / "data", *"abcdefg"), tmp_path / "lists")
    assert patients(lists.train) == set("abcd")
    assert patients(lists.test) == set("ef")
    assert "6 of 7 cases" in lists.source


def test_no_more_than_twenty_cases_are_taken(tmp_path):
    lists = split_folder(cases(tmp_path / "data", *(f"c{i:02d}" for i in range(30))), tmp_path / "lists")
    assert len(patients(lists.train)) == len(patients(lists.test)) == 10
    assert "20 of 30 cases" in lists.source


def test_a_list_is_split_by_patient(tmp_path):
    data = cases(tmp_path / "data", "x")
    line = "x/image.nii.gz,x/image.nii.gz,x/labels.nii.gz,x/labels.nii.gz"
    rows = [f"p{i}{scan},{line},g{i}" for i in range(4) for scan in "ab"]
    (data / "PAIRS.csv").write_text("\n".join(["id,fixed,moving,fixed_labels,moving_labels,group", *rows]) + "\n")
    lists = split_folder(data, tmp_path / "lists")
    assert len(patients(lists.train)) == len(patients(lists.test)) == 2
    assert not patients(lists.train) & patients(lists.test)


@pytest.mark.parametrize("names", [(), ("a", "b", "c", "d", "e")])
def test_too_few_cases_are_an_error(tmp_path, names):
    with pytest.raises(RegweaveError, match="E138"):
        split_folder(cases(tmp_path / "data", *names), tmp_path / "lists")


def summary(learned, single, *, gain=0.1, failed=False):
    """Summarise two pairs with given Dice."""
    weights = WeightTable(np.array([[0.5, 0.75], [0.5, 0.25]]), ("sad", "mi"), (0, 4), 0.1)
    gates = {"0": {"used": False}, "4": {"used": True}}
    record = TrainingRecord(gates=gates, left_out_gain=None if gain is None else {"mean": gain})
    model = Model(weights, SETTINGS, "mr", {0: "background", 4: "organ"}, training=record)
    tuning = {"uniform": {0.1: 0.6}, "single:sad": {0.1: 0.7}, "single:mi": {0.1: 0.5, 0.2: 0.8}}
    methods = {
        name: {"tuning": [{"smoothness": s, "mean_dice": d} for s, d in of.items()]} for name, of in tuning.items()
    }
    methods["model:weights"] = {"model": {"file": "weights.json", "sha256": "0"}}
    dice = {"uniform": (0.6, 0.6), "single:sad": (0.5, 0.5), "single:mi": single, "model:weights": learned}
    found = evaluation(dice, failed={("model:weights", "a")} if failed else (), methods=methods)
    lists = Lists(Path("train.csv"), Path("test.csv"), "x")
    worst = [row for row in found.results if (row.method, row.id) == ("model:weights", "a")]
    return summarise(found, model, lists, 3, worst)


def test_the_best_single_metric_is_chosen_on_training_pairs():
    assert summary((0.9, 0.8), (0.3, 0.3)).best_single == "mi alone"


def test_gains_and_losses_are_told_alike():
    win, loss = summary((0.9, 0.8), (0.7, 0.7)), summary((0.6, 0.8), (0.9, 0.9))
    assert "from 0.400 to 0.850" in win.sentences()[0]
    assert "better by 0.150, better on 2 of 2 pairs and worse on 0" in win.sentences()[1]
    assert "worse by 0.200, better on 0 of 2 pairs and worse on 2" in loss.sentences()[1]
    assert "the best in every structure: mi for organ" in win.sentences()[2]
    assert win.sentences()[3].endswith("within 0.01, in 1 of 1 structures.")
    assert loss.sentences()[3].endswith("in 0 of 1 structures; they are below it in organ (0.700, mi alone 0.900).")
    assert len(win.sentences()) == len(loss.sentences()) == 6
    assert loss.best_singles() == {"organ": ("mi alone", pytest.approx(0.9), pytest.approx(0.7))}


def test_nothing_learned_and_failures_are_said():
    found = summary((0.9, 0.8), (0.7, 0.7), gain=None, failed=True)
    assert any("did not gain" in line for line in found.sentences())
    assert any("1 registrations failed" in line for line in found.sentences())
    assert found.dice["learned"] == [0.8, 0.8]


def test_what_each_class_trusts_and_the_way_through_a_file(tmp_path):
    found = summary((0.9, 0.8), (0.7, 0.7))
    assert [(row.name, row.used) for row in found.trust] == [("background", False), ("organ", True)]
    assert found.trust[1].shares == {"sad": 0.75, "mi": 0.25}
    found.write(tmp_path)
    assert read_record(DemoSummary, tmp_path / DEMO) == found
    assert found.shown == {"a": 0.9}


@pytest.mark.parametrize(("text", "code"), [("{", "E102"), ("[]", "E102"), ("{}", "E178"), ('{"source": 1}', "E178")])
def test_a_damaged_summary_is_an_error_of_the_file(tmp_path, text, code):
    with pytest.raises(RegweaveError, match="E101"):
        read_record(DemoSummary, tmp_path / DEMO)
    (tmp_path / "demo.json").write_text(text)
    with pytest.raises(RegweaveError, match=code):
        read_record(DemoSummary, tmp_path / DEMO)
