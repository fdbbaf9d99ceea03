"""Templates: mean shape and intensity, whatever the order of the list, and what makes none."""

import json
import shutil

import numpy as np
import pytest

import regweave as rw
from regweave.cli import main
from regweave.io import read_image, read_labels, write_image, write_labels
from regweave.spatial.warp import warp_image, warp_labels
from regweave.types import Geometry, LabelMap, Transform, Volume

pytestmark = pytest.mark.usefixtures("in_process")
GRID = Geometry((24, 22, 20), np.diag([-4.0, -4.0, 4.0, 1.0]))


def person(shift_mm):
    """An egg and its core at a place of its own, bent a little."""
    where = GRID.points(np.moveaxis(np.indices(GRID.shape, dtype=float), 0, -1)) - np.array([-46.0, -42.0, 38.0])
    bent = where - np.array(shift_mm) * (1 + 0.3 * np.sin(where[..., [1]] / 15))
    radius = np.sqrt(((bent / np.array([26.0, 22.0, 20.0])) ** 2).sum(axis=-1))
    image = 100 / (1 + np.exp(12 * (radius - 1))) + 60 / (1 + np.exp(20 * (radius - 0.5)))
    return Volume(image.astype(np.float32), GRID), LabelMap((radius < 0.5).astype(np.uint8) * 3, GRID)


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    folder = tmp_path_factory.mktemp("people")
    rows = []
    for k, shift in enumerate([(6.0, 0, 0), (-3.0, 3.0, 0), (0, -5.0, 2.0)]):
        image, labels = person(shift)
        labels = LabelMap(labels.data + np.uint8(2 * k) * (labels.data > 0), GRID)
        (folder / f"l{k}.tsv").write_text(f"index\tname\n{3 + 2 * k}\tcore\n")
        write_image(folder / f"i{k}.nii.gz", image)
        write_labels(folder / f"l{k}.nii.gz", labels)
        rows.append({"id": f"p{k}", "image": str(folder / f"i{k}.nii.gz"), "labels": str(folder / f"l{k}.nii.gz")})
    return rows


@pytest.fixture(scope="module")
def built(people, in_process, tmp_path_factory):
    folder = tmp_path_factory.mktemp("template") / "t"
    return folder, rw.build_template(people, folder, rounds=2, workers=1)


def test_the_mean_field_is_zero_and_transforms_bring_images_onto_the_template(people, built):
    folder, found = built
    assert found["rounds"][-1]["bias"] <= 0.05
    template = read_image(folder / "template.nii.gz")
    maps, moved = [], []
    for row in people:
        maps.append(Transform.load(folder / f"transforms/{row['id']}.h5"))
        moved.append(warp_image(read_image(row["image"]), maps[-1]).data)
        there = maps[-1](template.geometry.points(np.array([[11.0, 10.0, 9.0]])))
        back = Transform.load(folder / f"transforms/{row['id']}_inverse.h5")(there)
        assert np.abs(back - template.geometry.points(np.array([[11.0, 10.0, 9.0]]))).max() < 0.1
    points = template.geometry.points(np.moveaxis(np.indices(template.geometry.shape, dtype=float), 0, -1))
    shift = np.mean([one(points) - points for one in maps], axis=0)
    assert np.linalg.norm(shift, axis=-1).mean() <= 0.05 * 4.0
    plain = np.mean([read_image(row["image"]).data for row in people], axis=0)
    spread = [np.std(images, axis=0).mean() for images in (moved, [read_image(row["image"]).data for row in people])]
    assert spread[0] < 0.3 * spread[1]

    def sharpness(image):
        return np.square(np.gradient(image / image.max())).sum()

    assert sharpness(template.data) > 1.3 * sharpness(plain)
    labels = read_labels(folder / "labels.nii.gz")
    core, drawn = warp_labels(read_labels(people[0]["labels"]), maps[0]).data == 3, labels.data > 0
    assert 2 * (drawn & core).sum() > 0.9 * (drawn.sum() + core.sum())
    assert [labels.name(value) for value in labels.values()] == ["core"]  # each map has its own number for it


def test_any_order_and_a_resumed_run_give_the_same_bytes(people, built, tmp_path):
    folder, _ = built
    (tmp_path / "list.csv").write_text(
        "id,image,labels\n" + "".join(f"{r['id']},{r['image']},{r['labels']}\n" for r in people[::-1])
    )
    words = ["template", str(tmp_path / "list.csv"), "-o", str(tmp_path / "t"), "--rounds", "2", "--workers", "1"]
    assert main([*words, "--quiet"]) == 0
    for name in ("template.nii.gz", "labels.nii.gz", "transforms/p1.h5"):
        assert (folder / name).read_bytes() == (tmp_path / "t" / name).read_bytes(), name
    assert main([*words, "--quiet"]) == 3  # without --resume
    shutil.rmtree(tmp_path / "t/round2/registrations/p0")
    (tmp_path / "t/template.nii.gz").unlink()
    assert main([*words, "--quiet", "--resume"]) == 0
    assert (folder / "template.nii.gz").read_bytes() == (tmp_path / "t/template.nii.gz").read_bytes()


def test_lists_that_make_no_template_are_refused(people, tmp_path, capsys):
    def refused(rows, code, **words):
        with pytest.raises(rw.RegweaveError, match=code):
            rw.build_template(rows, tmp_path / "t", workers=1, **words)
        assert not (tmp_path / "t").exists()

    refused(people[:1], "E132.*two or more")
    refused([people[0], people[0]], "E132.*twice")
    refused([people[0], {**people[1], "image": str(tmp_path / "gone.nii")}], "E101")
    refused(people, "E192", rounds=0)
    refused(people, "E192", sharpen=-1.0)
    image = read_image(people[1]["image"])
    moved = Geometry(GRID.shape, np.diag([-5.0, -4.0, 4.0, 1.0]))
    write_labels(tmp_path / "moved.nii.gz", LabelMap(read_labels(people[1]["labels"]).data, moved))
    refused([people[0], {**people[1], "labels": str(tmp_path / "moved.nii.gz")}], "E112")
    write_labels(tmp_path / "rim.nii.gz", read_labels(people[1]["labels"]))
    (tmp_path / "rim.tsv").write_text("index\tname\n5\trim\n")
    rim = {**people[1], "labels": str(tmp_path / "rim.nii.gz")}
    refused([people[0], rim, people[2]], "E136.*rim.nii.gz' shares no structure.*rim")
    rng = np.random.default_rng(0)
    soft = np.where(rng.random(GRID.shape) < 0.2, -90.0, 45.0) + rng.normal(0, 6, GRID.shape)
    ct = np.where(image.data > 50, soft, -1000.0) + 700.0 * (image.data > 140)
    write_image(tmp_path / "ct.nii.gz", Volume(ct.astype(np.float32), GRID))
    refused([people[0], {**people[1], "image": str(tmp_path / "ct.nii.gz"), "labels": ""}], "E172")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/x").write_text("mine")
    (tmp_path / "list.json").write_text(json.dumps(people))
    assert main(["template", str(tmp_path / "list.json"), "-o", str(tmp_path / "o")]) == 3
    assert "E132" in capsys.readouterr().err
    with pytest.raises(rw.RegweaveError, match="E150"):
        rw.build_template(people, tmp_path / "taken", workers=1)
