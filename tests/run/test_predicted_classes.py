"""A model that tells the classes itself: weights from predicted labels, which never reach the result."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from regweave import predictors
from regweave.cli import main
from regweave.errors import RegweaveError, RegweaveWarning, UsageError
from regweave.io import read_image, read_labels
from regweave.model.model import Model
from regweave.predictors import Examples, Predictor
from regweave.run.register import register
from regweave.study.evaluate import evaluate
from regweave.types import LabelMap, WeightTable

pytestmark = pytest.mark.usefixtures("in_process")
CLASSES = tuple(range(7))
QUICK = {"samples": 4000, "steps": 30}


@pytest.fixture(scope="module")
def predictor(training_list, in_process) -> Predictor:
    files = [training_list.files(n) for n in (1, 2, 3)]
    labels = [read_labels(f["moving_labels"]) for f in files]
    return predictors.fit(
        "perceptron", Examples([read_image(f["moving"]) for f in files], labels, CLASSES, "mr"), **QUICK
    )


@pytest.fixture(scope="module")
def model(predictor, training_list) -> Model:
    """Columns that differ, so that it matters which one a voxel gets."""
    matrix = np.full((3, 7), 0.02)
    matrix[np.arange(7) % 3, np.arange(7)] = 0.96
    weights = WeightTable(matrix, ("sad", "mi", "fine"), CLASSES, 0.1)
    return Model(weights, training_list.settings, "mr", predictor=predictor)


@pytest.fixture(scope="module")
def files(training_list) -> dict[str, Path]:
    return training_list.files(0)


@pytest.fixture(scope="module")
def predicted(model, files):
    return register(files["fixed"], files["moving"], model=model)


def field(result) -> np.ndarray:
    return result.transform.field.data


def test_predicted_labels_choose_the_weights_of_both_stages(model, predictor, files, predicted):
    outline = predictor.labels(read_image(files["moving"]))
    assert set(CLASSES) <= {0, *outline.values()}
    asked = register(files["fixed"], files["moving"], moving_labels=outline, model=model)
    np.testing.assert_array_equal(field(predicted), field(asked))
    assert (predicted.provenance.classes_from, asked.provenance.classes_from) == ("predicted", "labels")
    # Neither the true labels nor the background's column give the same.
    labels = {name: files[name] for name in ("fixed", "moving", "moving_labels")}
    with pytest.warns(RegweaveWarning, match="W262"):
        background = register(files["fixed"], files["moving"], model=replace(model, predictor=None))
    for other in (register(**labels, model=model), background):
        assert (field(other) != field(predicted)).any()
        assert other.provenance.classes_from == ("none" if other.warped_labels is None else "labels")


def test_predicted_labels_are_not_a_result(predicted, tmp_path, recwarn, model, files):
    assert predicted.warped_labels is None
    assert predicted.dice == {}
    assert predicted.warnings == ()
    predicted.save(tmp_path / "out")
    assert not (tmp_path / "out" / "warped_labels.nii.gz").exists()
    content = json.loads((tmp_path / "out" / "result.json").read_text())
    assert content["provenance"]["classes_from"] == "predicted"
    assert "moving_labels" not in content["provenance"]["inputs_sha256"]
    assert not recwarn.list
    found = register(**files, model=model, predict_classes=True)
    np.testing.assert_array_equal(field(found), field(predicted))
    assert found.provenance.classes_from == "predicted"
    assert found.warped_labels is not None
    assert set(found.dice) == set(CLASSES[1:])


def test_one_column_has_nothing_to_predict(model, files, training_list):
    plain = replace(model, weights=WeightTable.constant(dict.fromkeys(("sad", "mi", "fine"), 1.0), 0.1))
    assert register(files["fixed"], files["moving"], model=plain).provenance.classes_from == "none"
    settings = training_list.settings
    assert register(**files, config=settings).provenance.classes_from == "none"


def test_a_malformed_predictor_is_refused(model, files, tmp_path, training_list):
    for damage in [
        {"features": 99},
        {"classes": [0, 1]},
        {"classes": [0, 1, 2, 3, 4, 5, 9]},
        {"perceptron": {}},
        {"names": 3},
        {"modality": "ct"},
    ]:
        model.save(tmp_path / "m.json")
        content = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))
        content["class_predictor"] |= damage
        (tmp_path / "m.json").write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(RegweaveError, match="E170"):
            register(**files, model=tmp_path / "m.json")
        pairs = training_list.write(tmp_path / "pairs.csv", training_list.line(0))
        with pytest.raises(RegweaveError, match="E170"):
            evaluate(pairs, tmp_path / "out", models=[tmp_path / "m.json"])
        assert not (tmp_path / "out").exists()


def test_evaluation_with_and_without_the_mask(model, files, tmp_path, training_list, predicted):
    model.save(tmp_path / "mine.json")
    pairs = training_list.write(tmp_path / "pairs.csv", training_list.line(0))
    found = evaluate(pairs, tmp_path / "out", models=[tmp_path / "mine.json"], workers=1)
    assert [m.name for m in found.methods] == ["model:mine", "model:mine+predicted"]
    rows = {(r["method"], r["label"]): r["dice_after"] for r in found.rows()}
    for method, options in (("model:mine", {}), ("model:mine+predicted", {"predict_classes": True})):
        result = register(**files, model=model, **options)
        for label, row in result.dice.items():
            assert rows[method, str(label)] == row["after"]
    content = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [m["predicted_classes"] for m in content["methods"]] == [False, True]
    assert (
        content["results"][0]["scores"]["regularity"]["sdlogj"]
        != content["results"][1]["scores"]["regularity"]["sdlogj"]
    )
    assert content["results"][1]["scores"]["regularity"]["sdlogj"] == predicted.regularity["sdlogj"]


def test_evaluation_of_some_structures(model, tmp_path, training_list):
    """A model of some structures can be evaluated on label maps that show more."""
    weights = replace(model.weights, matrix=model.weights.matrix[:, [0, 2, 3]], classes=(0, 2, 3))
    few = replace(model, predictor=None, weights=weights)
    few.save(tmp_path / "few.json")
    pairs = training_list.write(tmp_path / "pairs.csv", training_list.line(0))
    words = ["evaluate", str(pairs), "--model", str(tmp_path / "few.json"), "--workers", "1", "--quiet"]
    assert main([*words, "-o", str(tmp_path / "all")]) == 0  # labels without a column ride along
    assert main([*words, "-o", str(tmp_path / "some"), "--classes", "2,3"]) == 0
    content = json.loads((tmp_path / "some" / "results.json").read_text())
    assert [row["label"] for row in content["results"][0]["scores"]["structures"]] == [2, 3]
    assert content["notes"] == ["Structures 2, 3 count; all other labels are background."]


def test_command_line_says_where_the_classes_come_from(model, files, tmp_path, capsys):
    model.save(tmp_path / "m.json")
    words = ["register", str(files["fixed"]), str(files["moving"]), "--model", str(tmp_path / "m.json")]
    assert main([*words, "-o", str(tmp_path / "out")]) == 0
    captured = capsys.readouterr()
    assert "classes     predicted from the moving image" in captured.out
    assert "warning" not in captured.err
    labels = ["--moving-labels", str(files["moving_labels"])]
    assert main([*words, *labels, "-o", str(tmp_path / "more")]) == 0
    assert "predicted" not in capsys.readouterr().out


def test_reading_keeps_chosen_labels_only(files):
    from regweave.run.read import Reading

    image = read_image(files["moving"])
    kept = Reading(classes=(2, 3)).labels(files["moving_labels"], image.geometry)
    whole = Reading().labels(files["moving_labels"], image.geometry)
    assert isinstance(kept, LabelMap)
    assert kept.values() == [2, 3]
    np.testing.assert_array_equal(kept.data, whole.data * np.isin(whole.data, (2, 3)))
    assert kept.data.dtype == whole.data.dtype


def test_start_from_structures_needs_a_predictor_that_it_follows(model, files, predicted):
    found = register(files["fixed"], files["moving"], model=model, init="structures")

    start = found.images.pair.initial_field
    assert start is not None
    assert np.abs(start.data).max() > 0.1
    assert (field(found) != field(predicted)).any()
    for other in (None, replace(model, predictor=None)):
        with pytest.raises(UsageError, match=r"E187.*predictor"):
            register(files["fixed"], files["moving"], model=other, init="structures")
