"""Models from strangers: every number of the file is checked when it is read, and named by its key."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from regweave.config.settings import BANKS
from regweave.errors import RegweaveError
from regweave.model import shipped_models
from regweave.model.archive import MODALITIES, check_arrays, check_model
from regweave.model.model import Model
from regweave.predictors import Parts

SHIPPED = json.loads(Path(__file__).with_name("tissue.json").read_text(encoding="utf-8"))
MEMBER = next(iter(SHIPPED["weights"]))
NAN = float("nan")
CLASSES = SHIPPED["classes"]


def with_class(key: str) -> dict[str, Any]:
    weights = {m: {**row, key: 1.0} for m, row in SHIPPED["weights"].items()}
    return {"classes": {**CLASSES, key: "x"}, "weights": weights}


def in_predictor(**changes: Any) -> dict[str, Any]:
    return {"class_predictor": {**SHIPPED["class_predictor"], **changes}}


def in_perceptron(**changes: Any) -> dict[str, Any]:
    return in_predictor(perceptron={**SHIPPED["class_predictor"]["perceptron"], **changes})


CASES: list[tuple[dict[str, Any], str]] = [
    ({"classes": [0, 1, 2]}, "classes is [0, 1, 2], not a table"),
    ({"classes": None}, "classes is None"),
    ({"classes": {**CLASSES, "1": ["x"]}}, "classes['1'] is ['x']"),
    ({"classes": {**CLASSES, "1": "x" * 5000}}, "at most 200 characters"),
    (with_class("-1"), "classes has the key '-1'"),
    (with_class(str(2**70)), "classes has the key '1180591620717411303424'"),
    (with_class("²"), "classes has the key '²'"),
    ({"classes": {str(n): "x" for n in range(5000)}}, "classes has 5000 entries"),
    ({"evidence": []}, "evidence is [], not a table"),
    ({"evidence": "x"}, "evidence is 'x', not a table"),
    ({"modality": 7}, "modality is 7, allowed: ct, mr, multi"),
    ({"modality": ["mr"]}, "modality is ['mr']"),
    ({"modality": "pet"}, "modality is 'pet'"),
    ({"settings": None}, "settings is None, not a table"),
    ({"pairwise": 1e308}, "pairwise is 1e+308, allowed: a number from 0 to 1e+06"),
    ({"pairwise": -1}, "pairwise is -1"),
    ({"pairwise": True}, "pairwise is True"),
    ({"pairwise": "0.5"}, "pairwise is '0.5'"),
    ({"weights": []}, "weights is [], not a table"),
    ({"weights": {}}, "weights are all 0"),
    ({"weights": {m: dict.fromkeys(CLASSES, 0) for m in SHIPPED["weights"]}}, "weights are all 0"),
    ({"weights": {**SHIPPED["weights"], MEMBER: dict.fromkeys(CLASSES, 1e308)}}, f"weights['{MEMBER}']['0'] is 1e+308"),
    ({"weights": {**SHIPPED["weights"], MEMBER: dict.fromkeys(CLASSES, -1e300)}}, "is -1e+300"),
    ({"weights": {**SHIPPED["weights"], MEMBER: {"0": 1.0}}}, "has no number for class 1"),
    ({"weights": {**SHIPPED["weights"], MEMBER: 1.0}}, "not a table of classes"),
    ({"weights": {f"m{n}": dict.fromkeys(CLASSES, 1) for n in range(99)}}, "weights has 99 entries"),
    ({"scales": [[1.0] * 3]}, "scales is [[1.0, 1.0, 1.0]], allowed: null"),
    *(
        (in_predictor(voxel_mm=v), f"class_predictor.voxel_mm is {v}, allowed: a number from 0.0001 to 1000")
        for v in (0, -1, 1e300, 1e-300, 1e6)
    ),
    (in_predictor(names=[]), "names is [], not a table"),
    (in_perceptron(hidden=None), "class_predictor.perceptron.hidden has shape ()"),
    (in_perceptron(hidden=[[1.0], [1.0, 2.0]]), "perceptron.hidden is no array"),
    (in_perceptron(output="x"), "perceptron.output is no array"),
    (in_perceptron(output_bias=[1e308]), "perceptron.output_bias has shape (1,) or a number beyond ±1e+06"),
    (in_perceptron(hidden_bias=[]), "perceptron.hidden_bias"),
    ({"class_predictor": []}, "class_predictor is [], not a table"),
    ({"class_predictor": {}}, "malformed ('perceptron')"),
]


@pytest.mark.parametrize(("change", "says"), CASES, ids=[f"{n}-{says[:40]}" for n, (_, says) in enumerate(CASES)])
def test_numbers_outside_their_range_are_named(change, says, tmp_path):
    path = tmp_path / "m.json"
    path.write_text(json.dumps({**copy.deepcopy(SHIPPED), **change}), encoding="utf-8")
    with pytest.raises(RegweaveError, match=re.escape(says)) as caught:
        Model.load(path)
    assert caught.value.code == "E170"
    assert str(path) in caught.value.message
    assert len(caught.value.message) < 600 + len(str(path))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"pairwise": NAN}, "pairwise is nan"),
        ({"weights": {**SHIPPED["weights"], MEMBER: dict.fromkeys(CLASSES, -NAN)}}, "weights"),
        (in_predictor(voxel_mm=NAN), "voxel_mm is nan"),
        (in_perceptron(output_bias=[NAN, 0.0, 0.0]), "output_bias"),
    ],
)
def test_what_is_no_number_lies_in_no_range(change, key):
    content = {**SHIPPED, **change}

    def check():
        check_model(content)
        check_arrays(Parts.from_json(content["class_predictor"]))

    with pytest.raises(ValueError, match=key):
        check()


def test_modalities_are_the_banks_of_the_settings():
    assert set(MODALITIES) == set(BANKS)


@pytest.mark.parametrize("name", sorted(shipped_models()))
def test_shipped_models_lie_within(name):
    assert Model.load(name).weights.matrix.any()
