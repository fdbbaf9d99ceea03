"""Model files: JSON and archive hold the same, the same bytes each time, and nothing of a stranger runs."""

import json
import re
import struct
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import save

from regweave.cli.models import as_dict, as_text
from regweave.config.settings import describe_problems
from regweave.errors import RegweaveError, UsageError
from regweave.model import archive, shipped_models
from regweave.model.archive import is_archive, read_archive
from regweave.model.model import Model
from regweave.model.record import GateRecord, ModelCard, ModelFile, RefinementRecord, StartTrial, TrainingRecord
from regweave.predictors import Parts
from regweave.predictors.unet import Network, NetworkPredictor, layer_shapes

TISSUE = Path(__file__).with_name("tissue.json")


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load(TISSUE)


def parts_of(path):
    with zipfile.ZipFile(path) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def pack(path, parts):
    with zipfile.ZipFile(path, "w") as opened:
        for name, content in parts.items():
            opened.writestr(name, content)


def test_an_archive_holds_the_same_in_the_same_bytes_whatever_its_name(model, tmp_path):
    model.save(tmp_path / "m.json")
    assert (tmp_path / "m.json").read_bytes() == TISSUE.read_bytes()
    model.save(tmp_path / "a.zip")
    model.save(tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    back = Model.load(tmp_path / "a.zip")
    back.save(tmp_path / "back.json")
    model.save(tmp_path / "m.json")
    assert (tmp_path / "back.json").read_bytes() == (tmp_path / "m.json").read_bytes()
    found = parts_of(tmp_path / "a.zip")
    assert sorted(found) == ["arrays.safetensors", "model.json"]
    assert json.loads(found["model.json"])["class_predictor"]["perceptron"] == {}
    model.save(tmp_path / "a.zip")
    (tmp_path / "a.zip").rename(tmp_path / "a.json")
    np.testing.assert_array_equal(Model.load(tmp_path / "a.json").weights.matrix, model.weights.matrix)
    replace(model, predictor=None).save(tmp_path / "a.zip")
    assert Model.load(tmp_path / "a.zip").predictor is None
    parts = model.predictor.save()
    whole, bare = Parts.from_json(parts.to_json()), Parts.from_json(parts.to_json(arrays=False), parts.arrays)
    assert whole.fields == bare.fields
    assert all((whole.arrays[name] == bare.arrays[name]).all() for name in parts.arrays)


def network(classes: tuple[int, ...], width: int) -> NetworkPredictor:
    rng = np.random.default_rng(0)
    shapes = layer_shapes(1, width, len(classes), 4)
    arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    return NetworkPredictor(classes, "mr", (1.0, 1.0, 1.0), Network.of(arrays, ((2, 2, 2),) * 3))


def test_a_network_travels_in_an_archive_of_few_megabytes_and_not_in_json(model, tmp_path):
    found = replace(model, predictor=network(model.weights.classes, 24))
    with pytest.raises(UsageError, match=r"E152.*m\.json would be JSON.*unet, holds 3284332 numbers") as caught:
        found.save(tmp_path / "m.json")
    assert "m.zip" in str(caught.value)
    assert not (tmp_path / "m.json").exists()
    found.save(tmp_path / "m.zip")
    assert (tmp_path / "m.zip").stat().st_size < 8_000_000
    back = Model.load(tmp_path / "m.zip").predictor
    assert back.save().identity() == found.predictor.save().identity()


def test_damaged_hostile_and_cut_archives_and_bombs_are_refused(model, tmp_path, monkeypatch):
    for change, says in [
        ({"model.json": b"{"}, "it is not JSON"),
        ({"more.txt": b""}, "allowed: model.json and arrays.safetensors"),
        ({"arrays.safetensors": b"\xff" * 40}, "arrays.safetensors is damaged"),
        ({"arrays.safetensors": struct.pack("<Q", 1 << 60) + b"{}"}, "arrays.safetensors is damaged"),
        ({"arrays.safetensors": save({"hidden": np.zeros((2, 2), np.int64)})}, "is int64, allowed: float16, float32"),
        ({"arrays.safetensors": save({"hidden": np.full((2, 2), np.nan)})}, "hidden has shape (2, 2) or a number"),
        ({"arrays.safetensors": save({"hidden": np.full((2, 2), np.inf, np.float16)})}, "hidden has shape (2, 2) or"),
        ({"arrays.safetensors": save({})}, "malformed ('hidden')"),
    ]:
        model.save(tmp_path / "a.zip")
        pack(tmp_path / "bad.zip", {**parts_of(tmp_path / "a.zip"), **change})
        with pytest.raises(RegweaveError) as caught:
            Model.load(tmp_path / "bad.zip")
        assert caught.value.code == "E170"
        assert says in caught.value.message
        assert "bad.zip" in caught.value.message
    model.save(tmp_path / "a.zip")
    (tmp_path / "bad.zip").write_bytes((tmp_path / "a.zip").read_bytes()[:-50])
    with pytest.raises(RegweaveError, match=r"E170.*the archive is damaged"):
        Model.load(tmp_path / "bad.zip")
    monkeypatch.setitem(archive.LONGEST, "model.json", 1 << 20)
    model.save(tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "bad.zip", "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("model.json", b" " * (1 << 24))
        opened.writestr("arrays.safetensors", parts_of(tmp_path / "a.zip")["arrays.safetensors"])
    assert (tmp_path / "bad.zip").stat().st_size < 1 << 20
    with pytest.raises(RegweaveError, match=r"E170.*model\.json is longer than 1048576 bytes"):
        Model.load(tmp_path / "bad.zip")


def test_one_damaged_byte_anywhere_is_refused_or_makes_no_difference(model, tmp_path):
    model.save(tmp_path / "m.zip")
    whole, refused = (tmp_path / "m.zip").read_bytes(), 0
    for place in range(0, len(whole), len(whole) // 150):
        (tmp_path / "x.zip").write_bytes(whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :])
        try:
            Model.load(tmp_path / "x.zip")
        except RegweaveError as error:
            assert error.code == "E170"  # noqa: PT017 - a byte of a date or an attribute is not read
            refused += 1
    assert refused > 100


def test_names_that_are_none_and_plug_ins_that_are_not_here(model, tmp_path):
    for given, says in [("head-nek-ct", "did you mean head-neck-ct?"), ("nope", "shipped: head-neck-ct, ")]:
        with pytest.raises(UsageError, match=f"E171: there is no model file '{given}' and no shipped model") as caught:
            Model.load(given)
        assert says in str(caught.value)
    model.save(tmp_path / "m.json")
    content = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))
    content["plugins"] = {"metrics/cubes": {"from": "x", "distribution": "regweave-cubes", "version": "0.3"}}
    content["settings"]["banks"]["mr"][0]["metric"] = "cubes"
    (tmp_path / "m.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UsageError, match=r"E169: .*m\.json needs the metric 'cubes' of package regweave-cubes 0\.3,"):
        Model.load(tmp_path / "m.json")


def test_stiffness_and_start_are_kept_and_shown(model, tmp_path):
    plain = as_text(Path("m.json"), model)
    assert "stiffness" not in plain
    assert as_dict(Path("m.json"), model)["stiffness"] is None
    stiff = replace(model, weights=replace(model.weights, stiffness=np.array([1.0, 4.0, 0.25, 2.0])))
    stiff.save(tmp_path / "m.json")
    again = Model.load(tmp_path / "m.json")
    np.testing.assert_array_equal(again.weights.stiffness, [1.0, 4.0, 0.25, 2.0])
    assert as_dict(Path("m.json"), again)["stiffness"] == {"0": 1.0, "1": 4.0, "2": 0.25, "3": 2.0}
    head, *rows = as_text(Path("m.json"), again).splitlines()[-5:]
    assert "stiffness" in head
    assert [row.split()[head.split().index("stiffness")] for row in rows] == ["1", "4", "0.25", "2"]
    assert again.weights.select(again.weights.members[:2]).stiffness is again.weights.stiffness
    np.testing.assert_array_equal(
        type(again.weights).from_json(again.weights.to_json()).stiffness, [1.0, 4.0, 0.25, 2.0]
    )
    model.save(tmp_path / "plain.json")
    assert "stiffness" not in json.loads((tmp_path / "plain.json").read_text(encoding="utf-8"))
    assert "laid on each other" not in as_text(Path("m.json"), model)
    settings = model.settings.model_copy(update={"initial": "structures"})
    tried = {"before": "none", "used": "structures", "gain": 0.0123, "standard_error": 0.002, "n": 9}
    trial = RefinementRecord(start=StartTrial.model_validate(tried))
    training = model.training.model_copy(update={"refinement": trial})
    replace(model, settings=settings, training=training).save(tmp_path / "m.json")
    again = Model.load(tmp_path / "m.json")
    assert again.training.to_json()["refinement"]["start"] == tried
    assert "start        structures laid on each other, +0.0123 on left-out patients" in as_text(Path("m"), again)


def test_weights_as_a_table_and_a_predictor_that_does_not_fit_them(model):
    table = model.weights_table()
    assert list(table) == ["background", "CSF", "GM", "WM"]
    assert table["CSF"]["sad"] == model.weights.matrix[0, 1]
    with pytest.raises(RegweaveError, match=r"E170: .*tells \[0, 1, 2, 3\] in mr images; its weights are for .* in ct"):
        replace(model, modality="ct")


def test_shipped_models_have_a_card(tmp_path):
    for name in shipped_models():
        card = Model.load(name).card
        assert isinstance(card, ModelCard)
        assert all(getattr(card, field) for field in ModelCard.model_fields)
        Model.load(name).save(tmp_path / "m.zip")
        assert Model.load(tmp_path / "m.zip").card == card
        assert (tmp_path / "m.zip").read_bytes() == shipped_models()[name].read_bytes()


# The training record: JSON as it was read, typed parts, nothing of another kind.
def test_records_come_back_or_are_refused():
    for name in sorted(shipped_models()):
        path = shipped_models()[name]
        text = read_archive(path)[0] if is_archive(path) else path.read_text(encoding="utf-8")
        evidence = json.loads(text)["evidence"]
        assert json.dumps(TrainingRecord.model_validate(evidence).to_json()) == json.dumps(evidence)
    for part in [{"gates": {"1": 3}}, {"share": "half"}, {"learned": [["x"]]}]:
        with pytest.raises(ValidationError, match=next(iter(part))):
            TrainingRecord.model_validate(part)
    record = TrainingRecord.model_validate({"groups": ["p1"], "mine": {"kept": [1]}})
    assert (record.method, record.gates, record.left_out_gain, record.judged) == (None, {}, None, False)
    assert record.to_json() == {"groups": ["p1"], "mine": {"kept": [1]}}
    assert TrainingRecord.model_validate({"left_out_gain": None}).judged
    record = TrainingRecord(
        groups=("p1+p2",), predictor_groups=("p3",), gates={"4": {"used": True}, "5": {"used": False}},
        strengths={"4": 2.0},
    )  # fmt: skip
    assert record.trained_on == ("p1+p2", "p3")
    assert [record.uses_column(c) for c in (0, 4, 5)] == [False, True, False]
    assert [record.strength(c) for c in (4, 5)] == [2.0, 1.0]
    record = TrainingRecord(share=float("nan"), gates={"1": GateRecord(gain=0.1, standard_error=float("inf"))})
    assert record.to_json() == {"share": None, "gates": {"1": {"gain": 0.1, "standard_error": None}}}


# Models from strangers: every number of the file is checked when it is read, and named by its key.
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


def test_numbers_outside_their_range_are_named(tmp_path):
    for change, message in CASES:
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            read({**SHIPPED, **change})
        assert len(str(caught.value)) < 1500, message
    path = tmp_path / "m.json"
    for change in ({"pairwise": -1}, {"classes": {**CLASSES, "x" * 5000: "x"}}, {"class_predictor": {}}):
        path.write_text(json.dumps({**SHIPPED, **change}), encoding="utf-8")
        with pytest.raises(RegweaveError, match="E170") as caught:
            Model.load(path)
        assert str(path) in caught.value.message
        assert len(caught.value.message) < 600 + len(str(path))


def read(content: dict[str, Any]) -> None:
    """Read a model from content that JSON cannot hold everywhere, with the error that a file gives."""
    try:
        Model._of(ModelFile.model_validate(content), None)
    except ValidationError as error:
        raise ValueError(describe_problems(error)) from error
    except (KeyError, UsageError) as error:
        raise ValueError(f"malformed ({error})") from error


def test_shipped_models_lie_within():
    for name in shipped_models():
        assert Model.load(name).weights.matrix.any()
