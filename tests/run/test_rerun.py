"""The record of a registration: what ran, and the same bits from it."""

import json

import numpy as np
import pytest

from made_pairs import small_settings, write_pair
from phantoms import make_phantom
from regweave import notices
from regweave.cli import main
from regweave.errors import RegweaveError, RegweaveWarning
from regweave.io import read_image, read_transform, sha256
from regweave.io.transforms.files import write_linear
from regweave.model.model import Model
from regweave.model.record import TrainingRecord
from regweave.run.job import recorded_call
from regweave.run.register import register
from regweave.types import Geometry, LabelMap, Volume, WeightTable

SMALL = small_settings((48.0, 1, 2), refine=3)
BITS = ("warped.nii.gz", "warped_labels.nii.gz", "transform.h5", "inverse.h5")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    pair = make_phantom(seed=2, shape=(20, 20, 20), spacing_mm=(9.0, 9.0, 9.0)).pair
    write_pair(folder, pair)
    (folder / "labels.json").write_text(json.dumps({str(v): n for v, n in pair.moving_labels.names.items()}))
    (folder / "small.toml").write_text(SMALL.toml())
    start = np.eye(4)
    start[:3, 3] = [1.0, -2.0, 0.5]
    write_linear(folder / "start.tfm", start)
    weights = WeightTable(np.array([[0.7, 0.2], [0.3, 0.8]]), ("sad", "ncc"), (0, 11), 0.1)
    names = {0: "background", 11: pair.moving_labels.names[3]}
    model = Model(weights, SMALL, "mr", names, training=TrainingRecord(groups=("p1", "p2+p3")))
    model.save(folder / "mine.json")
    return folder


def run(files, out, *words) -> dict:
    labels = ["--fixed-labels", files / "fixed_labels.nii.gz", "--moving-labels", files / "moving_labels.nii.gz"]
    call = ["register", files / "fixed.nii.gz", files / "moving.nii.gz", *labels, "-o", out, "--quiet", *words]
    assert main([str(word) for word in call]) == 0
    return json.loads((out / "result.json").read_text())


def same(a, b) -> bool:
    if a.suffix != ".h5":
        return a.read_bytes() == b.read_bytes()
    one, two = read_transform(a), read_transform(b)
    return np.array_equal(one.field.data, two.field.data) and np.array_equal(one.affine, two.affine)


def test_same_bits_from_the_record(files, tmp_path):
    table = '[register]\nmetrics = ["ncc=2", "sad"]\nmoving_modality = "t1"\n'
    (tmp_path / "table.toml").write_text(f"{SMALL.model_copy(update={'engine': 'icm'}).toml()}\n{table}")
    kinds = {
        "model": ("--model", files / "mine.json", "--init", files / "start.tfm"),
        "table": ("--config", tmp_path / "table.toml", "--init", "moments"),
    }
    for name, words in kinds.items():
        first = run(files, tmp_path / name, *words)
        again = tmp_path / f"{name}-again"
        record = tmp_path / name / "result.json"
        assert main(["register", "--from", str(record), "-o", str(again), "--threads", "1", "--quiet"]) == 0
        written = [file for file in BITS if (tmp_path / name / file).exists()]
        assert {"warped.nii.gz", "transform.h5"} <= set(written)
        for file in written:
            assert same(tmp_path / name / file, again / file), (name, file)
        second = json.loads((again / "result.json").read_text())
        changing = ("command", "threads")
        for part in first["provenance"].keys() - set(changing):
            assert first["provenance"][part] == second["provenance"][part], part
        assert first["score"] == second["score"] if "score" in first else first["dice"] == second["dice"]


def test_the_record_says_what_ran(files, tmp_path):
    found = run(files, tmp_path / "out", "--model", files / "mine.json", "--init", files / "start.tfm")["provenance"]
    assert (found["start"]["requested"], found["start"]["used"]) == ("file", "file")
    assert found["start"]["sha256"] == sha256(files / "start.tfm")
    np.testing.assert_allclose(np.array(found["start"]["matrix"])[:3, 3], [1.0, -2.0, 0.5])
    assert found["model"]["name"] == "mine.json"
    assert found["model"]["sha256"] == sha256(files / "mine.json")
    assert found["model"]["groups"] == ["p1", "p2+p3"]
    assert (found["model"]["used"], found["model"]["reason"]) == ("all", "")
    assert found["modality"] == {"fixed": "mr", "moving": "mr", "bank": "mr"}
    assert found["device"] == "cpu"
    assert found["command"][:2] == ["regweave", "register"]
    assert "--model" in found["command"]
    assert found["inputs"]["fixed"] == {"path": str(files / "fixed.nii.gz"), "sha256": sha256(files / "fixed.nii.gz")}
    structures = found["structures"]
    assert (structures["matched_by"], structures["classes"]) == ("name", {"3": 11})
    assert structures["unknown"] == [1, 2, 4, 5, 6]


