"""Tables of structures, against plain loops."""

import json

import numpy as np
import pytest

import regweave as rw
from regweave.cli import main
from regweave.io import write_image, write_labels
from regweave.types import Geometry, LabelMap, Volume

GRID = Geometry((9, 8, 7), np.diag([-1.0, -2.0, 2.5, 1.0]))


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    labels = LabelMap(rng.choice(np.array([0, 3, 70000], np.uint32), GRID.shape), GRID)
    image = Volume(rng.normal(5, 2, GRID.shape).astype(np.float32), GRID)
    write_labels(tmp_path / "l.nii.gz", labels)
    (tmp_path / "labels.json").write_text('{"3": "left"}')
    write_image(tmp_path / "i.nii.gz", image)
    return tmp_path, labels.data, image.data.astype(np.float64)


def test_rows_are_those_of_a_loop(files):
    folder, labels, image = files
    rows = rw.measure(folder / "l.nii.gz", folder / "i.nii.gz")
    assert [(row["label"], row["name"]) for row in rows] == [(3, "left"), (70000, "70000")]
    for row in rows:
        inside = image[labels == row["label"]]
        assert row["voxels"] == inside.size
        assert row["volume_ml"] == pytest.approx(inside.size * 5e-3)
        assert (row["mean"], row["sd"]) == (pytest.approx(inside.mean()), pytest.approx(inside.std()))
        assert (row["min"], row["max"]) == (inside.min(), inside.max())


def test_the_command_takes_a_list_and_writes_a_table_without_formulas(files, capsys):
    folder, labels, _ = files
    (folder / "list.csv").write_text("id,labels,image\na,l.nii.gz,i.nii.gz\nb,l.nii.gz,\n")
    assert main(["measure", str(folder / "list.csv"), "-o", str(folder / "t.tsv")]) == 0
    lines = [line.split("\t") for line in (folder / "t.tsv").read_text().splitlines()]
    assert [line[0] for line in lines] == ["id", "a", "a", "b", "b"]
    assert lines[3][lines[0].index("mean")] == "n/a"
    capsys.readouterr()
    assert main(["measure", str(folder / "l.nii.gz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["voxels"] == int((labels == 3).sum())
    folder, _, _ = files
    (folder / "n.json").write_text(json.dumps({"3": "=1+1", "70000": "a\tb\x1b[2J"}))
    words = ["measure", str(folder / "l.nii.gz"), "--label-names", str(folder / "n.json"), "-o", str(folder / "n.tsv")]
    assert main(words) == 0
    assert [line.split("\t")[1] for line in (folder / "n.tsv").read_text().splitlines()] == [
        "name", "'=1+1", "a b\\u001b[2J"
    ]  # fmt: skip


def test_another_grid_and_bad_lists_are_refused(files, capsys):
    folder, _, image = files
    write_image(folder / "other.nii.gz", Volume(image[1:].astype(np.float32), Geometry((8, 8, 7), GRID.affine)))
    assert main(["measure", str(folder / "l.nii.gz"), "--image", str(folder / "other.nii.gz")]) == 3
    assert "E112" in capsys.readouterr().err
    (folder / "list.csv").write_text("id,labels\na,l.nii.gz\n")
    assert main(["measure", str(folder / "list.csv"), "--image", str(folder / "i.nii.gz")]) == 2
    assert "E192" in capsys.readouterr().err
    (folder / "list.csv").write_text("id,labels\na,gone.nii.gz\n")
    assert main(["measure", str(folder / "list.csv")]) == 3
    assert "E101" in capsys.readouterr().err
    assert main(["measure", str(folder / "i.nii.gz")]) == 3
    assert "E106" in capsys.readouterr().err
