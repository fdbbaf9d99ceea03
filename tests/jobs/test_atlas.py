"""Folders of atlases: what is refused, what is built, and segmentations of people that were left out."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import regweave as rw
from phantoms import make_phantom
from regweave.cli import main
from regweave.io import read_image, read_labels, write_image, write_labels
from regweave.jobs.atlas import Atlas
from regweave.types import Geometry, LabelMap, Volume


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
def evaluated(people):
    atlas = people / "atlas"
    assert main(["atlas", "build", str(people / "people.csv"), "-o", str(atlas)]) == 0
    scores = rw.evaluate_atlas(atlas, people / "scores", top=2, workers=1)
    return atlas, scores


def test_build_copies_what_it_read(people, evaluated):
    atlas = Atlas.load(evaluated[0])
    assert atlas.names[6] == "core"
    assert [row.group for row in atlas.rows] == ["person0", "person1", "person2"]
    np.testing.assert_array_equal(read_image(atlas.image("p1")).data, read_image(people / "i1.nii.gz").data)
    np.testing.assert_array_equal(atlas.labels("p1").data, read_labels(people / "l1.nii.gz").data)


def test_scores_are_those_of_the_files(people, evaluated):
    _, scores = evaluated
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


def test_no_person_segments_itself(people, evaluated):
    for seed in range(3):
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


def rows_of(folder, count=2):
    return [{"id": f"p{k}", "image": folder / f"i{k}.nii.gz", "labels": folder / f"l{k}.nii.gz"} for k in range(count)]


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


def test_labels_of_another_grid_are_refused(people, tmp_path):
    labels = read_labels(people / "l1.nii.gz")
    moved = labels.geometry.affine.copy()
    moved[0, 3] += 30.0
    write_labels(tmp_path / "moved.nii.gz", LabelMap(labels.data, Geometry(labels.geometry.shape, moved)))
    refused([rows_of(people)[0], {**rows_of(people)[1], "labels": tmp_path / "moved.nii.gz"}], tmp_path, "E112")


def test_maps_without_a_common_structure_or_without_any_are_refused(people, tmp_path):
    labels = read_labels(people / "l1.nii.gz", names_path={1: "x"})
    write_labels(
        tmp_path / "other.nii.gz", LabelMap(np.where(labels.data == 1, 60, 0).astype(np.uint8), labels.geometry)
    )
    write_labels(tmp_path / "none.nii.gz", LabelMap(0 * labels.data, labels.geometry))
    refused([rows_of(people)[0], {**rows_of(people)[1], "labels": tmp_path / "other.nii.gz"}], tmp_path, "E1(30|36)")
    refused([rows_of(people)[0], {**rows_of(people)[1], "labels": tmp_path / "none.nii.gz"}], tmp_path, "E131")


def test_images_of_two_kinds_are_refused(people, tmp_path):
    image = read_image(people / "i1.nii.gz")
    body = read_labels(people / "l1.nii.gz").data
    rng = np.random.default_rng(0)
    air = np.full(image.data.shape, -1000.0)
    soft = np.where(rng.random(air.shape) < 0.2, -90.0, 45.0) + rng.normal(0, 6, air.shape)
    hounsfield = np.where(ndi(body > 0), soft, air) + 800 * (body == 3)
    write_image(tmp_path / "ct.nii.gz", Volume(hounsfield.astype(np.float32), image.geometry))
    assert rw.Volume.from_array(hounsfield, spacing_mm=(9, 9, 9)) is not None
    from regweave.io.modality import modality_of

    kinds = {modality_of(read_image(p)) for p in (tmp_path / "ct.nii.gz", people / "i0.nii.gz")}
    assert len(kinds) == 2
    refused([rows_of(people)[0], {**rows_of(people)[1], "image": tmp_path / "ct.nii.gz"}], tmp_path, "E172")


def ndi(mask):
    from scipy import ndimage

    return ndimage.binary_dilation(mask, iterations=3)


@pytest.mark.parametrize(
    ("harm", "code"),
    [
        (lambda a: (a / "atlas.json").unlink(), "E101"),
        (lambda a: (a / "atlas.json").write_text("{"), "E102"),
        (lambda a: (a / "atlas.json").write_text('{"format": "regweave-batch"}'), "E178"),
        (lambda a: rewrite(a, lambda c: c["rows"].pop()), "E178|E1"),
        (lambda a: rewrite(a, lambda c: c["rows"].append(c["rows"][0])), "E178"),
        (lambda a: rewrite(a, lambda c: c["rows"][0].update(id="../p0")), "E178"),
        (lambda a: (a / "p1/image.nii.gz").unlink(), "E101"),
        (lambda a: (a / "p1/labels.nii.gz").write_bytes((a / "p1/labels.nii.gz").read_bytes()[:200]), "E102"),
        (lambda a: (a / "evaluation.json").write_text('{"slope": "steep"}'), "E178"),
    ],
)
def test_damaged_folders_are_refused(people, tmp_path, harm, code):
    rw.build_atlas(rows_of(people), tmp_path / "atlas")
    harm(tmp_path / "atlas")

    def run():
        rows = rw.segment(people / "i3.nii.gz", tmp_path / "atlas", tmp_path / "out", workers=1, top=1)
        raise RuntimeError(rows[0]["error"])  # KeyError where nothing was noticed

    with pytest.raises((rw.RegweaveError, RuntimeError), match=code):
        run()


def rewrite(folder: Path, change):
    content = json.loads((folder / "atlas.json").read_text())
    change(content)
    (folder / "atlas.json").write_text(json.dumps(content))


def test_wrong_options_are_refused_before_anything_runs(people, evaluated, tmp_path, capsys):
    atlas, _ = evaluated
    words = ["segment", str(people / "i3.nii.gz"), "--atlas", str(atlas)]
    for more, status, code in (
        (["--top", "0", "-o", str(tmp_path / "o")], 2, "E192"),
        (["--fusion", "mean", "-o", str(tmp_path / "o")], 2, ""),
        (["-o", str(tmp_path / "o.png")], 2, "E152"),
        (["-o", str(tmp_path / "o.nii.gz"), "--resume"], 2, "E192"),
        (["-o", str(people / "i3.nii.gz")], 3, "E150"),
        (["-o", str(tmp_path / "o.dcm")], 3, "E1"),
    ):
        assert main([*words, *more]) == status, more
        assert code in capsys.readouterr().err
    assert main(["atlas", "evaluate", str(people), "-o", str(tmp_path / "s")]) == 3
    assert "E101" in capsys.readouterr().err
    one = [{**row, "group": "twin"} for row in rows_of(people)]
    rw.build_atlas(one, tmp_path / "twins")
    with pytest.raises(rw.RegweaveError, match="E134"):
        rw.evaluate_atlas(tmp_path / "twins", tmp_path / "s")
