"""Records of demos from strangers: a page, or a code; and nothing written anywhere else."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest

from regweave.cli import main
from regweave.errors import RegweaveError
from regweave.report import demo
from regweave.study.demo import ColumnSummary, DemoSummary, PairedComparison

SUMMARY = DemoSummary(
    source="phantoms",
    n_train=4,
    n_test=2,
    n_patients=2,
    structures=["cord"],
    dice={"before": [0.4, 0.4], "learned": [0.8, 0.8], "sad alone": [0.5, None]},
    learned="learned",
    best_single="sad alone",
    against=[PairedComparison(method="sad alone", difference=0.3, better=2, worse=0, pairs=2)],
    trust=[
        ColumnSummary(name="background", shares={"sad": 0.5, "mi": 0.5}, used=True, right=None),
        ColumnSummary(name="cord", shares={"sad": 0.1, "mi": 0.9}, used=True, right="mi"),
    ],
    gain=0.1,
    shown={"a": 0.8},
    failures=[],
)
STRANGE = (None, True, "x", -1, 3.5, 1e99, [], {"a": 1}, [[]], [1, 2])
GONE = object()


def places(value: object, path: tuple = ()):
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield from places(below, (*path, key))


def changed(record: dict, path: tuple, value: object) -> dict:
    out = copy.deepcopy(record)
    inner = out
    for key in path[:-1]:
        inner = inner[key]
    if value is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return out


def outcomes(record: dict, file: Path, write, chosen) -> set[str]:
    found = set()
    for path, value in chosen:
        file.write_text(json.dumps(changed(record, path, value)))
        try:
            write(file.parent)
        except RegweaveError as error:
            found.add(error.code)
        else:
            found.add("")
    return found


def test_a_demo_of_a_stranger(tmp_path):
    record = SUMMARY.model_dump()
    every = [(path, value) for path in places(record) for value in (*STRANGE, GONE)]
    chosen = [every[i] for i in np.random.default_rng(0).choice(len(every), 150, replace=False)]
    assert outcomes(record, tmp_path / "demo.json", demo.write_page, chosen) == {"", "E178"}


@pytest.mark.parametrize("name", ["../../../x", "a/b", "", ".."])
def test_a_demo_names_no_page_elsewhere(tmp_path, capsys, name):
    record = {**SUMMARY.model_dump(), "shown": {name: 0.8}}
    (tmp_path / "demo.json").write_text(json.dumps(record))
    assert main(["report", str(tmp_path)]) == 3
    assert "the name is not one that regweave gives" in capsys.readouterr().err
