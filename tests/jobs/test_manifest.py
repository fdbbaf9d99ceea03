"""Lists of pairs: what is understood, what is refused and how, patients, folds."""

from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from regweave.errors import RegweaveError
from regweave.io import read_image, read_labels
from regweave.jobs.table import (
    FILES,
    PairFiles,
    check_leak,
    cover_patients,
    deal_patients,
    one_by_one,
    pairs_on_disk,
    read_pairs,
    split_groups,
    write_pairs,
)
from regweave.measures.statistics import patients_of

HEADER = "id,fixed,moving,fixed_labels,moving_labels,group"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    for name in ("f.nii", "m.nii", "fl.nii", "ml.nii"):
        (tmp_path / "images" / name).write_bytes(b"x")
    return tmp_path


def files(prefix="images/") -> str:
    return ",".join(prefix + name for name in ("f.nii", "m.nii", "fl.nii", "ml.nii"))


def listed(folder, text, encoding="utf-8") -> Path:
    path = folder / "pairs.csv"
    path.write_bytes(text.encode(encoding))
    return path


def refused(path, code) -> str:
    with pytest.raises(RegweaveError) as caught:
        read_pairs(path)
    assert caught.value.code == code
    assert caught.value.exit_status == 3
    return str(caught.value)


def pair(name: str, group: str) -> PairFiles:
    return PairFiles(name, *[Path(c) for c in "abcd"], group)


def test_paths_columns_and_groups(folder, tmp_path_factory, monkeypatch):
    text = f"{HEADER}\na-1.x,{files()},p1+p2\nb,{files(f'{folder}/images/')}, p3 ;p1\n"
    path = listed(folder, text)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    first, second = read_pairs(path)
    assert (first.id, first.group, first.patients) == ("a-1.x", "p1+p2", ("p1", "p2"))
    assert second.patients == ("p3", "p1")
    assert first.fixed == second.fixed == folder / "images" / "f.nii"
    assert first.moving_labels == folder / "images" / "ml.nii"
    # Spreadsheets write a byte-order mark, CRLF and empty lines.
    order = "moving,id,fixed,moving_labels,fixed_labels"
    row = "images/m.nii,a,images/f.nii,images/ml.nii,images/fl.nii"
    (found,) = read_pairs(listed(folder, f"{order}\r\n\r\n{row}\r\n ,,,,\r\n", "utf-8-sig"))
    assert (found.id, found.group, found.patients) == ("a", "a", ("a",))
    assert found.fixed_labels.name == "fl.nii"


def test_lists_that_are_refused(folder):
    for text, said in (
        ("", "it is empty"), (f"{HEADER}\n", "no pairs"),
        (f"id,fixed,moving,fixed_labels,group\na,{files()}\n", "missing: moving_labels"),
        (f"{HEADER.replace('group', 'patient')}\na,{files()},p\n", "not known: patient"),
        (f"{HEADER},group\na,{files()},p,q\n", "columns"),
        (f"{HEADER}\na,{files()},p\na,{files()},q\n", "'a' occurs twice"),
        (f"{HEADER}\na,{files()},p\nA,{files()},q\n", "'A' occurs twice"),
        (f"{HEADER}\n../x,{files()},p\n", "line 2: id '../x'"), (f"{HEADER}\n..,{files()},p\n", "id '..'"),
        (f"{HEADER}\na b,{files()},p\n", "id 'a b'"),
        (f"{HEADER}\na,{files()}\n", "line 2 has 5 cells, the header 6"),
        (f"{HEADER}\na,images/f.nii,,images/fl.nii,images/ml.nii,p\n", "nothing in moving"),
        (f"{HEADER}\na,{files()},+\n", "names no patient"), (f'{HEADER}\n"a,{files()},p\n', "not CSV"),
    ):  # fmt: skip
        assert said in refused(listed(folder, text), "E132"), text
    path = folder / "pairs.csv"
    path.write_bytes(b"\xff\xfe\x00i\x00d")
    refused(path, "E132")
    refused(folder / "none.csv", "E101")


def test_missing_files_are_all_named(folder):
    rows = f"a,{files()},p\nb,{files('wrong/')},p\nc,images,images/m.nii,images/fl.nii,images/ml.nii,p\n"
    said = refused(listed(folder, f"{HEADER}\n{rows}"), "E101")
    assert "pair 2 (b), fixed" in said
    assert "pair 2 (b), moving_labels" in said
    assert "pair 3 (c), fixed" in said
    assert "pair 1" not in said
    rows += "".join(f"d{i},{files('wrong/')},p\n" for i in range(10))
    assert "and 40 more" in refused(listed(folder, f"{HEADER}\n{rows}"), "E101")


