"""Models from strangers: every number of the file is checked when it is read, and named by its key."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from regweave.config.settings import describe_problems
from regweave.errors import RegweaveError, UsageError
from regweave.model import shipped_models
from regweave.model.model import Model
from regweave.model.record import ModelFile

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


def in_weights(**rows: Any) -> dict[str, Any]:
    return {"weights": {**SHIPPED["weights"], **rows}}


CASES: list[tuple[dict[str, Any], str]] = [
    ({"classes": [0, 1, 2]}, "classes: Input should be a valid dictionary"),
    ({"classes": {**CLASSES, "1": ["x"]}}, "classes.1: Input should be a valid string"),
    ({"classes": {**CLASSES, "1": "x" * 5000}}, "classes.1: String should have at most 200"),
    (with_class("-1"), "found '-1', allowed: whole numbers"),
    (with_class(str(2**70)), "found '1180591620717411303424', allowed: whole numbers"),
    (with_class(str(2**63)), "less than or equal to 9223372036854775807"),
    (with_class("²"), "found '²', allowed: whole numbers"),
    (with_class("01"), "found '01', allowed: whole numbers"),
    ({"classes": {str(n): "x" for n in range(5000)}}, "classes: Dictionary should have at most 4096 items"),
    ({"classes": {c: n for c, n in CLASSES.items() if c != "0"}}, "classes must hold 0"),
    ({"evidence": []}, "evidence: Input should be a valid dictionary"),
    ({"modality": 7}, "modality: Input should be 'ct', 'mr' or 'multi'"),
    ({"levels": "some"}, "levels: Input should be 'all' or 'finest'"),
    ({"outline_without_mask": 1}, "outline_without_mask: Input should be a valid boolean"),
    ({"settings": None}, "settings: Input should be a valid dictionary"),
    ({"pairwise": 1e308}, "pairwise: Input should be less than or equal to 1000000, found 1e+308"),
    ({"pairwise": -1}, "pairwise: Input should be greater than or equal to 0, found -1"),
    ({"pairwise": NAN}, "pairwise: Input should be a finite number, found nan"),
    ({"pairwise": True}, "pairwise: Input should be a valid number"),
    ({"pairwise": "0.5"}, "pairwise: Input should be a valid number"),
    ({"weights": []}, "weights: Input should be a valid dictionary"),
    ({"weights": {}}, "all weights are 0"),
    ({"weights": {m: dict.fromkeys(CLASSES, 0) for m in SHIPPED["weights"]}}, "all weights are 0"),
    (in_weights(**{MEMBER: dict.fromkeys(CLASSES, 1e308)}), f"weights.{MEMBER}.0: Input should be less than"),
    (in_weights(**{MEMBER: dict.fromkeys(CLASSES, -NAN)}), f"weights.{MEMBER}.0: Input should be a finite number"),
    (in_weights(**{MEMBER: {"0": 1.0}}), "has no number for class 1"),
    (in_weights(**{MEMBER: 1.0}), f"weights.{MEMBER}: Input should be a valid dictionary"),
    (
        {"weights": {f"m{n}": dict.fromkeys(CLASSES, 1) for n in range(99)}},
        "weights: Dictionary should have at most 32",
    ),
    ({"stiffness": {"1": 0.0}}, "stiffness.1: Input should be greater than or equal to 0.001, found 0.0"),
    ({"stiffness": {"9": 1.0}}, "stiffness has the class 9, allowed: 0, 1, 2"),
    ({"stiffness": [1.0]}, "stiffness: Input should be a valid dictionary"),
    ({"scales": [[1.0] * 3]}, "scales: Input should be None"),
    *(
        (in_predictor(voxel_mm=v), f"class_predictor: voxel_mm: Input should be {says}")
        for v, says in ((0, "greater"), (-1, "greater"), (1e300, "less"), (1e-300, "greater"), (NAN, "a finite"))
    ),
    (in_predictor(names=[]), "class_predictor: names: Input should be a valid dictionary"),
    (in_predictor(kind="forest", forest={"w": [1.0]}), "unknown predictor 'forest'"),
    (in_perceptron(hidden=None), "class_predictor.perceptron.hidden has shape ()"),
    (in_perceptron(hidden=[[1.0], [1.0, 2.0]]), "perceptron.hidden is no array"),
    (in_perceptron(output="x"), "perceptron.output is no array"),
    (in_perceptron(output_bias=[1e308]), "perceptron.output_bias has shape (1,) or a number beyond ±1e+06"),
    (in_perceptron(output_bias=[NAN, 0.0, 0.0]), "perceptron.output_bias has shape (3,) or a number beyond"),
    (in_perceptron(hidden_bias=[]), "perceptron.hidden_bias"),
    ({"class_predictor": []}, "class_predictor: Input should be a valid dictionary"),
    ({"class_predictor": {}}, "malformed ('perceptron')"),
    *(
        (in_predictor(classes=given), "0 first, ascending, each once")
        for given in ([3, 2, 1, 0], [0, 1, 2, 2], [0, 3, 2, 1], [1, 2, 3])
    ),
    (in_predictor(classes=[0, 1, 2, 3.0]), "class_predictor: classes.3: Input should be a valid integer"),
    (in_predictor(classes="0123"), "class_predictor: classes: Input should be a valid tuple"),
]


def test_numbers_outside_their_range_are_named():
    for change, message in CASES:
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            read({**SHIPPED, **change})
        assert len(str(caught.value)) < 1500, message


def read(content: dict[str, Any]) -> None:
    """Read a model from content that JSON cannot hold everywhere, with the error that a file gives."""
    try:
        Model._of(ModelFile.model_validate(content), None)
    except ValidationError as error:
        raise ValueError(describe_problems(error)) from error
    except (KeyError, UsageError) as error:
        raise ValueError(f"malformed ({error})") from error


def test_a_file_with_a_bad_number_is_named(tmp_path):
    path = tmp_path / "m.json"
    for change in ({"pairwise": -1}, {"classes": {**CLASSES, "x" * 5000: "x"}}, {"class_predictor": {}}):
        path.write_text(json.dumps({**SHIPPED, **change}), encoding="utf-8")
        with pytest.raises(RegweaveError, match="E170") as caught:
            Model.load(path)
        assert str(path) in caught.value.message
        assert len(caught.value.message) < 600 + len(str(path))


def test_shipped_models_lie_within():
    for name in shipped_models():
        assert Model.load(name).weights.matrix.any()
