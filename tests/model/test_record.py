"""The training record: JSON as it was read, typed parts, nothing of another kind."""

import json

import pytest
from pydantic import ValidationError

from regweave.model import shipped_models
from regweave.model.archive import is_archive, read_archive
from regweave.model.record import GateRecord, TrainingRecord


@pytest.mark.parametrize("name", sorted(shipped_models()))
def test_shipped_records_come_back_letter_by_letter(name):
    path = shipped_models()[name]
    text = read_archive(path)[0] if is_archive(path) else path.read_text(encoding="utf-8")
    evidence = json.loads(text)["evidence"]
    assert json.dumps(TrainingRecord.model_validate(evidence).to_json()) == json.dumps(evidence)


def test_what_is_missing_is_empty_and_stays_missing():
    record = TrainingRecord.model_validate({"groups": ["p1"], "mine": {"kept": [1]}})
    assert (record.method, record.gates, record.left_out_gain, record.judged) == (None, {}, None, False)
    assert record.to_json() == {"groups": ["p1"], "mine": {"kept": [1]}}
    assert TrainingRecord.model_validate({"left_out_gain": None}).judged


def test_columns_and_patients():
    record = TrainingRecord(
        groups=("p1+p2",), predictor_groups=("p3",), gates={"4": {"used": True}, "5": {"used": False}},
        strengths={"4": 2.0},
    )  # fmt: skip
    assert record.trained_on == ("p1+p2", "p3")
    assert [record.uses_column(c) for c in (0, 4, 5)] == [False, True, False]
    assert [record.strength(c) for c in (4, 5)] == [2.0, 1.0]


@pytest.mark.parametrize("part", [{"gates": {"1": 3}}, {"share": "half"}, {"learned": [["x"]]}])
def test_parts_of_another_kind_are_refused(part):
    with pytest.raises(ValidationError, match=next(iter(part))):
        TrainingRecord.model_validate(part)


def test_numbers_that_cannot_be_computed_are_null():
    record = TrainingRecord(share=float("nan"), gates={"1": GateRecord(gain=0.1, standard_error=float("inf"))})
    assert record.to_json() == {"share": None, "gates": {"1": {"gain": 0.1, "standard_error": None}}}
