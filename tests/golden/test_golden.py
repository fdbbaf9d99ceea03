"""Presets and shipped models give what they gave: a change of numbers is seen, and meant."""

from __future__ import annotations

import copy
import importlib.util
import json
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("golden_make", Path(__file__).with_name("make.py"))
assert SPEC is not None
assert SPEC.loader is not None
golden = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(golden)

RECORD = json.loads(golden.NUMBERS.read_text(encoding="utf-8"))
CASES = golden.cases()
HINT = "if that is meant, run `make golden`, look at what it says, and tell users in CHANGELOG.md"


def test_every_case_is_in_the_record():
    assert sorted(RECORD["cases"]) == sorted(CASES)


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_record(name):
    found = golden.numbers(CASES[name]())
    changed = golden.differences(RECORD["cases"][name], found, same_machine=RECORD["machine"] == golden.machine())
    assert not changed, f"{name} changed: {'; '.join(changed)}; {HINT}"


def test_a_change_is_told():
    name = next(iter(CASES))
    old = RECORD["cases"][name]
    assert golden.differences(old, old, same_machine=True) == []
    for key, value, says in (
        ("sha256", "0", "last bits"), ("modality", "pet", "modality"), ("mean_length_mm", 99.0, "mean_length_mm by"),
        ("energies", [1.0], "energies"), ("dice", {}, "Dice of 1"), ("displacement_mm", [[0, 0, 99]] * 24, "mm"),
    ):  # fmt: skip
        new = {**copy.deepcopy(old), key: value}
        assert any(says in text for text in golden.differences(old, new, same_machine=True)), key
    assert golden.differences(old, {**old, "sha256": "0"}, same_machine=False) == []
