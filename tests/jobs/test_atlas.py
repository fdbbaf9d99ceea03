"""Folders of atlases: what is refused, what is built, and segmentations of people that were left out."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from made_dicom import Made, write_series
from scipy import ndimage

import regweave as rw
from phantoms import make_phantom
from regweave.cli import main
from regweave.io import read_image, read_labels, write_image, write_labels
from regweave.io.dicom.rtstruct import read_rtstruct
from regweave.io.dicom.series import read_series
from regweave.io.images import image_sha256
from regweave.jobs.atlas import Atlas
from regweave.model.model import Model
from regweave.model.record import TrainingRecord
from regweave.predictors import Examples, fit
from regweave.types import Geometry, LabelMap, Volume, WeightTable

pytestmark = pytest.mark.usefixtures("in_process")


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    folder = tmp_path_factory.mktemp("people")
    names = {1: "left", 2: "right", 3: "body", 4: "cord", 5: "bone", 6: "core"}
    (folder / "labels.json").write_text(json.dumps({str(v): name for v, name in names.items()}))
    lines = ["id,image,labels,group"]
    for seed in range(4):
        pair = make_phantom(shape=(20, 20, 20), spacing_mm=(9.0, 9.0, 9.0), seed=seed).pair
        write_image(folder / f"i{seed}.nii.gz", pair.fixed)
        write_labels(folder / f"l{seed}.nii.gz", pair.fixed_labels)
        lines.append(f"p{seed},i{seed}.nii.gz,l{seed}.nii.gz,person{seed}")
    (folder / "people.csv").write_text("\n".join(lines[:4]) + "\n")
    return folder


@pytest.fixture(scope="module")
def evaluated(people, in_process):
    atlas = people / "atlas"
    assert main(["atlas", "build", str(people / "people.csv"), "-o", str(atlas)]) == 0
    scores = rw.evaluate_atlas(atlas, people / "scores", top=2, workers=1)
    return atlas, scores


def test_scores_are_those_of_the_files(people, evaluated):
    atlas, scores = Atlas.load(evaluated[0]), evaluated[1]
    assert atlas.names[6] == "core"
    assert [row.group for row in atlas.rows] == ["person0", "person1", "person2"]
    np.testing.assert_array_equal(read_image(atlas.image("p1")).data, read_image(people / "i1.nii.gz").data)
    np.testing.assert_array_equal(atlas.labels("p1").data, read_labels(people / "l1.nii.gz").data)
    by_label = {row["label"]: [] for row in scores["structures"]}
    for seed in range(3):
        truth = read_labels(people / f"l{seed}.nii.gz").data
        found = read_labels(people / f"scores/p{seed}/labels.nii.gz").data
        for value, scored in by_label.items():
            both = ((truth == value) & (found == value)).sum()
            if (truth == value).any():
                scored.append(2 * both / ((truth == value).sum() + (found == value).sum()))
    for row in scores["structures"]:
        assert row["dice"] == pytest.approx(np.mean(by_label[row["label"]]))
        assert row["people"] == len(by_label[row["label"]])
    assert scores["dice"] > scores["most_alike"] - 0.05
    assert scores["failed"] == {}
    assert json.loads((people / "scores/evaluation.json").read_text())["dice"] == pytest.approx(scores["dice"])
    for seed in range(3):  # nobody segments himself
        used = {p.name for p in (people / "scores/registrations").glob(f"p{seed}--*")}
        assert len(used) == 2
        assert f"p{seed}--p{seed}" not in used


def test_a_new_image_is_segmented_and_a_second_call_gives_the_same_bytes(people, evaluated, tmp_path, capsys):
    atlas, _ = evaluated
    words = ["segment", str(people / "i3.nii.gz"), "--atlas", str(atlas), "--top", "2", "--workers", "1"]
    assert main([*words, "-o", str(tmp_path / "one.nii.gz"), "--json", "--quiet"]) == 0
    rows = json.loads(capsys.readouterr().out)
    truth, found = read_labels(people / "l3.nii.gz"), read_labels(tmp_path / "one.nii.gz")
    assert found.names[6] == "core"
    assert {row["label"] for row in rows} == set(found.values())
    assert all(0 <= row["estimated_dice"] <= 1 for row in rows)
    assert np.mean((found.data > 0) == (truth.data > 0)) > 0.9
    agreement = read_image(tmp_path / "one.agreement.nii.gz").data
    assert set(np.unique(agreement)) <= {0.0, 0.5, 1.0}
    (tmp_path / "one.nii.gz").unlink()
    assert main([*words, "-o", str(tmp_path / "one.nii.gz")]) == 3  # a file beside it would be replaced
    assert "one.agreement.nii.gz' exists" in capsys.readouterr().err
    (tmp_path / "list.csv").write_text(f"id,image\na,{people / 'i3.nii.gz'}\nb,{people / 'people.csv'}\n")
    words[1] = str(tmp_path / "list.csv")
    assert main([*words, "-o", str(tmp_path / "many"), "--quiet"]) == 1
    assert "failed b: E103" in capsys.readouterr().err
    first = (tmp_path / "many/a/labels.nii.gz").read_bytes()
    np.testing.assert_array_equal(read_labels(tmp_path / "many/a/labels.nii.gz").data, found.data)
    shutil.rmtree(tmp_path / "many/a")
    assert main([*words, "-o", str(tmp_path / "many"), "--quiet"]) == 3  # without --resume
    assert main([*words, "-o", str(tmp_path / "many"), "--quiet", "--resume"]) == 1
    assert (tmp_path / "many/a/labels.nii.gz").read_bytes() == first
    record = (atlas / "atlas.json").read_text()
    (tmp_path / "many/a/labels.nii.gz").write_bytes(b"damaged")
    assert main([*words, "-o", str(tmp_path / "many"), "--quiet", "--resume"]) == 1
    assert (tmp_path / "many/a/labels.nii.gz").read_bytes() == first
    (atlas / "atlas.json").write_text(record.replace('"core"', '"kernel"'))
    assert main([*words, "-o", str(tmp_path / "many"), "--quiet", "--resume"]) == 1
    (atlas / "atlas.json").write_text(record)
    assert "kernel" in (tmp_path / "many/a/labels.tsv").read_text()


@pytest.fixture(scope="module")
def model(people, training_list):
    """A model whose network is fitted to p0, with other numbers than the atlases have; the body is not in it."""
    image, labels = read_image(people / "i0.nii.gz"), read_labels(people / "l0.nii.gz").data
    names = {1: "Core", 2: "left", 3: "right", 4: "bone"}
    drawn = np.select([labels == v for v in (6, 1, 2, 5)], list(names), 0).astype(np.int32)
    examples = Examples([image], [LabelMap(drawn, image.geometry, names)], (0, 1, 2, 3, 4), "mr")
    predictor = fit("perceptron", examples, samples=4000, steps=60)
    matrix = np.full((3, 5), 1 / 3)
    record = TrainingRecord(
        groups=("person0",), pairs={"p": {"fixed": image_sha256(people / "i0.nii.gz"), "moving": "0" * 64}}
    )
    found = Model(
        WeightTable(matrix, ("sad", "mi", "fine"), (0, 1, 2, 3, 4), 0.1), training_list.settings, "mr",
        {0: "background", **names}, record, predictor=predictor,
    )  # fmt: skip
    found.save(people / "model.json")
    return people / "model.json"


def test_the_network_is_compared_on_people_that_it_has_not_seen(people, model, tmp_path, capsys):
    atlas, own = tmp_path / "atlas", Model.load(model).predictor
    rw.build_atlas(rows_of(people, 3), atlas)
    words = ["--model", str(model), "--top", "2", "--workers", "1", "--json", "--quiet"]
    image, out = str(people / "i3.nii.gz"), tmp_path / "one.nii.gz"
    assert main(["segment", image, "--atlas", str(atlas), "-o", str(out), *words]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert {row["better"] for row in rows.values()} == {"atlas", "unknown"}
    assert rows["core"]["measured_on"] == "nothing: run atlas evaluate with this model"
    assert rows["body"]["measured_on"] == "not in the model"

    assert main(["atlas", "evaluate", str(atlas), "-o", str(tmp_path / "s"), *words]) == 0
    scores = {row["name"]: row["compared"] for row in json.loads(capsys.readouterr().out)["structures"]}
    assert scores["body"] is None
    number = {"core": (6, 1), "left": (1, 2), "right": (2, 3), "bone": (5, 4)}
    for name, (theirs, ours) in number.items():
        by_atlas, by_network = [], []
        for seed in (1, 2):  # p0 is in the record of the model
            truth = read_labels(people / f"l{seed}.nii.gz").data == theirs
            fused = read_labels(tmp_path / f"s/p{seed}/labels.nii.gz").data == theirs
            alone = own.labels(read_image(people / f"i{seed}.nii.gz")).data == ours
            by_atlas.append(2 * (truth & fused).sum() / (truth.sum() + fused.sum()))
            by_network.append(2 * (truth & alone).sum() / (truth.sum() + alone.sum()))
        assert scores[name] == pytest.approx({"atlas": np.mean(by_atlas), "network": np.mean(by_network), "people": 2})

    assert main(["segment", image, "--atlas", str(atlas), "-o", str(tmp_path / "two.nii.gz"), *words]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    fused, alone = (read_labels(tmp_path / f"two{word}.nii.gz") for word in ("", ".network"))
    predicted = own.labels(read_image(people / "i3.nii.gz")).data
    page = (tmp_path / "two.html").read_text()
    for name, (theirs, ours) in number.items():
        row, score = rows[name], scores[name]
        np.testing.assert_array_equal(alone.data == theirs, predicted == ours)
        assert row["network_ml"] == pytest.approx((predicted == ours).sum() * 0.729)
        both = ((fused.data == theirs) & (alone.data == theirs)).sum()
        of = (fused.data == theirs).sum() + (alone.data == theirs).sum()
        assert row["dice_between"] == pytest.approx(2 * both / of)
        gap = score["atlas"] - score["network"]
        assert row["better"] == ("level" if abs(gap) < 0.005 else "atlas" if gap > 0 else "network")
        assert row["measured_on"] == "2 people new to the model"
        assert f"<td>{row['better']}</td>" in page
    assert {row["better"] for row in rows.values()} >= {"atlas"}


def test_without_hashes_of_its_images_a_model_is_judged_by_its_own_record_or_not_at_all(people, model, tmp_path):
    atlas = tmp_path / "atlas"
    rw.build_atlas(rows_of(people, 3), atlas)
    content = json.loads(model.read_text())
    content["evidence"]["pairs"] = {}
    blind = tmp_path / "blind.json"
    blind.write_text(json.dumps(content))
    found = rw.evaluate_atlas(atlas, tmp_path / "s", model=blind, top=1, workers=1)
    assert not any(row["compared"] for row in found["structures"])
    own = {row["name"]: row["dice"] for row in found["structures"]}
    words = {"top": 1, "workers": 1}
    rows = rw.segment(people / "i3.nii.gz", atlas, tmp_path / "a", model=blind, **words)
    assert [row["better"] for row in rows if row["name"] == "core"] == ["unknown"]
    content["class_predictor"]["record"] = {"dice": {"1": own["core"] + 0.1}, "mean_dice": 0.5, "n_images": 9}
    blind.write_text(json.dumps(content))
    rows = rw.segment(people / "i3.nii.gz", atlas, tmp_path / "b", model=blind, **words)
    assert [(row["better"], row["measured_on"]) for row in rows if row["name"] in ("core", "bone")] == [
        ("unknown", "nothing: no atlas is surely new to the model, and it has no Dice of left-out images"),
        ("network", "9 images left out of training"),
    ]


def rows_of(folder, count=2):
    return [{"id": f"p{k}", "image": folder / f"i{k}.nii.gz", "labels": folder / f"l{k}.nii.gz"} for k in range(count)]


def test_structures_that_overlap_are_kept_apart_in_maps_and_in_a_structure_set(people, tmp_path):
    def outer(seed):
        labels = read_labels(people / f"l{seed}.nii.gz")
        return LabelMap(
            (ndimage.binary_dilation(labels.data == 6) * 9).astype(np.uint8), labels.geometry, {9: "target"}
        )

    rows = rows_of(people, 3)
    for seed, row in enumerate(rows):
        row["labels2"] = tmp_path / f"t{seed}.nii.gz"
        write_labels(row["labels2"], outer(seed))
        (tmp_path / f"t{seed}.tsv").write_text("index\tname\n9\ttarget\n")
    rw.build_atlas(rows, tmp_path / "atlas")
    atlas = Atlas.load(tmp_path / "atlas")
    assert atlas.names[9] == "target"
    assert {frozenset(parts) for parts in atlas.shared.values()} >= {frozenset({6, 9})}
    first, second = atlas.maps(atlas.labels("p1"))
    np.testing.assert_array_equal(first.data, read_labels(people / "l1.nii.gz").data)
    np.testing.assert_array_equal(second.data, outer(1).data)
    found = rw.evaluate_atlas(tmp_path / "atlas", tmp_path / "s", top=1, workers=1)
    scores = {row["name"]: row["dice"] for row in found["structures"]}
    for name, value, part in (("core", 6, "labels.nii.gz"), ("target", 9, "labels2.nii.gz")):
        by_hand = []
        for seed in range(3):
            truth = (read_labels(people / f"l{seed}.nii.gz") if value == 6 else outer(seed)).data == value
            drawn = read_labels(tmp_path / f"s/p{seed}" / part).data == value
            by_hand.append(2 * (truth & drawn).sum() / (truth.sum() + drawn.sum()))
        assert scores[name] == pytest.approx(np.mean(by_hand))
    assert scores["target"] > 0.5
    words = ["segment", str(people / "i3.nii.gz"), "--atlas", str(tmp_path / "atlas"), "--top", "1", "--quiet"]
    assert main([*words, "--workers", "1", "-o", str(tmp_path / "one.nii.gz")]) == 0
    core, target = (read_labels(tmp_path / f"one{word}.nii.gz").data for word in ("", ".labels2"))
    assert ((core == 6) & (target == 9)).sum() > 0.5 * (core == 6).sum()

    scan = read_image(people / "i3.nii.gz")
    assert (np.diag(scan.geometry.affine)[:3] == 9.0).all()

    class Scan(Made):
        def values(self, k):
            return scan.data[:, :, k].T

    along, origin = tuple(9.0 * k for k in range(20)), tuple(scan.geometry.origin_mm.tolist())
    write_series(tmp_path / "dicom", Scan(along=along, size=(20, 20), spacing=(9.0, 9.0), modality="MR", origin=origin))
    words[1] = str(tmp_path / "dicom")
    assert main([*words, "--workers", "1", "-o", str(tmp_path / "set.dcm")]) == 0
    found = read_rtstruct(tmp_path / "set.dcm", read_series(tmp_path / "dicom")).structures
    assert len({one.number for one in found}) == len(found) == 7
    points = {one.name: np.concatenate([c.points_mm for c in one.contours]) for one in found}
    assert (np.ptp(points["target"], axis=0) > np.ptp(points["core"], axis=0)).all()
    assert (np.abs(points["target"].mean(axis=0) - points["core"].mean(axis=0)) < 9.0).all()


def refused(rows, tmp_path, code):
    with pytest.raises(rw.RegweaveError, match=code):
        rw.build_atlas(rows, tmp_path / "atlas")
    assert not (tmp_path / "atlas").exists()


def test_lists_that_make_no_atlas_are_refused(people, tmp_path):
    good = rows_of(people)
    refused(good[:1], tmp_path, "E132.*two or more")
    refused([good[0], {**good[1], "id": "P0"}], tmp_path, "E132.*twice")
    refused([good[0], {**good[1], "id": "registrations"}], tmp_path, "E132.*name of an output")
    refused([good[0], {**good[1], "image": people / "gone.nii.gz"}], tmp_path, "E101")
    refused([good[0], {**good[1], "labels": people / "people.csv"}], tmp_path, "E103")
    refused([good[0], {**good[1], "labels": people / "i1.nii.gz"}], tmp_path, "E1(06|27)")
    refused([{"id": "a", "image": people / "i0.nii.gz"}], tmp_path, "E132.*labels")
    refused([{**good[0], "labels2": good[0]["labels"]}, good[1]], tmp_path, "E130.*several of its label maps")
    labels, image = read_labels(people / "l1.nii.gz"), read_image(people / "i1.nii.gz")
    moved = labels.geometry.affine.copy()
    moved[0, 3] += 30.0
    other = np.where(labels.data == 1, 60, 0).astype(np.uint8)
    for data, affine, code in (
        (labels.data, moved, "E112"), (other, None, "E1(30|36)"), (0 * labels.data, None, "E131"),
    ):  # fmt: skip
        geometry = labels.geometry if affine is None else Geometry(labels.geometry.shape, affine)
        write_labels(tmp_path / "other.nii.gz", LabelMap(data, geometry))
        refused([good[0], {**good[1], "labels": tmp_path / "other.nii.gz"}], tmp_path, code)
    rng = np.random.default_rng(0)
    soft = np.where(rng.random(image.data.shape) < 0.2, -90.0, 45.0) + rng.normal(0, 6, image.data.shape)
    body = ndimage.binary_dilation(labels.data > 0, iterations=3)
    ct = np.where(body, soft, -1000.0) + 800 * (labels.data == 3)
    write_image(tmp_path / "ct.nii.gz", Volume(ct.astype(np.float32), image.geometry))
    refused([good[0], {**good[1], "image": tmp_path / "ct.nii.gz"}], tmp_path, "E172.*CT")
    refused([good[0], {**good[1], "image": people / "l1.nii.gz"}], tmp_path, "E172.*label map")
    rw.build_atlas(good, tmp_path / "atlas")
    row, *_ = rw.segment(str(people / "l1.nii.gz"), atlas=tmp_path / "atlas", output=tmp_path / "done", workers=1)
    assert re.search("E172.*label map", row["error"])


def test_damaged_folders_are_refused(people, tmp_path):
    rw.build_atlas(rows_of(people), tmp_path / "whole")
    for number, (harm, code) in enumerate(
        (
            (lambda a: (a / "atlas.json").unlink(), "E101"),
            (lambda a: (a / "atlas.json").write_text("{"), "E102"),
            (lambda a: (a / "atlas.json").write_text('{"format": "regweave-batch"}'), "E178"),
            (lambda a: rewrite(a, lambda c: c["rows"].pop()), "E178|E1"),
            (lambda a: rewrite(a, lambda c: c["rows"].append(c["rows"][0])), "E178"),
            (lambda a: rewrite(a, lambda c: c["rows"][0].update(id="../p0")), "E178"),
            (lambda a: (a / "p1/image.nii.gz").unlink(), "E101"),
            (lambda a: (a / "p1/labels.nii.gz").write_bytes((a / "p1/labels.nii.gz").read_bytes()[:200]), "E102"),
            (lambda a: (a / "evaluation.json").write_text('{"slope": "steep"}'), "E178"),
        )
    ):
        folder = shutil.copytree(tmp_path / "whole", tmp_path / str(number))
        harm(folder)
        try:
            (row,) = rw.segment(people / "i3.nii.gz", folder, tmp_path / f"out{number}", workers=1, top=1)
            found = row["error"]  # KeyError where nothing was noticed
        except rw.RegweaveError as error:
            found = str(error)
        assert re.search(code, found), number


def rewrite(folder: Path, change):
    content = json.loads((folder / "atlas.json").read_text())
    change(content)
    (folder / "atlas.json").write_text(json.dumps(content))


def test_wrong_options_are_refused_before_anything_runs(people, evaluated, tmp_path, capsys):
    atlas, _ = evaluated
    words = ["segment", str(people / "i3.nii.gz"), "--atlas", str(atlas)]
    for more, status, code in (
        (["--top", "0", "-o", str(tmp_path / "o")], 2, "E192"),
        (["--fusion", "mean", "-o", str(tmp_path / "o")], 2, ""), (["-o", str(tmp_path / "o.png")], 2, "E152"),
        (["-o", str(tmp_path / "o.nii.gz"), "--resume"], 2, "E192"), (["-o", str(people / "i3.nii.gz")], 3, "E150"),
        (["-o", str(tmp_path / "o.dcm")], 3, "E1"),
    ):  # fmt: skip
        assert main([*words, *more]) == status, more
        assert code in capsys.readouterr().err
    assert main(["atlas", "evaluate", str(people), "-o", str(tmp_path / "s")]) == 3
    assert "E101" in capsys.readouterr().err
    one = [{**row, "group": "twin"} for row in rows_of(people)]
    rw.build_atlas(one, tmp_path / "twins")
    with pytest.raises(rw.RegweaveError, match="E134"):
        rw.evaluate_atlas(tmp_path / "twins", tmp_path / "s")
