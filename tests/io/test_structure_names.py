import numpy as np
import pytest

from regweave.errors import RegweaveError
from regweave.io.labels import in_numbering, join_names, match_structures, normalised
from regweave.types import Geometry, LabelMap

MODEL = {0: "background", 1: "LeftParotid", 2: "RightParotid", 3: "Brainstem"}


def labels(names: dict[int, str], values=None) -> LabelMap:
    data = np.zeros((4, 4, 4), dtype=np.int16)
    data.ravel()[: len(values or names)] = list(values or names)
    return LabelMap(data, Geometry((4, 4, 4), np.eye(4)), names)


def test_spellings_of_one_name_and_other_names():
    for other in (
        "left parotid", "LEFT_PAROTID", "Parotid_L", "parotid, lt", "ParotidLeft", "Parotid-Left", "leftParotid",
        "LEFTPAROTID",
    ):  # fmt: skip
        assert normalised(other) == normalised("LeftParotid"), other
    for other in ("RightParotid", "Parotid_R", "Parotid", "LeftParotid2", "Left submandibular"):
        assert normalised(other) != normalised("LeftParotid"), other


def test_names_decide_where_both_sides_have_them_and_numbers_where_they_lack():
    found = match_structures(labels({7: "parotid_R", 1: "brainstem", 9: "Larynx"}), MODEL, "labels", "model")
    assert found.by == "name"
    assert found.to == {7: 2, 1: 3}
    assert found.unknown == (9,)
    own = labels({7: "parotid_R", 1: "brainstem", 9: "Larynx"})
    mapped = match_structures(own, MODEL, "labels", "model").apply(own)
    assert mapped.data.ravel()[:4].tolist() == [2, 3, 0, 0]
    assert own.data.ravel()[:3].tolist() == [7, 1, 9]
    found = match_structures(labels({}, [1, 3, 8]), MODEL, "labels", "model")
    assert (found.by, dict(found.to), found.unknown) == ("number", {1: 1, 3: 3}, (8,))
    numbers = match_structures(labels({1: "a", 2: "b"}), {0: "background", 1: "1", 2: "2"}, "labels", "model")
    assert (numbers.by, dict(numbers.to)) == ("number", {1: 1, 2: 2})
    same = match_structures(labels({1: "LeftParotid"}, [1, 3]), MODEL, "labels", "model")
    assert dict(same.to) == {1: 1, 3: 3}
    other = match_structures(labels({2: "LeftParotid"}, [2, 3]), MODEL, "labels", "model")
    assert (dict(other.to), other.unknown) == ({2: 1}, (3,))
    own = labels({}, [1, 2])
    assert in_numbering(own, {1: "liver"}, "a", "b") is own
    assert join_names([{1: "Liver", 2: "2"}, {1: "spleen", 2: "liver"}]) == {1: "Liver", 2: "spleen"}


def test_contradictions_print_both_lists_and_a_name_given_twice_is_refused():
    for names in ({1: "Liver", 2: "Spleen"}, {1: "parotid L", 2: "Left Parotid"}):
        with pytest.raises(RegweaveError, match="E130") as caught:
            match_structures(labels(names), MODEL, "the moving labels", "the model")
        assert all(name in caught.value.message for name in (*names.values(), *list(MODEL.values())[1:]))
    with pytest.raises(RegweaveError, match=r"E130.*name one structure twice"):
        match_structures(labels({1: "Liver"}), {1: "liver", 2: "Liver"}, "the moving labels", "the model")


def test_one_numbering_for_two_maps():
    fixed = labels({1: "Spleen", 2: "Liver", 3: "Kidney"})
    found = in_numbering(fixed, {1: "liver", 3: "Aorta"}, "fixed", "moving")
    assert found.names[1] == "Liver"
    by_name = {name: value for value, name in found.names.items()}
    assert by_name["Liver"] == 1
    assert by_name["Kidney"] not in (1, 3)
    assert by_name["Spleen"] not in (1, 3)
    assert len(set(by_name.values())) == 3
    for name, value in by_name.items():
        old = next(v for v, n in fixed.names.items() if n == name)
        np.testing.assert_array_equal(found.data == value, fixed.data == old)
