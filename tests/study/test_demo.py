"""Where the scans of a demo come from, and the summary of its numbers."""

import numpy as np
import pytest
from making import evaluation

from phantoms import make_phantom
from regweave.errors import RegweaveError
from regweave.io import read_labels
from regweave.io.disk.records import DEMO, read_record, write_record
from regweave.jobs.table import read_pairs
from regweave.model.model import Model
from regweave.model.record import TrainingRecord
from regweave.study.demo import SETTINGS, DemoSummary, make_cohort, summarise
from regweave.types import WeightTable


def tiny(seed):
    return make_phantom(seed=seed % 100, shape=(16, 16, 16), spacing_mm=(12.0, 12.0, 12.0)).pair


def patients(path):
    return {name for pair in read_pairs(path) for name in pair.patients}


def test_a_cohort_has_two_lists_without_a_patient_in_common(tmp_path):
    train, test = make_cohort(tmp_path / "scans", 1, n_train=2, n_test=1, make=tiny)
    assert patients(train) == {"train01", "train02"}
    assert patients(test) == {"test01"}
    first, second = read_pairs(train)
    assert read_labels(first.moving_labels).names[3] == "mandible"
    assert first.moving.read_bytes() != second.moving.read_bytes()
    more = make_cohort(tmp_path / "b", 1, n_train=1, n_test=1, make=tiny)[1]  # held-out patients stay the same
    one, other = (read_labels(read_pairs(found)[0].fixed_labels) for found in (test, more))
    np.testing.assert_array_equal(one.data, other.data)


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
    return summarise(found, model, 3)


def test_gains_and_losses_are_told_alike():
    win, loss = summary((0.9, 0.8), (0.7, 0.7)), summary((0.6, 0.8), (0.9, 0.9))
    assert "from 0.400 to 0.850" in win.sentences()[0]
    assert "better by 0.150, better on 2 of 2 pairs and worse on 0" in win.sentences()[1]
    assert "worse by 0.200, better on 0 of 2 pairs and worse on 2" in loss.sentences()[1]
    assert "the best in every structure: mi for organ" in win.sentences()[2]
    assert win.sentences()[3].endswith("within 0.01, in 1 of 1 structures.")
    assert loss.sentences()[3].endswith("in 0 of 1 structures; they are below it in organ (0.700, mi alone 0.900).")
    assert summary((0.9, 0.8), (0.3, 0.3)).best_single == "mi alone"  # chosen on training pairs
    assert len(win.sentences()) == len(loss.sentences()) == 6
    assert loss.best_singles() == {"organ": ("mi alone", pytest.approx(0.9), pytest.approx(0.7))}
    found = summary((0.9, 0.8), (0.7, 0.7), gain=None, failed=True)
    assert any("did not gain" in line for line in found.sentences())
    assert any("1 registrations failed" in line for line in found.sentences())
    assert found.dice["learned"] == [0.8, 0.8]


def test_the_shares_of_each_class_and_the_way_through_a_file(tmp_path):
    found = summary((0.9, 0.8), (0.7, 0.7))
    assert list(found.shares) == ["background", "organ"]
    assert found.uniform == ["background"]
    assert found.shares["organ"] == {"sad": 0.75, "mi": 0.25}
    write_record(tmp_path / DEMO, found.model_dump())
    assert read_record(DemoSummary, tmp_path / DEMO) == found
    assert found.shown == {"b": 0.8, "a": 0.9}
    for text, code in (("{", "E102"), ("[]", "E102"), ("{}", "E178"), ('{"source": 1}', "E178")):
        (tmp_path / DEMO).write_text(text)
        with pytest.raises(RegweaveError, match=code):
            read_record(DemoSummary, tmp_path / DEMO)
    with pytest.raises(RegweaveError, match="E101"):
        read_record(DemoSummary, tmp_path / "none" / DEMO)