def test_written_and_read_again_and_leaks_found(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "f.nii"
    other.write_bytes(b"x")
    row = f"a,{other},images/m.nii,images/fl.nii,images/ml.nii,p+q\n"
    pairs = read_pairs(listed(folder, f"{HEADER}\n{row}b,{files()},\n"))
    write_pairs(folder / "again.csv", pairs)
    assert read_pairs(folder / "again.csv") == pairs
    text = (folder / "again.csv").read_text()
    assert text.splitlines()[1] == f"a,{other},images/m.nii,images/fl.nii,images/ml.nii,p+q"
    assert text.splitlines()[2] == f"b,{files()},b"
    assert patients_of(" a+ b;a ") == ("a", "b")
    assert check_leak(["a+b"], ["c", "d+e"]) == ()
    with pytest.raises(RegweaveError, match="E133: 1 of 3 test patients were trained on: b"):
        check_leak(["a+b", "x"], ["c+b", "d"])
    assert check_leak(["a+b", "c"], ["b;c"], allow=True) == ("b", "c")


def check_folds(pairs, folds):
    """No patient on both sides, every pair in exactly one role, no pair tested twice."""
    for fold in folds:
        sides = [{p for one in part for p in one.patients} for part in (fold.train, fold.test)]
        assert not sides[0] & sides[1]
        together = [*fold.train, *fold.test, *fold.dropped]
        assert sorted(p.id for p in together) == sorted(p.id for p in pairs)
    tested = [p.id for fold in folds for p in fold.test]
    assert len(tested) == len(set(tested))
    assert all(fold.train and fold.test for fold in folds)
    return tested


def test_folds():
    pairs = [pair(f"{i}{j}", f"p{i}") for i in range(7) for j in range(2)]
    folds = split_groups(pairs, 3, seed=1)
    assert len(check_folds(pairs, folds)) == len(pairs)
    assert not any(fold.dropped for fold in folds)
    assert folds == split_groups(pairs, 3, seed=1)
    assert folds != split_groups(pairs, 3, seed=2)
    shuffled = split_groups(pairs[::-1], 3, seed=1)
    assert [{p.id for p in f.test} for f in shuffled] == [{p.id for p in f.test} for f in folds]
    # Separate couples drop nothing.
    pairs = [pair(str(i), f"p{2 * i}+p{2 * i + 1}") for i in range(6)]
    assert len(check_folds(pairs, split_groups(pairs, 3))) == len(pairs)
    names = [f"p{i}" for i in range(8)]  # all against all
    pairs = [pair(f"{a}-{b}", f"{a}+{b}") for a in names for b in names if a < b]
    folds = split_groups(pairs, 4)
    assert len(check_folds(pairs, folds)) == 4  # two patients in each part make one pair
    assert all(len(fold.train) == 15 and len(fold.dropped) == 12 for fold in folds)
    for groups, k in ((["a", "b"], 3), (["a", "b"], 1), (["a+b", "b+c", "c+a"], 3)):
        with pytest.raises(RegweaveError, match="E134"):
            split_groups([pair(str(i), group) for i, group in enumerate(groups)], k)


def test_one_pair_after_the_other_drops_only_what_shares_a_patient_with_all_others():
    names = [f"p{i}" for i in range(4)]
    pairs = [pair(f"{a}-{b}", f"{a}+{b}") for a in names for b in names if a != b]
    folds = one_by_one(pairs)
    assert check_folds(pairs, folds) == [p.id for p in pairs]
    assert all(len(fold.train) == 2 for fold in folds)  # the two others, both ways
    pairs = [pair("hub", "a+b"), pair("left", "a+c"), pair("right", "b+d")]
    assert [fold.test[0].id for fold in one_by_one(pairs)] == ["left", "right"]
    assert one_by_one([pair(str(i), f"atlas+p{i}") for i in range(5)]) == []


# Pairs that cover patients evenly, and parts that keep pairs together.
def pairs_of(groups) -> list[PairFiles]:
    return [PairFiles(f"{n:03d}", *["x"] * 4, group) for n, group in enumerate(groups)]


ALL = pairs_of(f"p{a:02d}+p{b:02d}" for a, b in combinations(range(21), 2))


def within(pairs, part) -> int:
    return sum(len({part[name] for name in p.patients}) == 1 for p in pairs)


def test_every_patient_is_met_before_one_is_met_again():
    chosen = cover_patients(ALL, 30)
    for n in (10, 20, 30):
        met = Counter(name for p in chosen[:n] for name in p.patients)
        assert max(met.values()) - min(met[f"p{k:02d}"] for k in range(21)) <= 1
    assert len({p.id for p in chosen}) == 30
    chosen = cover_patients(ALL, 40, seed=3)
    assert cover_patients(ALL[::-1], 12, seed=3) == chosen[:12]
    assert cover_patients(ALL, 12, seed=4) != chosen[:12]
    assert sorted(p.id for p in cover_patients(ALL, 10**6)) == [p.id for p in ALL]


def test_patients_are_dealt_to_parts_that_keep_pairs():
    pairs = pairs_of(f"a{k}+b{k}" for k in range(11))
    part = deal_patients(pairs, 3)
    assert within(pairs, part) == 11
    sizes = Counter(part.values())
    assert sorted(sizes) == [0, 1, 2]
    assert max(sizes.values()) - min(sizes.values()) <= 2
    # A crowd and a few others: no part has more than its share, and more pairs stay whole than by chance.
    crowd = [f"x{a:02d}+x{b:02d}" for a, b in combinations(range(15), 2) if (a - b) % 3 == 0 or b == a + 1]
    pairs = pairs_of([*crowd, "u+v", "w+y", "s+t"])
    part = deal_patients(pairs, 3)
    assert max(Counter(part.values()).values()) <= 7
    assert within(pairs, part) > len(pairs) / 3
    assert sorted(deal_patients(pairs_of(["a+b", "b+c"]), 5).values()) == [0, 1, 2]
    for seed in range(3):
        assert deal_patients(ALL, 3, seed) == deal_patients(ALL, 3, seed)
        assert deal_patients(ALL, 3, seed) != deal_patients(ALL, 3, seed + 10)


# Pairs from memory: the files that workers read hold what was given, each image once.
@pytest.fixture
def listed_in_memory(training_list, tmp_path):
    lines = [training_list.line(n) for n in range(2)]
    return training_list.write(tmp_path / "pairs.csv", *lines)


def test_files_stay_where_they_are(listed_in_memory, training_list, tmp_path):
    folder = tmp_path / "images"
    expected = read_pairs(listed_in_memory)
    assert pairs_on_disk(listed_in_memory, folder) == pairs_on_disk(expected, folder) == expected
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
