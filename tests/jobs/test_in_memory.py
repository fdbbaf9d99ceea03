"""Pairs from memory: the files that workers read hold what was given, each image once."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from regweave.errors import RegweaveError
from regweave.io import read_image, read_labels
from regweave.jobs.table import FILES, pairs_on_disk, read_pairs


@pytest.fixture
def listed(training_list, tmp_path):
    lines = [training_list.line(n) for n in range(2)]
    return training_list.write(tmp_path / "pairs.csv", *lines)


def test_files_stay_where_they_are(listed, training_list, tmp_path):
    folder = tmp_path / "images"
    expected = read_pairs(listed)
    assert pairs_on_disk(listed, folder) == pairs_on_disk(expected, folder) == expected
    tuples = [tuple(training_list.files(n).values()) for n in range(2)]
    found = pairs_on_disk(tuples, folder, ["x", "y+z"])
    assert found == [replace(p, id=f"pair{n}", group=("x", "y+z")[n]) for n, p in enumerate(expected)]
    rows = [dict(vars(p)) for p in expected]
    assert pairs_on_disk(rows, folder) == expected
    assert not folder.exists()


def test_what_is_in_memory_is_written_once_and_whole(training_list, tmp_path):
    files = [training_list.files(n) for n in range(2)]
    fixed = read_image(files[0]["fixed"])
    labels = read_labels(files[0]["fixed_labels"])
    tilted = np.array([[0.3, -0.9, 0.1], [0.9, 0.31, 0.02], [0.05, 0.08, 1.2]])
    affine = np.eye(4)
    affine[:3, :3] = np.linalg.qr(tilted)[0] / 3
    array = np.random.default_rng(0).random((5, 6, 7)).astype(np.float32)
    rows = [
        {"id": "a", "fixed": fixed, "moving": (array, affine), **{c: files[0][c] for c in FILES[2:]}},
        {"fixed": fixed, "moving": files[1]["moving"], "fixed_labels": labels, "moving_labels": labels,
         "fixed_mask": (np.ones(fixed.data.shape, dtype=np.uint8), np.diag([-1, -1, 1, 1]) @ fixed.geometry.affine)},
    ]  # fmt: skip
    a, b = pairs_on_disk(rows, tmp_path / "images")
    assert (a.id, b.id, a.group, b.group) == ("a", "pair1", "a", "pair1")
    assert a.fixed == b.fixed
    assert b.fixed_labels == b.moving_labels
    assert len(list((tmp_path / "images").glob("*.nrrd"))) == 4
    assert (a.moving_labels, b.moving) == (files[0]["moving_labels"], files[1]["moving"])
    for source, path in ((fixed, a.fixed), ((array, affine), a.moving)):
        before, after = read_image(source), read_image(path)
        np.testing.assert_array_equal(before.data, after.data)
        np.testing.assert_allclose(before.geometry.affine, after.geometry.affine, rtol=1e-14, atol=1e-14)
    assert (a.fixed_mask, b.moving_mask) == (None, None)
    assert read_labels(b.fixed_mask).data.all()
    after = read_labels(b.fixed_labels)
    np.testing.assert_array_equal(after.data, labels.data)
    assert after.names == labels.names != {}
    assert pairs_on_disk(rows, tmp_path / "images") == [a, b]


def test_refusals(training_list, tmp_path):
    files = tuple(training_list.files(0).values())
    for pairs, words in (
        ([files[:3]], "pair 0 has 3 files"),
        ([{"fixed": files[0]}], "missing"),
        ([], "missing"),
        ([{"id": "../x", **dict(zip(FILES, files, strict=True))}], "id"),
    ):
        with pytest.raises(RegweaveError, match=f"E132.*{words}"):
            pairs_on_disk(pairs, tmp_path / "images")
    with pytest.raises(RegweaveError, match="E101"):
        pairs_on_disk([(Path("nowhere.nii"), *files[1:])], tmp_path / "images")
