"""Lists of pairs: what is understood, what is refused and how, patients, folds."""

from pathlib import Path

import pytest

from regweave.errors import RegweaveError
from regweave.jobs.table import PairFiles, check_leak, one_by_one, read_pairs, split_groups, write_pairs
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


def test_relative_and_absolute_paths(folder, tmp_path_factory, monkeypatch):
    text = f"{HEADER}\na-1.x,{files()},p1+p2\nb,{files(f'{folder}/images/')}, p3 ;p1\n"
    path = listed(folder, text)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    first, second = read_pairs(path)
    assert (first.id, first.group, first.patients) == ("a-1.x", "p1+p2", ("p1", "p2"))
    assert second.patients == ("p3", "p1")
    assert first.fixed == second.fixed == folder / "images" / "f.nii"
    assert first.moving_labels == folder / "images" / "ml.nii"


def test_columns_in_any_order_and_without_groups(folder):
    """Spreadsheets write a byte-order mark, CRLF and empty lines."""
    order = "moving,id,fixed,moving_labels,fixed_labels"
    row = "images/m.nii,a,images/f.nii,images/ml.nii,images/fl.nii"
    (found,) = read_pairs(listed(folder, f"{order}\r\n\r\n{row}\r\n ,,,,\r\n", "utf-8-sig"))
    assert (found.id, found.group, found.patients) == ("a", "a", ("a",))
    assert found.fixed_labels.name == "fl.nii"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        (f"{HEADER}\n", "no pairs"),
        (f"id,fixed,moving,fixed_labels,group\na,{files()}\n", "missing: moving_labels"),
        (f"{HEADER.replace('group', 'patient')}\na,{files()},p\n", "not known: patient"),
        (f"{HEADER},group\na,{files()},p,q\n", "columns"),
        (f"{HEADER}\na,{files()},p\na,{files()},q\n", "'a' occurs twice"),
        (f"{HEADER}\na,{files()},p\nA,{files()},q\n", "'A' occurs twice"),
        (f"{HEADER}\n../x,{files()},p\n", "line 2: id '../x'"),
        (f"{HEADER}\n..,{files()},p\n", "id '..'"),
        (f"{HEADER}\na b,{files()},p\n", "id 'a b'"),
        (f"{HEADER}\na,{files()}\n", "line 2 has 5 cells, the header 6"),
        (f"{HEADER}\na,images/f.nii,,images/fl.nii,images/ml.nii,p\n", "nothing in moving"),
        (f"{HEADER}\na,{files()},+\n", "names no patient"),
        (f'{HEADER}\n"a,{files()},p\n', "not CSV"),
    ],
)
def test_lists_that_are_refused(folder, text, said):
    assert said in refused(listed(folder, text), "E132")


def test_not_text(folder):
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


def test_written_and_read_again(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "f.nii"
    other.write_bytes(b"x")
    row = f"a,{other},images/m.nii,images/fl.nii,images/ml.nii,p+q\n"
    pairs = read_pairs(listed(folder, f"{HEADER}\n{row}b,{files()},\n"))
    write_pairs(folder / "again.csv", pairs)
    assert read_pairs(folder / "again.csv") == pairs
    text = (folder / "again.csv").read_text()
    assert text.splitlines()[1] == f"a,{other},images/m.nii,images/fl.nii,images/ml.nii,p+q"
    assert text.splitlines()[2] == f"b,{files()},b"


def test_leaks_through_either_patient_of_a_pair():
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


def test_folds_of_pairs_of_one_patient():
    pairs = [pair(f"{i}{j}", f"p{i}") for i in range(7) for j in range(2)]
    folds = split_groups(pairs, 3, seed=1)
    assert len(check_folds(pairs, folds)) == len(pairs)
    assert not any(fold.dropped for fold in folds)
    assert folds == split_groups(pairs, 3, seed=1)
    assert folds != split_groups(pairs, 3, seed=2)
    shuffled = split_groups(pairs[::-1], 3, seed=1)
    assert [{p.id for p in f.test} for f in shuffled] == [{p.id for p in f.test} for f in folds]


def test_folds_of_separate_couples_drop_nothing():
    pairs = [pair(str(i), f"p{2 * i}+p{2 * i + 1}") for i in range(6)]
    assert len(check_folds(pairs, split_groups(pairs, 3))) == len(pairs)


def test_folds_of_all_against_all():
    names = [f"p{i}" for i in range(8)]
    pairs = [pair(f"{a}-{b}", f"{a}+{b}") for a in names for b in names if a < b]
    folds = split_groups(pairs, 4)
    assert len(check_folds(pairs, folds)) == 4  # two patients in each part make one pair
    assert all(len(fold.train) == 15 and len(fold.dropped) == 12 for fold in folds)


def test_one_pair_after_the_other_drops_none():
    names = [f"p{i}" for i in range(4)]
    pairs = [pair(f"{a}-{b}", f"{a}+{b}") for a in names for b in names if a != b]
    folds = one_by_one(pairs)
    assert check_folds(pairs, folds) == [p.id for p in pairs]
    assert all(len(fold.train) == 2 for fold in folds)  # the two others, both ways


def test_one_by_one_leaves_out_what_shares_a_patient_with_all_others():
    pairs = [pair("hub", "a+b"), pair("left", "a+c"), pair("right", "b+d")]
    assert [fold.test[0].id for fold in one_by_one(pairs)] == ["left", "right"]
    assert one_by_one([pair(str(i), f"atlas+p{i}") for i in range(5)]) == []


@pytest.mark.parametrize(("groups", "k"), [(["a", "b"], 3), (["a", "b"], 1), (["a+b", "b+c", "c+a"], 3)])
def test_folds_that_cannot_be(groups, k):
    pairs = [pair(str(i), group) for i, group in enumerate(groups)]
    with pytest.raises(RegweaveError, match="E134"):
        split_groups(pairs, k)