def test_a_start_is_recorded_as_it_was_used(files):
    """The record and the title name the start that was used, and why it is not the one asked for."""
    images = [read_image(files / f"{name}.nii.gz") for name in ("fixed", "moving")]
    small = Volume(images[1].data, Geometry(images[1].geometry.shape, images[1].geometry.affine * 0.2))
    with notices.muted():
        found = register(images[0], small, config=SMALL, init="affine")
    assert (found.provenance.start.requested, found.provenance.start.used) == ("affine", "moments")
    assert found.provenance.start.reason.startswith("affine start rejected (volume ratio")
    assert found.provenance.headline() == "MR · start moments, not affine · no model"
    assert found.verdict.word != "pass"
    assert "affine start rejected" in found.verdict.text
    same = register(images[0], images[0], config=SMALL, init="rigid").provenance
    assert (same.start.used, same.start.requested) == ("none", "rigid")
    assert "headers" in same.start.reason
    found = register(files / "fixed.nii.gz", files / "moving.nii.gz", config=SMALL, init="moments").provenance
    assert (found.start.requested, found.start.used, found.start.reason) == ("moments", "moments", "")
    assert np.abs(np.array(found.start.matrix)[:3, 3]).max() > 0
    assert found.headline() == "MR · start moments · no model"


def test_a_matrix_is_in_the_record_and_a_field_is_not(files, tmp_path):
    matrix = np.diag([1.0, 1.0, 1.02, 1.0])
    first = register(files / "fixed.nii.gz", files / "moving.nii.gz", config=SMALL, init=matrix)
    first.save(tmp_path / "first")
    again = register(**recorded_call(tmp_path / "first"))
    np.testing.assert_array_equal(again.transform.field.data, first.transform.field.data)
    np.testing.assert_array_equal(again.transform.affine, matrix)
    register(files / "fixed.nii.gz", files / "moving.nii.gz", config=SMALL, init=first.transform).save(tmp_path / "b")
    with pytest.raises(RegweaveError, match=r"E174.*the start.*in memory"):
        recorded_call(tmp_path / "b")
    images = [read_image(files / f"{name}.nii.gz") for name in ("fixed", "moving")]
    register(*images, config=SMALL).save(tmp_path / "out")
    with pytest.raises(RegweaveError, match=r"E174.*in memory"):
        recorded_call(tmp_path / "out")


def test_what_is_no_record_or_is_changed_is_refused(files, tmp_path):
    run(files, tmp_path / "out", "--model", files / "mine.json")
    record = tmp_path / "out" / "result.json"
    for name in ("fixed", "moving_labels"):
        with pytest.raises(RegweaveError, match=r"E174.*is not the file that was used"):
            recorded_call(record, **{name: files / "start.tfm"})
    content = json.loads(record.read_text())
    content["provenance"]["model"]["sha256"] = "0" * 64
    (tmp_path / "other.json").write_text(json.dumps(content))
    with pytest.raises(RegweaveError, match=r"E174.*the model mine\.json"):
        recorded_call(tmp_path / "other.json")
    content["provenance"]["regweave"] = "0.0.1"
    content["provenance"]["model"] = None
    (tmp_path / "older.json").write_text(json.dumps(content))
    with pytest.warns(RegweaveWarning, match=r"W213.*0\.0\.1"):
        recorded_call(tmp_path / "older.json")
    for text in ["{}", "[]", '{"provenance": {"call": 1}}', "no JSON", '{"provenance": null}']:
        (tmp_path / "r.json").write_text(text)
        with pytest.raises(RegweaveError, match=r"^E(102|178)"):
            recorded_call(tmp_path / "r.json")


def test_nothing_beside_a_record(files, tmp_path, capsys):
    assert main(["register", "--from", "x.json", "-o", str(tmp_path / "o"), "--preset", "paper"]) == 2
    assert "--from and --preset" in capsys.readouterr().err
    assert main(["register", "-o", str(tmp_path / "o")]) == 2
    assert not (tmp_path / "o").exists()


def test_words_of_a_record_that_mean_nothing_are_refused(files, tmp_path):
    record = run(files, tmp_path / "out", "--config", files / "small.toml")
    call = record["provenance"]["call"]
    words = {"follow_links": "yes", "nonfinite": "ignore", "nifti_frame": 1, "fixed_modality": "xray"}
    for change in (*({"reading": {word: value}} for word, value in words.items()), {"predict_classes": "no"}):
        record["provenance"]["call"] = call | change
        (tmp_path / "result.json").write_text(json.dumps(record))
        with pytest.raises(RegweaveError, match=r"E178.*provenance\.call\."):
            recorded_call(tmp_path / "result.json")


def test_one_value_inside_a_mask_has_a_code(files):
    for name in ["fixed", "moving"]:
        image = read_image(files / f"{name}.nii.gz")
        mask = np.zeros(image.data.shape, dtype=np.uint8)
        mask[9, 9, 9] = 1
        with pytest.raises(
            RegweaveError, match=f"E139.*the {name} image is .* at each of the 1 voxels inside its mask"
        ):
            register(
                files / "fixed.nii.gz", files / "moving.nii.gz", config=SMALL,
                **{f"{name}_mask": LabelMap(mask, image.geometry)},
            )  # fmt: skip
