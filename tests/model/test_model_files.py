"""Model files: JSON and archive hold the same, the same bytes each time, and nothing of a stranger runs."""

import json
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from regweave.cli.models import as_dict, as_text
from regweave.errors import RegweaveError, UsageError
from regweave.model import archive, shipped_models
from regweave.model.model import Model
from regweave.model.record import ModelCard, RefinementRecord, StartTrial
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


def test_json_is_what_was_read(model, tmp_path):
    model.save(tmp_path / "m.json")
    assert (tmp_path / "m.json").read_bytes() == TISSUE.read_bytes()


def test_an_archive_holds_the_same_in_the_same_bytes(model, tmp_path):
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


def test_an_archive_is_told_by_its_bytes_and_not_by_its_name(model, tmp_path):
    model.save(tmp_path / "a.zip")
    (tmp_path / "a.zip").rename(tmp_path / "a.json")
    np.testing.assert_array_equal(Model.load(tmp_path / "a.json").weights.matrix, model.weights.matrix)


def test_a_model_without_a_predictor(model, tmp_path):
    replace(model, predictor=None).save(tmp_path / "a.zip")
    assert Model.load(tmp_path / "a.zip").predictor is None


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


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model.json": b"{"}, "it is not JSON"),
        ({"more.txt": b""}, "allowed: model.json and arrays.safetensors"),
        ({"arrays.safetensors": b"\xff" * 40}, "arrays.safetensors is damaged"),
        ({"arrays.safetensors": struct.pack("<Q", 1 << 60) + b"{}"}, "arrays.safetensors is damaged"),
        ({"arrays.safetensors": save({"hidden": np.zeros((2, 2), np.int64)})}, "is int64, allowed: float16, float32"),
        ({"arrays.safetensors": save({"hidden": np.full((2, 2), np.nan)})}, "hidden has shape (2, 2) or a number"),
        ({"arrays.safetensors": save({"hidden": np.full((2, 2), np.inf, np.float16)})}, "hidden has shape (2, 2) or"),
        ({"arrays.safetensors": save({})}, "malformed ('hidden')"),
    ],
)
def test_damaged_and_hostile_archives_are_refused(model, tmp_path, change, says):
    model.save(tmp_path / "a.zip")
    pack(tmp_path / "bad.zip", {**parts_of(tmp_path / "a.zip"), **change})
    with pytest.raises(RegweaveError) as caught:
        Model.load(tmp_path / "bad.zip")
    assert caught.value.code == "E170"
    assert says in caught.value.message
    assert "bad.zip" in caught.value.message


def test_a_bomb_is_read_no_further_than_its_limit(model, tmp_path, monkeypatch):
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


def test_a_cut_archive_is_refused(model, tmp_path):
    model.save(tmp_path / "a.zip")
    (tmp_path / "bad.zip").write_bytes((tmp_path / "a.zip").read_bytes()[:-50])
    with pytest.raises(RegweaveError, match=r"E170.*the archive is damaged"):
        Model.load(tmp_path / "bad.zip")


@pytest.mark.parametrize(
    ("given", "says"), [("head-nek-ct", "did you mean head-neck-ct?"), ("nope", "shipped: head-neck-ct, ")]
)
def test_a_name_that_is_none_gets_the_shipped_ones(given, says):
    with pytest.raises(UsageError, match=f"E171: there is no model file '{given}' and no shipped model") as caught:
        Model.load(given)
    assert says in str(caught.value)


def test_a_plug_in_that_is_not_here_is_named_with_its_package(model, tmp_path):
    model.save(tmp_path / "m.json")
    content = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))
    content["plugins"] = {"metrics/cubes": {"from": "x", "distribution": "regweave-cubes", "version": "0.3"}}
    content["settings"]["banks"]["mr"][0]["metric"] = "cubes"
    (tmp_path / "m.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UsageError, match=r"E169: .*m\.json needs the metric 'cubes' of package regweave-cubes 0\.3,"):
        Model.load(tmp_path / "m.json")


def test_the_stiffness_of_classes_is_kept_and_shown(model, tmp_path):
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


def test_a_predictor_that_does_not_fit_the_weights_is_refused(model):
    with pytest.raises(RegweaveError, match=r"E170: .*tells \[0, 1, 2, 3\] in mr images; its weights are for .* in ct"):
        replace(model, modality="ct")


def test_weights_as_a_table(model):
    table = model.weights_table()
    assert list(table) == ["background", "CSF", "GM", "WM"]
    assert table["CSF"]["sad"] == model.weights.matrix[0, 1]


def test_shipped_models_have_a_card(tmp_path):
    for name in shipped_models():
        card = Model.load(name).card
        assert isinstance(card, ModelCard)
        assert all(getattr(card, field) for field in ModelCard.model_fields)
        Model.load(name).save(tmp_path / "m.zip")
        assert Model.load(tmp_path / "m.zip").card == card
        assert (tmp_path / "m.zip").read_bytes() == shipped_models()[name].read_bytes()


def test_arrays_apart_and_within_are_the_same(model):
    parts = model.predictor.save()
    whole, bare = Parts.from_json(parts.to_json()), Parts.from_json(parts.to_json(arrays=False), parts.arrays)
    assert whole.fields == bare.fields
    assert all((whole.arrays[name] == bare.arrays[name]).all() for name in parts.arrays)


def test_a_start_from_structures_is_kept_and_shown(model, tmp_path):
    assert "laid on each other" not in as_text(Path("m.json"), model)
    settings = model.settings.model_copy(update={"initial": "structures"})
    tried = {"before": "none", "used": "structures", "gain": 0.0123, "standard_error": 0.002, "n": 9}
    trial = RefinementRecord(start=StartTrial.model_validate(tried))
    training = model.training.model_copy(update={"refinement": trial})
    replace(model, settings=settings, training=training).save(tmp_path / "m.json")
    again = Model.load(tmp_path / "m.json")
    assert again.training.to_json()["refinement"]["start"] == tried
    assert "start        structures laid on each other, +0.0123 on left-out patients" in as_text(Path("m"), again)
