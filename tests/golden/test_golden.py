"""Presets and shipped models give what they gave: a change of numbers is seen, and meant."""

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


# The network of one model looks at a whole head for minutes; on smaller images it is looked at each time.
LONG = ("hippocampus-t1 on head-neck without moving mask", "hippocampus-t1 on head-neck with masks")
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in CASES]


@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_the_record(name):
    found = golden.numbers(CASES[name]())
    changed = golden.differences(RECORD["cases"][name], found, same_machine=RECORD["machine"] == golden.machine())
    assert not changed, f"{name} changed: {'; '.join(changed)}; {HINT}"


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return golden.chain.texts(tmp_path_factory.mktemp("chain"))


@pytest.mark.parametrize("name", golden.chain.NAMES)
def test_records_and_pages_say_what_they_said(name, texts):
    frozen = (golden.chain.TEXTS / name).read_text(encoding="utf-8")
    changed = golden.change(frozen, texts[name], same_machine=RECORD["machine"] == golden.machine())
    assert not changed, f"{name} changed:\n{changed}\n{HINT}"


def test_a_change_of_a_text_is_told():
    old = "Dice 0.512\n| a | 3\n"
    assert golden.change(old, old, same_machine=True) == ""
    assert "+Dice 0.513" in golden.change(old, old.replace("0.512", "0.513"), same_machine=True)
    assert golden.change(old, old.replace("0.512", "0.513"), same_machine=False) == ""
    assert "-Dice N" in golden.change(old, old.replace("Dice", "Overlap"), same_machine=False)


def test_a_page_is_read_as_it_is_seen(tmp_path):
    page = tmp_path / "page.html"
    rows = "<tr><th>step<th>seconds</tr><tr><td>a<b>b</b></td><td>0.31</td></tr>"
    drawing = "<svg><title>Gain</title><path d=''/></svg>"
    page.write_text(
        f"<style>x</style><h1>One &amp; two</h1><p>in 3.2 s<table>{rows}</table>{drawing}<script>y</script>"
    )
    lines = ["One & two", "in N s", "| step | seconds", "| ab | N", "Gain", "[drawing: 1 path, 1 title]"]
    assert golden.page_text(page, tmp_path).splitlines() == lines


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
